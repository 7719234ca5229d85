"""The backend of Keras, and TensorFlow, which other backends do without."""

from typing import TYPE_CHECKING

import keras

from txl_keras.lazy import import_extra

# On other backends, layers compute only with `keras.ops`.
ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
ON_TORCH = keras.backend.backend() == "torch"


class _TensorFlow:
    """Imports TensorFlow when one of its names is first used."""

    def __getattr__(self, name):
        value = getattr(import_extra("tensorflow", f" for `tf.{name}`"), name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = _TensorFlow()
