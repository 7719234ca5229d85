"""Names the weights of a model, and creates them without copies."""

import math
import random
import re

import keras
import numpy as np
from keras import ops

from txl_keras.backend import ON_TENSORFLOW
from txl_keras.backend import tf
from txl_keras.keras_internals import shapes_alone

# Matches lists of layers, such as blocks.
_FIRST_LAYER = re.compile(r"^([a-z_]+)_0/")
_STDDEVS = ("initializer_stddev", "projection_initializer_stddev")
# In bytes. Kernels of TensorFlow and XLA assume this alignment of buffers.
_ALIGNMENT = 64


def takes_weight_decay(variable):
    """Returns whether weight decay applies: not to biases and layer norms."""
    is_norm = variable.name in ("gamma", "beta")
    return "bias" not in variable.name and not is_norm


def normal_initializer(stddev):
    """Returns a normal initializer, or one of zeros if `stddev` is 0."""
    if stddev == 0:
        return UntouchedZeros()
    return keras.initializers.RandomNormal(stddev=stddev)


@keras.saving.register_keras_serializable(package="txl_keras")
class UntouchedZeros(keras.initializers.Initializer):
    """Initializes with zeros whose pages are not allocated until written."""

    # A large model loads in half the memory, because the weights in the file
    # replace them.

    def __call__(self, shape, dtype=None):
        dtype = keras.backend.standardize_dtype(dtype or keras.config.floatx())
        # A graph cannot hold a tensor of this process.
        if (
            not ON_TENSORFLOW
            or dtype != "float32"
            or not tf.executing_eagerly()
        ):
            return ops.zeros(shape, dtype)
        return _share(_aligned(shape, np.zeros))


def build_in_graph(build):
    """Builds a model that allocates no weights, to read their shapes."""
    # Building draws random seeds, which would change later initial weights.
    state = random.getstate()
    try:
        return shapes_alone(build)
    finally:
        random.setstate(state)


def of_all_layers(first, num_layers):
    """Repeats the items of the first layer under the names of all layers."""
    return {
        _FIRST_LAYER.sub(rf"\g<1>_{layer}/", name): value
        for name, value in first.items()
        for layer in range(num_layers)
    }


def build_undrawn(build, config):
    """Builds a model of zeros, whose weights a file will replace."""
    # Drawing weights takes seconds and three times their memory. `build` reads
    # the arguments of the backbone from `config`.
    stddevs = {name: config[name] for name in _STDDEVS if name in config}
    config.update(dict.fromkeys(stddevs, 0.0))
    model = build()
    for name, value in stddevs.items():
        setattr(getattr(model, "backbone", model), name, value)
    return model


def to_tensor(array):
    """Copies an array of floats once; `tf.convert_to_tensor` copies twice."""
    if not ON_TENSORFLOW:
        return np.asarray(array, np.float32)
    copy = _aligned(array.shape, np.empty)
    np.copyto(copy, array, casting="same_kind")
    return _share(copy)


def _aligned(shape, make):
    num_bytes = 4 * math.prod(shape)
    buffer = make(num_bytes + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    return buffer[start : start + num_bytes].view(np.float32).reshape(shape)


def _share(array):
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def weights_by_name(model):
    """Returns variables by path, such as `"block_0/attention/query/kernel"`."""
    # `tf.train.Checkpoint(model=...)` silently omits layers that a Keras 3
    # model keeps in a list.
    # A path begins with the model's name, to which Keras appends a number.
    return {
        weight.path.split("/", 1)[1]: weight.value if ON_TENSORFLOW else weight
        for weight in model.weights
    }
