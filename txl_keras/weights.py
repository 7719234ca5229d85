"""Helpers to initialize, copy and name the weights of a model."""

import math

import keras
import numpy as np
import tensorflow as tf

# Bytes. Kernels of TensorFlow and XLA assume this alignment of buffers.
_ALIGNMENT = 64


def normal_initializer(stddev):
    """Returns a normal initializer, or one of zeros if `stddev` is 0."""
    if stddev == 0:
        return keras.initializers.Zeros()
    return keras.initializers.RandomNormal(stddev=stddev)


def to_tensor(array):
    """Copies an array of floats once; `tf.convert_to_tensor` copies twice."""
    num_bytes = 4 * math.prod(array.shape)
    buffer = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    copy = buffer[start : start + num_bytes].view(np.float32)
    copy = copy.reshape(array.shape)
    np.copyto(copy, array, casting="same_kind")
    return tf.experimental.dlpack.from_dlpack(copy.__dlpack__())


def weights_by_name(model):
    """Returns variables by path, such as `"block_0/attention/query/kernel"`."""
    # `tf.train.Checkpoint(model=...)` silently omits layers that a Keras 3
    # model keeps in a list.
    # A path begins with the model's name, to which Keras appends a number.
    return {
        weight.path.split("/", 1)[1]: weight.value for weight in model.weights
    }
