"""Export as a SavedModel, and what a server needs to generate text."""

import txl_keras.needs_tensorflow  # noqa: F401

from txl_keras.models.generation.text_stream import TextStream
from txl_keras.samplers.sampler import Sampler
from txl_keras.serving.export import export
from txl_keras.serving.export_classifier import export_classifier

__all__ = ["Sampler", "TextStream", "export", "export_classifier"]
