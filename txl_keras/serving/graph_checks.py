"""Checks of what clients pass, run in the graph before anything else.

Each returns an operation that fails with `InvalidArgumentError`. What must not
happen then has to depend on it: see `tf.control_dependencies`.
"""

import tensorflow as tf


def check(condition, *message):
    """Fails unless a condition holds.

    Args:
        condition: Scalar boolean tensor.
        *message: Strings and tensors, what the error says.
    """
    return tf.debugging.Assert(condition, message, summarize=8)


def check_not_empty(name, lengths):
    """Fails if a text has no token.

    Args:
        name: String, the argument's name.
        lengths: int32 tensor `(B,)`, tokens of each text.
    """
    return check(
        tf.reduce_all(lengths >= 1),
        f"`{name}` must have at least one token in every row. Received tokens, "
        "by row:",
        lengths,
    )


def check_not_negative(name, value):
    """Fails if a number is negative.

    Args:
        name: String, the argument's name.
        value: int32 scalar.
    """
    return check(value >= 0, f"`{name}` must be at least 0. Received:", value)


def check_range(name, values, low, high):
    """Fails unless all values are in `[low, high]`.

    Args:
        name: String, the argument's name.
        values: int32 tensor of any shape.
        low, high: Integers or scalar tensors.
    """
    return check(
        tf.reduce_all((values >= low) & (values <= high)),
        f"`{name}` must be at least",
        low,
        "and at most",
        high,
        "Received numbers from",
        tf.reduce_min(values),
        "to",
        tf.reduce_max(values),
    )


def check_shape(name, value, shape, meaning):
    """Fails unless a tensor has a shape.

    Args:
        name: String, the argument's name.
        value: Tensor.
        shape: int32 tensor or list of integers.
        meaning: String, the shape in letters.
    """
    # Also of another rank, which a client that is not Python may pass.
    is_same = tf.raw_ops.Equal(
        x=tf.shape(value), y=shape, incompatible_shape_error=False
    )
    return check(
        # Of another rank it is a scalar, which TensorFlow does not foresee.
        tf.reduce_all(tf.reshape(is_same, [-1])),
        f"`{name}` must have the shape {meaning}:",
        tf.convert_to_tensor(shape),
        "Received:",
        tf.shape(value),
    )


def check_distinct(name, values):
    """Fails if a value comes twice.

    Args:
        name: String, the argument's name.
        values: int32 tensor of shape `(B,)`.
    """
    return check(
        tf.size(tf.unique(values)[0]) == tf.size(values),
        f"`{name}` must not hold the same number twice. Received:",
        values,
    )
