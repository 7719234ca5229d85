"""Text generation, and export as a SavedModel."""

from txl_keras.serving.export import export
from txl_keras.serving.export import export_text
from txl_keras.serving.export_classifier import export_classifier
from txl_keras.serving.generation import Generator
from txl_keras.serving.samplers import Sampler
from txl_keras.serving.streaming import TextStream

__all__ = [
    "Generator",
    "Sampler",
    "TextStream",
    "export",
    "export_classifier",
    "export_text",
]
