"""Transformer-XL for Keras 3 and TensorFlow."""

from txl_keras import checkpoints
from txl_keras import data
from txl_keras import layers
from txl_keras import metrics
from txl_keras import models
from txl_keras import serving

__all__ = ["checkpoints", "data", "layers", "metrics", "models", "serving"]
