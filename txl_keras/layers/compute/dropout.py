"""Dropout masks: a hash of a row's seed and a unit's index."""

import math
import operator

import numpy as np
from keras import ops

from txl_keras.backend import ON_TENSORFLOW
from txl_keras.backend import ON_TORCH
from txl_keras.backend import tf

# TensorFlow's tensors have no operator for it.
_SHIFT_RIGHT = tf.bitwise.right_shift if ON_TENSORFLOW else operator.rshift
# PyTorch cannot compute with uint32; there it is the lower half of an int64.
_IS_HALF = ON_TORCH
SEED_DTYPE = "int64" if _IS_HALF else "uint32"
_number = int if _IS_HALF else np.uint32


def fold_in(seed, data):
    """Derives a new uint32 seed from a uint32 seed (or `None`) and a number."""
    if seed is None:
        return None
    # `mix` maps zero to zero. Without an offset, small seeds and data would
    # collide: folding 0, then 1 into seed 0 would equal folding 0 twice into
    # seed 1. The offset is 2**32 divided by the golden ratio.
    return mix(mix(ops.cast(data, SEED_DTYPE) + _number(0x9E3779B9)) + seed)


def mix(x, shift_right=_SHIFT_RIGHT):
    """Hashes uint32 bijectively."""
    # `lowbias32` of https://nullprogram.com/blog/2018/07/31/.
    x = _wrapped(x)
    x = _wrapped((x ^ shift_right(x, 16)) * _number(0x7FEB352D))
    x = _wrapped((x ^ shift_right(x, 15)) * _number(0x846CA68B))
    return x ^ shift_right(x, 16)


def _wrapped(x):
    return x & 0xFFFFFFFF if _IS_HALF else x


def keep_pairs(rate, seeds, sizes, queries, keys):
    """Returns a mask `(N, B, queries, keys)`, for sizes `(N, T, S)`."""
    indices = [ops.arange(sizes[0]), ops.arange(*queries), ops.arange(*keys)]
    return keep_mask(rate, seeds, sizes, indices, batch_axis=1)


def keep_mask(rate, seeds, sizes, indices, batch_axis=0):
    """Returns a boolean mask of the units that dropout keeps."""
    # `sizes` is the shape of a row, `indices` has the units of each axis.
    # Each row has a counter modulo 2**32. The row's seed gives its start and
    # its stride per unit, and the counter is hashed. Every term depends on the
    # seeds: a tensor of unit numbers would be the same in every layer, so XLA
    # would keep it in memory.
    rank = len(sizes) + 1
    seeds = ops.reshape(
        fold_in(seeds, 0), [-1 if a == batch_axis else 1 for a in range(rank)]
    )
    stride = seeds | _number(1)
    axes = [axis for axis in range(rank) if axis != batch_axis]
    # Starting with the first axis keeps all sums but the last one small.
    counter = seeds
    for i, (axis, index) in enumerate(zip(axes, indices, strict=True)):
        units = ops.cast(math.prod(sizes[i + 1 :]), SEED_DTYPE)
        index = ops.reshape(
            ops.cast(index, SEED_DTYPE),
            [-1 if other == axis else 1 for other in range(rank)],
        )
        counter = counter + stride * units * index
    return mix(counter) >= _number(int(rate * 2**32))
