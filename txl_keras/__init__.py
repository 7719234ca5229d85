"""Transformer-XL for Keras 3 and TensorFlow."""

from txl_keras.lazy import on_first_use

__version__ = "0.1.0"
__all__ = [
    "callbacks",
    "checkpoints",
    "data",
    "evaluation",
    "layers",
    "metrics",
    "models",
    "samplers",
    "serving",
    "training",
]
# `txl --help` does not wait seconds for TensorFlow.
__getattr__, __dir__ = on_first_use(__name__)
