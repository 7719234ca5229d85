"""Transformer-XL for Keras 3 and TensorFlow."""

# ruff: noqa: E402
import keras

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        "txl_keras needs the TensorFlow backend of Keras: set KERAS_BACKEND="
        "tensorflow in the environment, before `import keras`. Received: "
        f"KERAS_BACKEND={keras.backend.backend()}"
    )

from txl_keras import checkpoints
from txl_keras import data
from txl_keras import layers
from txl_keras import metrics
from txl_keras import models
from txl_keras import serving

__version__ = "0.1.0"
__all__ = ["checkpoints", "data", "layers", "metrics", "models", "serving"]
