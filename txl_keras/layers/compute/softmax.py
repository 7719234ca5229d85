"""Pieces of a softmax over keys that lie in several tensors, and its gradient.

Letters: `T` segment, `S` keys, `H` head size.
"""

import functools

import tensorflow as tf


def exponentials_of_parts(scores):
    """What a softmax over all parts together is made of.

    Args:
        scores: List of float32 tensors `(..., S_i)`.

    Returns:
        Triple of a list of exponentials of what the scores are above the
        highest, and the highest and the sums of exponentials, `(..., 1)`.
    """
    highest = functools.reduce(
        tf.maximum,
        [tf.reduce_max(part, axis=-1, keepdims=True) for part in scores],
    )
    exponentials = [tf.exp(part - highest) for part in scores]
    total = tf.add_n(
        [tf.reduce_sum(part, axis=-1, keepdims=True) for part in exponentials]
    )
    return exponentials, highest, total


def mean_weight_gradient(output, output_gradient):
    """The gradient of the weights of a query, weighted by them and summed.

    Args:
        output, output_gradient: Tensors `(..., T, H)`.

    Returns:
        Float32 tensor `(..., T, 1)`.
    """
    product = tf.cast(output_gradient, tf.float32) * tf.cast(output, tf.float32)
    return tf.reduce_sum(product, axis=-1, keepdims=True)


def zero_after(x):
    """0, but only once `x` is there, and a compiler does not know it.

    XLA heeds no control dependencies; what adds this does wait.

    Args:
        x: Float32 tensor.

    Returns:
        Float32 tensor of its shape; NaN where `x` is.
    """
    return tf.where(tf.math.is_nan(x), x, 0.0)
