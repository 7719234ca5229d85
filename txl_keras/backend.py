"""The backend of Keras, and TensorFlow, which the other ones do without."""

from typing import TYPE_CHECKING

import keras

from txl_keras.lazy import import_extra

# On other backends layers compute with `keras.ops` alone.
ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
ON_TORCH = keras.backend.backend() == "torch"


class _TensorFlow:
    """TensorFlow, which is imported when a name of it is first used."""

    def __getattr__(self, name):
        value = getattr(import_extra("tensorflow", f" for `tf.{name}`"), name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = _TensorFlow()
