"""The weights of a model: by name, and made without a copy too many."""

import math

import keras
import numpy as np
import tensorflow as tf

# Bytes; kernels of TensorFlow and XLA assume that buffers begin so.
_ALIGNMENT = 64


def normal_initializer(stddev):
    """Initializer from a normal distribution; zeros if `stddev` is 0."""
    if stddev == 0:
        return UntouchedZeros()
    return keras.initializers.RandomNormal(stddev=stddev)


@keras.saving.register_keras_serializable(package="txl_keras")
class UntouchedZeros(keras.initializers.Initializer):
    """Zeros that take no memory until something is written to them.

    The weights of a file replace them, and large models are loaded in half
    the memory.
    """

    def __call__(self, shape, dtype=None):
        dtype = tf.as_dtype(dtype or keras.config.floatx())
        if dtype != tf.float32:
            return tf.zeros(shape, dtype)
        return _share(_aligned(shape, np.zeros))


def to_tensor(array):
    """Float32 tensor of an array of floats, which is copied once.

    `tf.convert_to_tensor` copies twice.
    """
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
    """The variables of a model, by what they are called inside of it.

    `tf.train.Checkpoint(model=...)` is not enough: of a Keras 3 model it
    leaves out, without a word, the layers that are kept in a list.

    Args:
        model: The model.

    Returns:
        Dictionary such as `{"block_0/attention/query/kernel": variable}`.
    """
    # The first part of a path is the name of the model, which counts up.
    return {
        weight.path.split("/", 1)[1]: weight.value for weight in model.weights
    }
