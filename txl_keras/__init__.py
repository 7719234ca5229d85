"""Transformer-XL for Keras 3 and TensorFlow.

Letters, unless a file names others: `B` batch, `T` segment, `M` memory, `S` =
M + T keys, `N` heads, `H` head size, `D` hidden size, `V` vocabulary, `L`
layers, `R` distances.
"""

import os

# Before TensorFlow is imported: see `without_tensorflow_log`.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from txl_keras.lazy import on_first_use  # noqa: E402

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
