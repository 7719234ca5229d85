"""Lets tests, and NumPy's asserts, read tensors that have gradients."""

import sys

import keras
import numpy as np
import torch

_to_array = torch.Tensor.__array__


def _detached(self, dtype=None, copy=None):
    # What the package does not detach itself is an error.
    caller = sys._getframe(1).f_globals.get("__name__", "")
    if caller.split(".")[0] in ("txl_keras", "keras"):
        return _to_array(self, dtype)
    return np.asarray(keras.ops.convert_to_numpy(self), dtype)


torch.Tensor.__array__ = _detached
