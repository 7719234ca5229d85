"""A reader of files of `torch.save` that does not need PyTorch.

Such a file has a pickle, which `safe_pickle` reads, and the values of tensors.
The names listed here may be in the pickles of the original code's models. None
of them is imported or called.
"""

import contextlib
import io
import itertools
import mmap
import operator
import os
import struct
import zipfile
import zlib

import ml_dtypes
import numpy as np

from txl_keras.checkpoints import safe_pickle
from txl_keras.checkpoints.safe_pickle import Record
from txl_keras.checks import shown
from txl_keras.tensor_files import Tensors

_ZIP_MAGIC = b"PK\x03\x04"
_MAX_DIRECTORY_BYTES = 8 << 20  # of a zip file; takes 13 times as much memory
# Limits for a model that was saved whole; only a malicious file exceeds them.
_MAX_MODULES = 1 << 16
_MAX_NAME = 1000
# What torch.nn.DataParallel and torch.compile put before the names of tensors.
_WRAPPERS = ("module.", "_orig_mod.")
_DTYPES = {
    f"torch.{kind}Storage": np.dtype(dtype)
    for kind, dtype in {
        "BFloat16": ml_dtypes.bfloat16,
        "Bool": "?",
        "Byte": "u1",
        "Char": "i1",
        "Double": "<f8",
        "Float": "<f4",
        "Half": "<f2",
        "Int": "<i4",
        "Long": "<i8",
        "Short": "<i2",
    }.items()
}
_TENSORS = ("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2")
_PARAMETER = "torch._utils._rebuild_parameter"
_TORCH_NAME = (
    r"torch\.(\w+Storage|storage\.\w+Storage|b?float\d+|half|double|u?int\d+"
    r"|long|bool|device|Size)"
)
_NAMES = {
    *_TENSORS,
    _PARAMETER,
    "argparse.Namespace",
    *(
        ".".join(parts)
        for parts in itertools.product(
            ("utils.vocabulary", "vocabulary"), ("Vocab", "OpenAIVocab")
        )
    ),
    *(
        f"mem_transformer.{name}"
        for name in (
            "AdaptiveEmbedding",
            "DecoderLayer",
            "MemTransformerLM",
            "MultiHeadAttn",
            "PositionalEmbedding",
            "PositionwiseFF",
            "RelLearnableDecoderLayer",
            "RelLearnableMultiHeadAttn",
            "RelPartialLearnableDecoderLayer",
            "RelPartialLearnableMultiHeadAttn",
        )
    ),
    "proj_adaptive_softmax.ProjectedAdaptiveLogSoftmax",
    "utils.proj_adaptive_softmax.ProjectedAdaptiveLogSoftmax",
    *(
        f"torch.nn.modules.{name}"
        for name in (
            "activation.ReLU",
            "container.ModuleList",
            "container.ParameterList",
            "container.Sequential",
            "dropout.Dropout",
            "linear.Linear",
            "normalization.LayerNorm",
            "sparse.Embedding",
        )
    ),
    "torch.nn.parallel.data_parallel.DataParallel",
    "torch.nn.backends.thnn._get_thnn_function_backend",  # before 1.3
}


class _Storage:
    """Holds the data of tensors in a file, and its kind, a class of PyTorch."""

    def __init__(self, kind):
        self.kind = kind
        self.data = None  # a memoryview of the file, once it is found


class _BoundedReader(io.BufferedReader):
    """Prevents `zipfile` from reading a huge directory."""

    def read(self, size=-1):
        if size > _MAX_DIRECTORY_BYTES:
            raise ValueError(f"its directory has {size:,} bytes")
        return super().read(size)


@contextlib.contextmanager
def mapped(path):
    """Maps a file into memory, so that bytes are read when they are used."""
    if not os.path.isfile(path):
        raise FileNotFoundError(f"There is no file {path}.")
    with open(path, "rb") as file:
        if not file.seek(0, io.SEEK_END):
            yield b""
            return
        # It stays open, since arrays may still refer to it.
        yield mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def is_zip(data):
    """Checks whether a file may be a zip file of `torch.save`."""
    return data[:4] == _ZIP_MAGIC


def load_object(path, data, names, pattern="", load_persistent=None):
    """Reads the object in a plain pickle or in a file of `torch.save`.

    Also returns the members of the zip file by name, or the keys of the
    storages that follow the pickle, and its end.
    """
    allowed = names, pattern, load_persistent
    if not is_zip(data):
        return safe_pickle.load(path, 0, *allowed)
    members = _zip_members(path, data)
    name = _find_pickle(members, data)
    start, end, _ = members[name]
    content, _, found = safe_pickle.load(path, start, *allowed)
    if found > end:
        raise ValueError("the pickle is longer than data.pkl")
    members = {
        member.removeprefix(name.removesuffix("data.pkl")): place
        for member, place in members.items()
    }
    return content, members, None


def _zip_members(path, data):
    """Returns `(start, end, checksum)` of a zip file's members by name."""
    members = {}
    try:
        with (
            _BoundedReader(io.FileIO(path)) as file,
            zipfile.ZipFile(file) as archive,
        ):
            for info in archive.infolist():
                start = info.header_offset + 30
                # The member's own header, which other tools may write longer.
                lengths = struct.unpack("<HH", data[start - 4 : start])
                start += sum(lengths)
                end = start + info.file_size
                is_plain = info.compress_type == zipfile.ZIP_STORED
                is_inside = 30 <= start <= end <= len(data)
                if not is_plain or not is_inside or info.flag_bits & 1:
                    raise ValueError(
                        f"{shown(info.filename)} is compressed, encrypted or "
                        "cut short, which torch.save does not write"
                    )
                if info.filename in members:
                    raise ValueError(
                        f"it has {shown(info.filename)} twice: which one is "
                        "meant cannot be known. Save the file again"
                    )
                members[info.filename] = start, end, info.CRC
    except (
        zipfile.BadZipFile,
        NotImplementedError,
        OSError,
        ValueError,
        struct.error,
    ) as error:
        raise ValueError(
            f"the zip file is truncated or damaged: {error}"
        ) from error
    return members


def _find_pickle(members, data):
    pickles = [name for name in members if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise ValueError(
            "it is a zip file but not of torch.save, which has one data.pkl. "
            f"Received: {shown([*members])}"
        )
    start, end, checksum = members[pickles[0]]
    with memoryview(data)[start:end] as pickled:
        if zlib.crc32(pickled) != checksum:
            raise ValueError(
                "the pickle is truncated or damaged: its checksum is wrong"
            )
    return pickles[0]


def load_torch(path):
    """Reads a file of `torch.save`; returns a whole module as a state dict."""
    storages = {}  # by key

    def load_persistent(persistent_id):
        kind, name, key, *_ = persistent_id
        if (
            kind != "storage"
            or type(name) is not Record
            or type(key) is not str
        ):
            raise ValueError("it has persistent data that is not a storage")
        return storages.setdefault(key, _Storage(name.name))

    try:
        with mapped(path) as data:
            loaded, beside, end = load_object(
                path, data, _NAMES, _TORCH_NAME, load_persistent
            )
            _find_storages(data, beside, end, storages)
    except safe_pickle.RefusedError as error:
        raise ValueError(
            f"{path} was refused: {error} If you trust the model, save only "
            "its tensors: `torch.save(model.state_dict(), path)`."
        ) from None
    except (ValueError, struct.error) as error:
        raise ValueError(
            f"{path} cannot be read; it is damaged, cut short, or not a file "
            f"of PyTorch: {error}"
        ) from error
    return _state_dict(loaded, path) if isinstance(loaded, Record) else loaded


def _find_storages(data, beside, at, storages):
    """Assigns to each storage its part of the file."""
    view = memoryview(data)
    if isinstance(beside, dict):
        for key, storage in storages.items():
            if f"data/{key}" in beside:
                start, end, checksum = beside[f"data/{key}"]
                storage.data = view[start:end]
                if zlib.crc32(storage.data) != checksum:
                    raise ValueError(f"the checksum of data/{key} is wrong")
        start, end, _ = beside.get("byteorder", (0, 0, 0))
        if view[start:end] not in (b"", b"little"):
            raise ValueError("its numbers must be little-endian")
    elif storages:
        if type(beside) is not list or {*map(type, beside)} != {str}:
            raise ValueError("it has no list of its storages")
        for key in beside:
            storage = storages.get(key, _Storage(None))
            (size,) = struct.unpack("<q", data[at : at + 8])
            start = at + 8
            at = start + size * _dtype(storage).itemsize
            if not start <= at <= len(data):
                raise ValueError("its storages are cut short")
            storage.data = view[start:at]
    found = [storage.data for storage in storages.values()]
    if None in found or sum(map(len, found)) > len(data):
        raise ValueError("the numbers of tensors are missing")


def _state_dict(module, path):
    """Collects the tensors of a module that was saved whole, by name."""
    modules, tensors, count = [("", module)], {}, 0
    while modules:
        prefix, module = modules.pop()
        count += 1
        state = module.state if isinstance(module, Record) else None
        parts = [
            state.get(part) if isinstance(state, dict) else None
            for part in ("_parameters", "_buffers", "_modules")
        ]
        if any(not isinstance(part, dict) for part in parts):
            raise ValueError(
                f"{path} must hold a module or a state dict: tensors by name. "
                f"Received: a {shown(getattr(module, 'name', module))} at "
                f"{shown(prefix)}"
            )
        if count > _MAX_MODULES or len(prefix) > _MAX_NAME:
            raise ValueError(
                f"{path} was refused: its modules contain each other"
            )
        parameters, buffers, children = parts
        for name, tensor in {**parameters, **buffers}.items():
            if tensor is not None:
                tensors[f"{prefix}{name}"] = tensor
        for name, child in children.items():
            if child is not None:
                modules.append((f"{prefix}{name}.", child))
    return tensors


def torch_tensors(state, path):
    """Returns the `Tensors` of a state dict that `load_torch` returned."""
    received = [type(state).__name__]
    if isinstance(state, dict):
        received = sorted({_kind(*item) for item in state.items()})
    if received != ["tensor"]:
        raise ValueError(
            f"{path} must hold a state dict: tensors by name. "
            f"Received: {shown(received)}"
        )
    storages, arrays = {}, {}
    for name, tensor in state.items():
        try:
            storage, arrays[name] = _array(tensor)
        except (IndexError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(
                f"{path} cannot be read: the tensor {shown(name)} is damaged: "
                f"{error}"
            ) from error
        storages[id(storage)] = len(storage.data)
    return unwrapped(
        Tensors(
            {name: array.shape for name, array in arrays.items()},
            arrays.__getitem__,
            sum(storages.values()),
        )
    )


def unwrapped(tensors):
    """Removes the prefix that a wrapper, such as DataParallel, adds."""
    for prefix in _WRAPPERS:
        if all(name.startswith(prefix) for name in tensors):
            rename = operator.methodcaller("removeprefix", prefix)
            tensors = tensors.renamed(rename)
    return tensors


def _kind(name, value):
    if not isinstance(value, Record) or not value.arguments:
        return type(value).__name__
    if not isinstance(name, str) or value.name not in (*_TENSORS, _PARAMETER):
        return value.name
    return "tensor"


def _dtype(storage):
    kind = getattr(storage, "kind", None)
    if kind not in _DTYPES:
        raise ValueError(f"its numbers are of the unknown kind {shown(kind)}")
    return _DTYPES[kind]


def _array(tensor):
    """Returns the storage of a tensor, and an array without a copy."""
    if tensor.name == _PARAMETER:
        tensor = tensor.arguments[0]
    if not isinstance(tensor, Record) or tensor.name not in _TENSORS:
        raise ValueError("it holds no tensor")
    storage, offset, shape, strides, *rest = tensor.arguments
    # The metadata, after `requires_grad` and hooks, may negate the values.
    if rest[2:] and rest[2]:
        raise ValueError(f"expected no metadata, not {shown(rest[2])}")
    if {*map(type, (offset, *shape, *strides))} != {int} or offset < 0:
        raise ValueError("expected integers for sizes")
    dtype = _dtype(storage)
    # Raises an error if the tensor exceeds the buffer.
    array = np.ndarray(
        shape,
        dtype,
        storage.data[offset * dtype.itemsize :],
        strides=[stride * dtype.itemsize for stride in strides],
    )
    return storage, array
