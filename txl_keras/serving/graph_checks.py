"""Checks of what clients pass, run in the graph before anything else.

Each returns an operation that fails with `InvalidArgumentError`. What must not
happen then has to depend on it: see `tf.control_dependencies`.
"""

import functools

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
        shape: int32 tensor or list of integers, as long as its rank.
        meaning: String, the shape in letters.
    """
    return check(
        tf.reduce_all(tf.equal(tf.shape(value), shape)),
        f"`{name}` must have the shape {meaning}:",
        tf.convert_to_tensor(shape),
        "Received:",
        tf.shape(value),
    )


def check_finite(name, value):
    """Fails if a tensor has NaN or infinity.

    Args:
        name: String, the argument's name.
        value: Float tensor of any shape.
    """
    # `tf.debugging.check_numerics` takes ten times as long on a CPU.
    return check(
        tf.reduce_all(tf.math.is_finite(value)),
        f"`{name}` must be finite. Received: NaN or infinity",
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


def with_checked_inputs(function, specs, max_batch_size):
    """Lets a function fail for inputs of another rank or of too many rows.

    TensorFlow lets every rank through: what then fails is some operation that
    knows no argument's name, or nothing.

    Args:
        function: Function of tensors.
        specs: List of their `tf.TensorSpec`s; batches come first.
        max_batch_size: Integer.
    """

    @functools.wraps(function)
    def call(*inputs):
        ranks = [
            _check_rank(spec, value)
            for spec, value in zip(specs, inputs, strict=True)
        ]
        with tf.control_dependencies(ranks):
            inputs = [tf.identity(value) for value in inputs]
        rows = [
            check(
                tf.shape(value)[0] <= max_batch_size,
                f"`{spec.name}` must have at most {max_batch_size} rows. "
                "Received the shape:",
                tf.shape(value),
            )
            for spec, value in zip(specs, inputs, strict=True)
            if spec.shape.rank
        ]
        with tf.control_dependencies(rows):
            return function(*map(tf.identity, inputs))

    return call


def _check_rank(spec, value):
    # TensorFlow takes the rank of the signature for granted and would leave the
    # check out. Through an optional it cannot see.
    # Only floats are on accelerators anyway.
    with tf.device(None if value.dtype.is_floating else "CPU:0"):
        (value,) = tf.raw_ops.OptionalGetValue(
            optional=tf.raw_ops.OptionalFromValue(components=[value]),
            output_types=[value.dtype],
            output_shapes=[None],
        )
    return check(
        tf.equal(tf.rank(value), spec.shape.rank),
        f"`{spec.name}` must be a tensor of rank {spec.shape.rank}. Received "
        "the shape:",
        tf.shape(value),
    )
