"""Reads and writes tensors by name in files, such as safetensors.

A matrix can be stored as int8, with a tensor of float32 scales, `NAME/scale`,
one per row or per column. Reading it returns their product.
"""

import collections.abc
import math
import os
import tempfile

import ml_dtypes
import numpy as np
import safetensors.numpy

from txl_keras import gfile
from txl_keras.checks import shown
from txl_keras.json_files import open_checked

MIN_ITEM_BYTES = 2
_SCALE = "/scale"
_MAX_INT8 = 127


class Tensors(collections.abc.Mapping):
    """Maps the names of a file's tensors to arrays, read on every access."""

    def __init__(self, shapes, load, num_bytes, int8=()):
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.num_bytes = num_bytes
        # Names of int8 tensors without scales, which only `read` reads.
        self.int8 = frozenset(int8)
        self._load = load

    def __getitem__(self, name):
        array = self._load(name)
        dtype = array.dtype
        if "float" not in dtype.name or dtype.itemsize < MIN_ITEM_BYTES:
            raise ValueError(
                f"{shown(name)} must be of floats of 16 to 64 bits. "
                f"Received: {dtype.name}"
            )
        return array

    def read(self, name):
        """Returns an array of any type, such as those named in `int8`."""
        return self._load(name)

    def __contains__(self, name):
        # The inherited method would read the tensor.
        return name in self.shapes

    def __iter__(self):
        return iter(self.shapes)

    def __len__(self):
        return len(self.shapes)

    def renamed(self, rename):
        """Returns the tensors under new names, without those named `None`."""
        old = {rename(name): name for name in self.shapes}
        old.pop(None, None)
        return Tensors(
            {new: self.shapes[name] for new, name in old.items()},
            lambda new: self._load(old[new]),
            self.num_bytes,
        )


def read_safetensors(path):
    """Returns the `Tensors` of a safetensors file, local or remote."""
    # Reads only the header, which must account for every byte of the file.
    open_checked(path, math.inf).close()
    # A file that is mapped into memory may outlive its name.
    with tempfile.TemporaryDirectory() as folder:
        local = os.fspath(path)
        if "://" in local:
            local = os.path.join(folder, "model.safetensors")
            gfile.copy(path, local)
        try:
            file = safetensors.safe_open(local, "np")
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            shapes = {n: tuple(part.get_shape()) for n, part in slices.items()}
            dtypes = {n: part.get_dtype() for n, part in slices.items()}
            scales = _find_scales(shapes, dtypes)
        except (safetensors.SafetensorError, ValueError) as error:
            raise ValueError(
                f"{path} cannot be read; it is damaged or cut short: {error}"
            ) from error
        num_bytes = os.path.getsize(local)

    def load(name):
        tensor = file.get_tensor(name)
        return (
            tensor * file.get_tensor(scales[name]) if name in scales else tensor
        )

    hidden = set(scales.values())
    return Tensors(
        {name: shape for name, shape in shapes.items() if name not in hidden},
        load,
        num_bytes,
        [n for n, dtype in dtypes.items() if dtype == "I8" and n not in scales],
    )


def _find_scales(shapes, dtypes):
    """Returns the names of scales by the names of their int8 tensors."""
    scales = {}
    for name, shape in shapes.items():
        scale = name + _SCALE
        if dtypes[name] != "I8" or scale not in shapes:
            continue
        scales[name] = scale
        fits = len(shapes[scale]) == len(shape) and all(
            size in (1, expected)
            for size, expected in zip(shapes[scale], shape, strict=True)
        )
        if dtypes[scale] != "F32" or not fits:
            raise ValueError(
                f"{shown(scale)} must be F32 of the shape of {shown(name)}, "
                f"{shape}, or 1 in place of a size. Received: "
                f"{dtypes[scale]}, {shapes[scale]}"
            )
    return scales


def int8_with_scale(name, array):
    """Rounds a matrix to int8, with one scale per row or per column."""
    # A kernel with more axes counts as a matrix, as nearly square as the order
    # of axes allows. Scales are per row or per column, whichever gives smaller
    # scales and so smaller errors.
    split = min(
        range(1, array.ndim),
        key=lambda i: max(
            math.prod(array.shape[:i]), math.prod(array.shape[i:])
        ),
    )
    axes = (*range(array.ndim),)
    largest = [
        np.abs(array).max(reduced, keepdims=True, initial=0)
        for reduced in (axes[:split], axes[split:])
    ]
    largest = min(largest, key=lambda m: np.mean(m, dtype=float))
    tiny = np.finfo(np.float32).tiny  # for rows of zeros
    scale = np.maximum(largest / np.float32(_MAX_INT8), tiny)
    values = np.rint(array / scale).astype(np.int8)
    return {name: values, name + _SCALE: scale}


def write_safetensors(arrays, path, metadata=None, dtype="float32"):
    """Writes arrays by name to a safetensors file, local or remote."""
    # int8 arrays are written unchanged, others as `dtype`.
    dtype = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}[dtype]
    arrays = {
        name: np.asarray(
            array, np.int8 if array.dtype == np.int8 else dtype, order="C"
        )
        for name, array in arrays.items()
    }
    with gfile.GFile(os.fspath(path), "wb") as file:
        file.write(safetensors.numpy.save(arrays, metadata))


def shapes_of(variables):
    """Returns the shapes of variables by name."""
    return {name: tuple(v.shape) for name, v in variables.items()}


def check_shapes(path, saved, expected):
    """Raises `ValueError` unless a checkpoint has these shapes."""
    # In the groups of `expected`, such as weights or optimizer, there must be
    # no other variables. The caller checks results.
    groups = {name.split("/")[0] for name in expected} - {"results"}
    problems = [
        f"{name} is missing" if name not in saved
        else f"{name} is {saved[name]}, not {shape}"
        for name, shape in expected.items()
        if saved.get(name) != shape
    ]  # fmt: skip
    problems += [
        f"{name} is not in this model or its optimizer"
        for name in sorted(saved.keys() - expected)
        if name.split("/")[0] in groups
    ]
    if problems:
        more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise ValueError(
            f"{path} is of another model: {'; '.join(problems[:3])}{more}. "
            "Bring back the config.json that it was saved with, or build the "
            "model with the same sizes."
        )


def first_not_finite(state):
    """Returns the name of the first array with NaN or infinity, if any."""
    for name, value in state.items():
        # Results may be infinite: those of steps that float16 skipped.
        if name.startswith("results/"):
            continue
        # NumPy has no bfloat16: its kind is "V".
        values = value.astype("float32") if value.dtype.kind == "V" else value
        if not np.isfinite(values).all():
            return name
    return None
