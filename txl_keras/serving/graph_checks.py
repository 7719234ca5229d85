"""Checks of the inputs of a SavedModel, which run in the graph.

Each returns the tensor that it checks. What uses this tensor runs only if the
check holds; otherwise the graph raises `InvalidArgumentError`.
"""

import inspect

import tensorflow as tf

from txl_keras.checks import checked


def check_not_empty(name, lengths):
    """Checks that every text has a token, by their lengths `(B,)`."""
    return checked(
        lengths,
        tf.reduce_all(lengths >= 1),
        f"`{name}` must have at least one token in every row. Received the "
        "lengths:",
        lengths,
    )


def traced(function, specs, max_batch_size, defaults=()):
    """Makes a `tf.function` that checks the ranks and rows of its inputs."""
    # Its arguments have the names of `specs`, and `defaults` by their names.
    # The default of a signature must be a tensor.
    arguments = inspect.Signature(
        [
            inspect.Parameter(
                spec.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=tf.constant(defaults[spec.name])
                if spec.name in defaults
                else inspect.Parameter.empty,
            )
            for spec in specs
        ]
    )

    def call(*args, **kwargs):
        inputs = arguments.bind(*args, **kwargs).args
        inputs = list(map(_check_rank, specs, inputs))
        for i, spec in enumerate(specs):
            if spec.shape.rank:
                inputs[i] = checked(
                    inputs[i],
                    tf.shape(inputs[i])[0] <= max_batch_size,
                    f"`{spec.name}` must have at most {max_batch_size} rows. "
                    "Received the shape:",
                    tf.shape(inputs[i]),
                )
        return function(*inputs)

    call.__signature__ = arguments
    return tf.function(call, specs, autograph=False)


def _check_rank(spec, value):
    # TensorFlow assumes the rank of the signature and would optimize the check
    # away. It cannot infer the rank of the value of an optional.
    # Only floats are placed on accelerators anyway.
    with tf.device(None if value.dtype.is_floating else "CPU:0"):
        (unknown,) = tf.raw_ops.OptionalGetValue(
            optional=tf.raw_ops.OptionalFromValue(components=[value]),
            output_types=[value.dtype],
            output_shapes=[None],
        )
    return checked(
        value,
        tf.equal(tf.rank(unknown), spec.shape.rank),
        f"`{spec.name}` must be a tensor of rank {spec.shape.rank}. Received "
        "the shape:",
        tf.shape(unknown),
    )
