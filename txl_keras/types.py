"""Types in the signatures of exported names."""

import os
from typing import Any

import keras

# A tensor of Keras's backend, or a NumPy array; shapes are in docstrings.
Tensor = Any
Shape = tuple[int | None, ...]
DType = str | keras.DTypePolicy
PathLike = str | os.PathLike
