"""Imports Keras, and TensorFlow where it is used, without TensorFlow's log."""

from txl_keras.lazy import without_tensorflow_log

with without_tensorflow_log():
    import keras  # noqa: F401
