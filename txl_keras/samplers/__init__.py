"""Ways to choose the next tokens of a text."""

from txl_keras.samplers.sampler import Sampler

__all__ = ["Sampler"]
