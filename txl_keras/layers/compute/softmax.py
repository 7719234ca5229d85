"""Helpers for a softmax whose keys are split over several tensors.

Letters: `T` segment, `S` keys, `H` head size.
"""

import functools

import tensorflow as tf


def exponentials_of_parts(scores):
    """Computes the terms of one softmax over several parts of the keys.

    From a list of float32 scores `(..., S_i)` returns the list of
    `exp(scores - max)`, and their max and sum over all parts, `(..., 1)`.
    """
    max_score = functools.reduce(
        tf.maximum,
        [tf.reduce_max(part, axis=-1, keepdims=True) for part in scores],
    )
    exponentials = [tf.exp(part - max_score) for part in scores]
    total = tf.add_n(
        [tf.reduce_sum(part, axis=-1, keepdims=True) for part in exponentials]
    )
    return exponentials, max_score, total


def softmax_delta(output, output_gradient):
    """Computes `delta` of FlashAttention: `sum_H(output * output_gradient)`.

    It equals the sum over keys of weight times weight gradient, which the
    gradient of a softmax subtracts. Shapes: `(..., T, H)` to `(..., T, 1)`.
    """
    product = tf.cast(output_gradient, tf.float32) * tf.cast(output, tf.float32)
    return tf.reduce_sum(product, axis=-1, keepdims=True)


def zero_depending_on(x):
    """Returns zeros with a data dependency on the float32 tensor `x`.

    XLA ignores control dependencies, but an op that adds these zeros has to
    wait for `x`. They are NaN where `x` is, so XLA cannot fold them.
    """
    return tf.where(tf.math.is_nan(x), x, 0.0)
