"""Checks of the inputs of a SavedModel, which run in the graph.

Each function returns an operation that raises `InvalidArgumentError` if the
check fails. Everything that must not run then needs a control dependency on it.
"""

import functools

import tensorflow as tf


def check(condition, *message):
    """Checks a scalar condition; `message` holds strings and tensors."""
    return tf.debugging.Assert(condition, message, summarize=8)


def check_not_empty(name, lengths):
    """Checks that every text has a token, by their lengths `(B,)`."""
    return check(
        tf.reduce_all(lengths >= 1),
        f"`{name}` must have at least one token in every row. Received the "
        "lengths:",
        lengths,
    )


def check_range(name, values, low, high):
    """Checks that all values are in `[low, high]`."""
    return check(
        tf.reduce_all((values >= low) & (values <= high)),
        f"`{name}` must be at least",
        low,
        "and at most",
        high,
        "Received: numbers from",
        tf.reduce_min(values),
        "to",
        tf.reduce_max(values),
    )


def check_shape(name, value, shape, meaning):
    """Checks the shape of a tensor; `meaning` is the shape in letters."""
    return check(
        tf.reduce_all(tf.equal(tf.shape(value), shape)),
        f"`{name}` must have the shape {meaning}:",
        tf.convert_to_tensor(shape),
        "Received:",
        tf.shape(value),
    )


def check_finite(name, value):
    """Checks that a float tensor has neither NaN nor infinity."""
    # `tf.debugging.check_numerics` is ten times slower on a CPU.
    return check(
        tf.reduce_all(tf.math.is_finite(value)),
        f"`{name}` must be finite. Received: NaN or infinity",
    )


def check_distinct(name, values):
    """Checks that all values `(B,)` are different."""
    return check(
        tf.size(tf.unique(values)[0]) == tf.size(values),
        f"`{name}` must not contain a number twice. Received:",
        values,
    )


def with_checked_inputs(function, specs, max_batch_size):
    """Wraps a function so that it checks the ranks and rows of its inputs."""
    # TensorFlow accepts inputs of any rank. An operation would then fail
    # without naming the argument, or compute nonsense.

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
    # TensorFlow assumes the rank of the signature and would optimize the check
    # away. It cannot infer the rank of the value of an optional.
    # Only floats are placed on accelerators anyway.
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
