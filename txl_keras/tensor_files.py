"""Tensors by name in files, and the safetensors format.

Such a file has the length of a JSON header (8 bytes), the header, and the
values of the tensors without gaps. Reading one runs no code.

A matrix can be stored as int8 beside a tensor of float32 scales, `NAME/scale`,
one per row or per column. It is read as their product.
"""

import collections.abc
import json
import math

import ml_dtypes
import numpy as np
import tensorflow as tf

from txl_keras.checks import shown
from txl_keras.json_files import MAX_BYTES
from txl_keras.json_files import open_checked
from txl_keras.json_files import parse_json

_MIN_ITEM_BYTES = 2
_MAX_RANK = 32
_SCALE = "/scale"
_MAX_INT8 = 127
# The names of this format; integers can be skipped, but not loaded.
_DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    **{f"{kind}{8 * size}": np.dtype(f"<{kind.lower()}{size}")
       for kind in "IU" for size in (1, 2, 4, 8)},
    "BOOL": np.dtype("?"),
}  # fmt: skip


class Tensors(collections.abc.Mapping):
    """Maps the names of a file's tensors to arrays, read on every access."""

    def __init__(self, shapes, load, num_bytes):
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.num_bytes = num_bytes
        self._load = load

    def __getitem__(self, name):
        array = self._load(name)
        dtype = tf.as_dtype(array.dtype)
        if not dtype.is_floating or dtype.size < _MIN_ITEM_BYTES:
            raise ValueError(
                f"{shown(name)} must be of floats of 16 to 64 bits. "
                f"Received: {dtype.name}"
            )
        return array

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
    # Reads only the header; it must account for every byte of the file.
    file = open_checked(path, math.inf)  # stays open, to read tensors later
    try:
        places, start = _read_header(file)
        scales = _find_scales(places)
    except ValueError as error:
        raise ValueError(
            f"{path} cannot be read; it is damaged or cut short: {error}"
        ) from error

    def load_stored(name):
        dtype, shape, begin, end = places[name]
        file.seek(start + begin)
        return np.frombuffer(file.read(end - begin), dtype).reshape(shape)

    def load(name):
        array = load_stored(name)
        if array.dtype == np.int8 and name not in scales:
            raise ValueError(
                f"{path} is damaged: {shown(name)} is of int8, and there is no "
                f"{shown(name + _SCALE)}"
            )
        if name not in scales:
            return array
        scale = load_stored(scales[name])
        if not (np.isfinite(scale) & (scale > 0)).all():
            raise ValueError(
                f"{path} is damaged: {shown(scales[name])} must have positive "
                "finite numbers"
            )
        return array * scale

    names = places.keys() - set(scales.values())
    return Tensors(
        {name: places[name][1] for name in places if name in names},
        load,
        file.size(),
    )


def _read_header(file):
    """Returns the places of all tensors by name, and where the data begins."""
    length = int.from_bytes(file.read(8), "little")
    start = 8 + length
    if not 8 < start <= file.size():
        raise ValueError(f"its header has {length:,} bytes")
    if length > MAX_BYTES:
        raise ValueError(
            f"its header has {length:,} bytes, and at most {MAX_BYTES:,} are "
            "read"
        )
    header = parse_json(file.read(length), "its header")
    header.pop("__metadata__", None)
    places = {name: _place(name, entry) for name, entry in header.items()}
    at = 0
    for _, _, begin, end in sorted(
        places.values(), key=lambda place: place[2:]
    ):
        if begin != at:
            raise ValueError("its tensors overlap, or leave gaps")
        at = end
    if start + at != file.size():
        raise ValueError(
            f"its tensors take {at:,} bytes, and it has "
            f"{file.size() - start:,} bytes of them"
        )
    return places, start


def _place(name, entry):
    """Returns dtype, shape, begin and end of a tensor in a header."""
    entry = entry if isinstance(entry, dict) else {}
    dtype = _DTYPES.get(str(entry.get("dtype")))
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    for sizes in (shape, offsets):
        if (
            not isinstance(sizes, list)
            or len(sizes) > _MAX_RANK
            or not all(type(size) is int and size >= 0 for size in sizes)
        ):
            raise ValueError(f"its header describes no tensor {shown(name)}")
    if dtype is None:
        raise ValueError(
            f"{shown(name)} must be of one of the dtypes {[*_DTYPES]}. "
            f"Received: {shown(entry.get('dtype'))}"
        )
    if len(offsets) != 2 or (
        offsets[1] - offsets[0] != math.prod(shape) * dtype.itemsize
    ):
        raise ValueError(
            f"{shown(name)} of shape {shown(shape)} does not take the bytes "
            f"{shown(offsets)}"
        )
    return dtype, tuple(shape), *offsets


def _find_scales(places):
    """Returns the names of scales by the names of the int8 tensors."""
    scales = {}
    for name, (dtype, shape, *_) in places.items():
        if dtype != np.int8 or name + _SCALE not in places:
            continue
        scales[name] = name + _SCALE
        scale_dtype, scale_shape, *_ = places[name + _SCALE]
        if scale_dtype != np.float32:
            raise ValueError(
                f"{shown(name + _SCALE)} must be of dtype F32. Received: "
                f"{scale_dtype.name}"
            )
        if len(scale_shape) != len(shape) or any(
            size not in (1, expected)
            for size, expected in zip(scale_shape, shape, strict=True)
        ):
            raise ValueError(
                f"{shown(name + _SCALE)} must have the shape of "
                f"{shown(name)}, {shape}, or 1 in place of a size. Received: "
                f"{shown(scale_shape)}"
            )
    return scales


def int8_with_scale(name, array):
    """Rounds a matrix to int8, with one scale per row or per column."""
    # A kernel with more axes counts as a matrix, as nearly square as their
    # order allows. Of rows and columns, those are taken whose scales, and so
    # errors, are smaller.
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
    scale = min(largest, key=lambda m: np.mean(m, dtype=float)) / np.float32(
        _MAX_INT8
    )
    # The largest float32 over 127, times 127, may be infinite.
    limits = np.finfo(np.float32)
    limit = np.nextafter(limits.max / np.float32(_MAX_INT8), np.float32(0))
    scale = np.clip(scale, limits.tiny, limit)
    values = np.rint(array / scale).astype(np.int8)
    return {name: values, name + _SCALE: scale}


def write_safetensors(arrays, path, metadata=None, dtype="float32"):
    """Writes arrays by name to a safetensors file, local or remote."""
    # Arrays of int8 are written as they are, others as `dtype`.
    code = {"float32": "F32", "bfloat16": "BF16"}[dtype]
    codes = {n: "I8" if a.dtype == np.int8 else code for n, a in arrays.items()}
    header, at = {"__metadata__": metadata} if metadata else {}, 0
    for name, array in arrays.items():
        end = at + _DTYPES[codes[name]].itemsize * math.prod(array.shape)
        header[name] = {
            "dtype": codes[name],
            "shape": list(array.shape),
            "data_offsets": [at, end],
        }
        at = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)  # aligns the data
    with tf.io.gfile.GFile(str(path), "wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for name, array in arrays.items():
            file.write(np.asarray(array, _DTYPES[codes[name]]).tobytes())
