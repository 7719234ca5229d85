"""How the operations of layers are put together on a CPU.

A TPU or a GPU runs steps that XLA compiled as a whole. On a CPU XLA's products
of matrices are no faster than TensorFlow's, in bfloat16 half as fast, and it
compiles the step of a model of 16 layers for a minute. There a step is a graph
of TensorFlow's products, and XLA compiles what lies between them: small
functions, each once for all layers, which TensorFlow alone would do in many
passes over memory.
"""

import contextlib
import functools

import tensorflow as tf

_is_in_parts = False


@contextlib.contextmanager
def compiled_in_parts():
    """Where a graph is traced whose layers compile their own parts."""
    global _is_in_parts
    before, _is_in_parts = _is_in_parts, True
    try:
        yield
    finally:
        _is_in_parts = before


def is_compiled_in_parts():
    """Whether this is inside of `compiled_in_parts`."""
    return _is_in_parts


def in_parts(function):
    """Makes a graph of a function, whose layers compile their own parts.

    Args:
        function: Function of tensors.

    Returns:
        `tf.function`.
    """

    def traced(*args):
        with compiled_in_parts():
            return function(*args)

    # Without AutoGraph, which would look for Python's `if` on tensors, in all
    # functions that are called from here, for seconds.
    return tf.function(traced, autograph=False)


def fused(function):
    """Lets XLA compile a function where graphs are compiled in parts.

    Args:
        function: Function of tensors and of hashable Python values. It must
            get all it needs as arguments, since it is traced once for all
            layers that call it with the same shapes.

    Returns:
        Function of the same arguments.
    """
    compiled = tf.function(function, jit_compile=True, autograph=False)

    @functools.wraps(function)
    def call(*args):
        if is_compiled_in_parts() and not tf.executing_eagerly():
            return compiled(*args)
        return function(*args)

    return call
