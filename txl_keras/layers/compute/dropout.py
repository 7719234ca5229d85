"""Which units dropout keeps: a hash of a row's seed and of a unit's place.

Letters: `B` batch.
"""

import math

import tensorflow as tf


def fold_in(seed, data):
    """Derives a new uint32 seed from a seed and a number.

    Args:
        seed: uint32 tensor of any shape, or `None`.
        data: uint32 tensor that broadcasts with `seed`, or a Python integer.

    Returns:
        uint32 tensor, or `None` where `seed` is `None`: "draw a fresh one".
    """
    if seed is None:
        return None
    # `_mix` leaves zero where it is: without an offset, seeds and data near
    # zero would meet, as (0, 0, 1) and (1, 0, 0). 2**32 over the golden ratio.
    offset = tf.constant(0x9E3779B9, tf.uint32)
    return _mix(_mix(tf.cast(data, tf.uint32) + offset) + seed)


def _mix(x):
    """Bijective hash of uint32, by xor-shift and multiplication.

    The constants are those of `lowbias32`, found by search for low bias over
    all bits (https://nullprogram.com/blog/2018/07/31/).
    """
    x = (x ^ tf.bitwise.right_shift(x, tf.cast(16, tf.uint32))) * tf.constant(
        0x7FEB352D, tf.uint32
    )
    x = (x ^ tf.bitwise.right_shift(x, tf.cast(15, tf.uint32))) * tf.constant(
        0x846CA68B, tf.uint32
    )
    return x ^ tf.bitwise.right_shift(x, tf.cast(16, tf.uint32))


def is_kept(rate, seeds, sizes, places, batch_axis=0):
    """Whether dropout keeps units.

    A row walks through the numbers below 2**32 with a start and a stride of
    its own, a step a unit, and hashes what it meets. The walk is written as a
    sum with a term an axis, each of which depends on the seeds: a tensor of
    the shape of a row would be the same in every layer, and a compiler would
    keep it in memory rather than compute it again.

    Args:
        rate: Float in `[0, 1)`, the fraction to drop.
        seeds: uint32 tensor of shape `(B,)`.
        sizes: List of integers, the shape of a row.
        places: List of integer vectors: of each axis, those to tell of.
        batch_axis: Integer, where the rows are in the result.

    Returns:
        Boolean tensor whose axes are those of `places`, with B among them.
    """
    rank = len(sizes) + 1
    seeds = tf.reshape(
        fold_in(seeds, 0), [-1 if a == batch_axis else 1 for a in range(rank)]
    )
    stride = tf.bitwise.bitwise_or(seeds, tf.constant(1, tf.uint32))
    axes = [axis for axis in range(rank) if axis != batch_axis]
    # From the first axis on, so that all sums but the last are small.
    walk = seeds
    for i, (axis, place) in enumerate(zip(axes, places, strict=True)):
        units = tf.cast(math.prod(sizes[i + 1 :]), tf.uint32)
        place = tf.reshape(
            tf.cast(place, tf.uint32),
            [-1 if other == axis else 1 for other in range(rank)],
        )
        walk = walk + stride * units * place
    return _mix(walk) >= tf.constant(int(rate * 2**32), tf.uint32)
