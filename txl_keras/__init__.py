"""Transformer-XL for Keras 3 and TensorFlow."""

import importlib

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


def __getattr__(name):
    # On first use: `txl --help` does not wait seconds for TensorFlow.
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return [*globals(), *__all__]
