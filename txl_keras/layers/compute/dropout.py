"""Dropout masks that are a hash of a row's seed and a unit's index."""

import math

import numpy as np
import tensorflow as tf


def fold_in(seed, data):
    """Derives a new uint32 seed from a uint32 seed (or `None`) and a number."""
    if seed is None:
        return None
    # `mix` maps zero to zero. Without an offset, small seeds and data would
    # collide: folding 0, then 1 into seed 0 would equal folding 0 twice into
    # seed 1. The offset is 2**32 divided by the golden ratio.
    offset = tf.constant(0x9E3779B9, tf.uint32)
    return mix(mix(tf.cast(data, tf.uint32) + offset) + seed)


def mix(x, shift_right=tf.bitwise.right_shift):
    """Hashes uint32 bijectively."""
    # `lowbias32` of https://nullprogram.com/blog/2018/07/31/.
    x = (x ^ shift_right(x, 16)) * np.uint32(0x7FEB352D)
    x = (x ^ shift_right(x, 15)) * np.uint32(0x846CA68B)
    return x ^ shift_right(x, 16)


def keep_pairs(rate, seeds, sizes, queries, keys):
    """Returns a mask `(N, B, queries, keys)`, for sizes `(N, T, S)`."""
    indices = [tf.range(sizes[0]), tf.range(*queries), tf.range(*keys)]
    return keep_mask(rate, seeds, sizes, indices, batch_axis=1)


def keep_mask(rate, seeds, sizes, indices, batch_axis=0):
    """Returns a boolean mask of the units that dropout keeps."""
    # `sizes` is the shape of a row, `indices` has the units of each axis.
    # Each row has a counter modulo 2**32, whose start and stride come from the
    # row's seed. It advances by one stride per unit and is hashed. Every term
    # of it depends on the seeds: a tensor of unit numbers would be the same in
    # every layer, so XLA would keep it in memory.
    rank = len(sizes) + 1
    seeds = tf.reshape(
        fold_in(seeds, 0), [-1 if a == batch_axis else 1 for a in range(rank)]
    )
    stride = tf.bitwise.bitwise_or(seeds, tf.constant(1, tf.uint32))
    axes = [axis for axis in range(rank) if axis != batch_axis]
    # Starting with the first axis keeps all sums but the last one small.
    counter = seeds
    for i, (axis, index) in enumerate(zip(axes, indices, strict=True)):
        units = tf.cast(math.prod(sizes[i + 1 :]), tf.uint32)
        index = tf.reshape(
            tf.cast(index, tf.uint32),
            [-1 if other == axis else 1 for other in range(rank)],
        )
        counter = counter + stride * units * index
    return mix(counter) >= tf.constant(int(rate * 2**32), tf.uint32)
