"""Gradients, graphs and their errors on every backend of Keras."""

import contextlib

import keras
import numpy as np
import pytest
from keras import ops

BACKEND = keras.backend.backend()


def gradients(loss, variables, *inputs):
    """Returns what `loss(*inputs)` does, and gradients of its first result.

    Args:
        loss: Function that returns a scalar, or a tuple that starts with one.
        variables: Keras variables.
        *inputs: Tensors.

    Returns:
        The results of `loss`, and a list of tensors: gradients by the inputs
        and by the variables, zeros where the loss does not depend on them.
    """
    return differentiated(loss, variables, len(inputs))(*inputs)


drops_checks = pytest.mark.skipif(
    BACKEND == "torch", reason="PyTorch checks values at once on a CPU"
)


@contextlib.contextmanager
def refused(message):
    """Expects an error of a compiled program, or NaN in what it appends."""
    # XLA drops checks, and JAX has nothing but XLA.
    if BACKEND == "jax":
        found = []
        yield found
        assert np.isnan(np.concatenate([np.ravel(x) for x in found])).any()
        return
    error = ValueError
    if BACKEND == "tensorflow":
        import tensorflow as tf

        error = tf.errors.InvalidArgumentError
    with pytest.raises(error, match=message):
        yield []


def differentiated(loss, variables, num_inputs=0):
    """Function that returns `gradients` by the first of its arguments.

    On JAX, it is compiled once for all arguments of the same shapes.
    """
    differentiate = {
        "tensorflow": _by_tensorflow, "jax": _by_jax, "torch": _by_torch
    }[BACKEND](loss, variables)  # fmt: skip

    def run(*arguments):
        inputs = map(ops.convert_to_tensor, arguments[:num_inputs])
        return differentiate([*inputs], arguments[num_inputs:])

    return run


def _by_tensorflow(loss, variables):
    import tensorflow as tf

    def run(inputs, others):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            results = loss(*inputs, *others)
        found = tape.gradient(
            _first(results),
            [*inputs, *(variable.value for variable in variables)],
            unconnected_gradients="zero",
        )
        return results, [tf.convert_to_tensor(x) for x in found]

    return run


def _by_jax(loss, variables):
    import jax

    def call(inputs, values, others):
        pairs = zip(variables, values, strict=True)
        with keras.StatelessScope(state_mapping=pairs):
            results = loss(*inputs, *others)
        return _first(results), results

    differentiate = jax.jit(jax.grad(call, argnums=(0, 1), has_aux=True))

    def run(inputs, others):
        values = [variable.value for variable in variables]
        (by_inputs, by_values), results = differentiate(inputs, values, others)
        return results, [*by_inputs, *by_values]

    return run


def _by_torch(loss, variables):
    import torch

    def run(inputs, others):
        inputs = [x.detach().requires_grad_() for x in inputs]
        sources = [*inputs, *(variable.value for variable in variables)]
        results = loss(*inputs, *others)
        found = [None] * len(sources)
        if sources and _first(results).requires_grad:
            found = torch.autograd.grad(
                _first(results), sources, allow_unused=True
            )
        return results, [
            torch.zeros_like(source) if x is None else x
            for x, source in zip(found, sources, strict=True)
        ]

    return run


def _first(results):
    return results[0] if isinstance(results, tuple) else results


def compiled(function, **options):
    """The function as a graph, which PyTorch does without."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.function(function, **options)
    if BACKEND == "jax":
        import jax

        return jax.jit(function)
    return function


def dtype_of(tensor):
    """The name of a dtype, of which PyTorch has objects of its own."""
    return keras.backend.standardize_dtype(tensor.dtype)
