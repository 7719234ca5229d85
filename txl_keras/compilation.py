"""Functions of one replica, compiled for the device of a strategy."""

import dataclasses
import functools

import keras

from txl_keras.backend import ON_TENSORFLOW
from txl_keras.backend import ON_TORCH
from txl_keras.backend import tf
from txl_keras.keras_internals import shapes_alone
from txl_keras.layers.compute.target import compile_for
from txl_keras.layers.compute.target import current


def describe(strategy):
    """Returns the number and kind of replicas, such as "2 x GPU"."""
    device = device_of(strategy).upper().replace("TPU", "TPU core")
    return f"{strategy.num_replicas_in_sync} x {device}"


def device_of(strategy):
    """Returns the kind of the replicas: `"cpu"`, `"gpu"` or `"tpu"`."""
    # A CPU may build steps for a TPU.
    is_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
    if is_tpu or current().device == "tpu":
        return "tpu"
    if isinstance(strategy, tf.distribute.MirroredStrategy):
        # The CPU may be split even on a machine with GPUs.
        return strategy.extended.worker_devices[0].split(":")[-2].lower()
    return "gpu" if tf.config.list_logical_devices("GPU") else "cpu"


def specs_of(function):
    """Returns the specs of what a function without arguments returns."""
    if not ON_TENSORFLOW:
        return shapes_alone(function)
    function = compile_function(function)
    return function.get_concrete_function().structured_outputs


def compile_function(function, weights=(), **options):
    """Compiles a function of tensors that reads weights.

    `options` are passed to `tf.function`.
    """
    if ON_TENSORFLOW:
        return tf.function(function, autograph=False, **options)
    return compile_stateful(function, weights, [])


def compile_for_any_rows(function):
    """Traces a function of tensors `(B, ...)` and scalars once for every B."""
    function = tf.function(function, autograph=False)
    traced = functools.cache(function.get_concrete_function)

    def spec(x):
        if x is None:
            return None
        rows = [None] * min(x.ndim, 1)
        return tf.TensorSpec([*rows, *x.shape[1:]], x.dtype)

    def call(*args):
        return traced(*map(spec, args))(*args)

    return call


def compile_stateful(function, weights, state):
    """Compiles a function that reads Keras variables and assigns `state`."""
    if ON_TORCH:
        import torch

        return torch.no_grad()(function)
    import jax

    @functools.partial(jax.jit, donate_argnums=0)
    def compiled(values, weight_values, args):
        variables = [*state, *weights], [*values, *weight_values]
        pairs = [*zip(*variables, strict=True)]
        with keras.StatelessScope(pairs) as scope:
            result = function(*args)
        return result, [scope.get_current_value(v) for v in state]

    def call(*args):
        result, values = compiled(
            [v.value for v in state], [w.value for w in weights], args
        )
        for variable, value in zip(state, values, strict=True):
            variable.take(value)
        return result

    return call


def compile_layers(
    function,
    strategy,
    model=None,
    training=False,
    attention=None,
    jit_compile=True,
):
    """Compiles one replica's work between collectives to a `tf.function`."""
    if jit_compile is None:  # to be run eagerly
        return function
    # The layers of a `model` or a backbone may be compiled in parts on a CPU
    # where that is faster: see `txl_keras.layers.compute.target`.
    target = current()
    if model is not None:
        backbone = getattr(model, "backbone", model)
        target = backbone.target(device_of(strategy), training)
        target = dataclasses.replace(
            target,
            in_parts=target.in_parts and jit_compile,
            attention=attention,
        )
    # `TPUStrategy` compiles whole steps by itself.
    is_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
    return compile_for(target, function, jit_compile and not is_tpu)
