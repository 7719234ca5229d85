"""Types in the signatures of what the package exports."""

import os
from typing import Any

import keras

# Of the backend of Keras, or a NumPy array; shapes are in docstrings.
Tensor = Any
Shape = tuple[int | None, ...]
DType = str | keras.DTypePolicy
PathLike = str | os.PathLike
