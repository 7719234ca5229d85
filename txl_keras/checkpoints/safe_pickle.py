"""Reads untrusted pickles without importing or calling anything.

A pickle is a program: its opcodes import names and call them. Here an object of
any class becomes a dictionary of its attributes, and a PyTorch tensor becomes a
tuple. Python's own unpickler runs the opcodes in a child process. The memory
and seconds of the child are limited where the system can (not on Windows),
because a small file can ask for much of both. This file is the program of the
child, too.
"""

import contextlib
import io
import json
import os
import pickle
import re
import struct
import subprocess
import sys

# PyTorch's storage types, and their bytes per number.
DTYPES = {
    "torch.BFloat16Storage": ("bfloat16", 2),
    "torch.BoolStorage": ("bool", 1),
    "torch.ByteStorage": ("uint8", 1),
    "torch.CharStorage": ("int8", 1),
    "torch.DoubleStorage": ("float64", 8),
    "torch.FloatStorage": ("float32", 4),
    "torch.HalfStorage": ("float16", 2),
    "torch.IntStorage": ("int32", 4),
    "torch.LongStorage": ("int64", 8),
    "torch.ShortStorage": ("int16", 2),
}
ZIP_MAGIC = b"PK\x03\x04"
# Names that plain containers need in some protocol, and that bytes need which
# Python 3 wrote in a protocol of Python 2.
_PLAIN_NAMES = (
    r"_codecs\.encode|collections\.Counter"
    r"|(__builtin__|builtins)\.(bytearray|bytes|frozenset|object|set)"
)
# First object in a file of torch.save before its zip format. A version, facts
# about the machine, the object and the keys of its storages follow.
_TORCH_MAGIC = 0x1950A86A20F9469CFC6C
# Longer strings are arrays, which nothing here needs.
_MAX_STRING = 1 << 20
# The vocabulary of the One Billion Word Benchmark, 793,471 words, takes 2 s.
_SECONDS, _BYTES_PER_SECOND = 4, 20 << 20


def load(path, names, has_storages=False):
    """Reads a pickle, or the pickle in a file of `torch.save`.

    Names that match the pattern `names` are allowed besides the names of plain
    containers. Returns the object and a dictionary with the start and the end
    of each storage in the file. The object consists of containers, text,
    numbers and `None`. `None` also replaces names and strings above a mebibyte.
    A tensor becomes a tuple of the name of its dtype, the key of its storage,
    and its offset, shape and strides.
    """
    request = json.dumps([os.fspath(path), names, has_storages])
    child = subprocess.run(
        [sys.executable, "-I", "-S", __file__, request],
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    if not child.returncode:
        return _AnswerReader(io.BytesIO(child.stdout)).load()
    # Python may warn before it raises a MemoryError.
    message = child.stderr.decode("utf-8", "replace").strip().split("\n")[-1]
    kind, _, request = message.partition(":")
    if child.returncode < 0:
        request = "more time or memory than such a file needs"
    elif kind == "MemoryError":
        request = "much more memory than the file has bytes"
    elif kind != "_RefusedError":
        raise ValueError(f"the pickle is truncated or damaged: {message}.")
    raise ValueError(
        f"the pickle asks for {request.strip()}, which is not needed. It was "
        "refused, and nothing in the file was executed."
    )


class _AnswerReader(pickle.Unpickler):
    """Reads the child's answer, which has only plain containers."""

    def persistent_load(self, key):
        return None  # the child left it out

    def find_class(self, module, name):
        return {"dict": dict}[name]


# === The child ===


class _RefusedError(Exception):
    """Raised if a pickle requests something that its reader does not need."""


class _Dict(dict):
    """Replaces an `OrderedDict`, without its attributes."""

    def __setstate__(self, state):
        pass


class _Object(dict):
    """Replaces an object: its attributes by name."""

    def __init__(self, *arguments):
        pass

    def __setstate__(self, state):
        if isinstance(state, dict):
            self.update(state)


def _tensor(storage, offset, shape, strides, *rest):
    # The metadata, after `requires_grad` and hooks, may negate the values.
    if rest[2:] and rest[2]:
        raise ValueError("expected no metadata of a tensor")
    return (*storage, offset, tuple(shape), tuple(strides))


class _Reader(pickle.Unpickler):
    def __init__(self, file, names, storages):
        super().__init__(file, encoding="utf-8", errors="surrogateescape")
        self._names = f"{_PLAIN_NAMES}|{names}"
        self._storages = storages
        self._classes = {
            "collections.OrderedDict": _Dict,
            # Protocols 0 and 1 create objects with this function.
            "copyreg._reconstructor": lambda made, *_: made(),
            "copy_reg._reconstructor": lambda made, *_: made(),
            "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
            "torch._utils._rebuild_tensor": _tensor,
            "torch._utils._rebuild_tensor_v2": _tensor,
        }

    def find_class(self, module, name):
        name = f"{module}.{name}"
        if name not in self._classes:
            if not re.fullmatch(self._names, name):
                raise _RefusedError(repr(name[:100]))
            self._classes[name] = type(name, (_Object,), {})
        return self._classes[name]

    def persistent_load(self, key):
        if self._storages is None:
            raise _RefusedError("data outside of it, such as tensors")
        kind, made, key, *_ = key
        if kind == "module":
            return made  # a class, beside its source code
        if kind != "storage" or type(key) is not str:
            raise ValueError("it has persistent data that is not a storage")
        kind = getattr(made, "__name__", None)
        if kind not in DTYPES:
            raise ValueError(f"its numbers are of the unknown kind {made!r}")
        self._storages[key] = kind
        return DTYPES[kind][0], key


class _Writer(pickle.Pickler):
    def persistent_id(self, value):
        is_string = isinstance(value, (str, bytes, bytearray))
        is_name = isinstance(value, type) and value is not dict
        return is_name or is_string and len(value) > _MAX_STRING or None

    def reducer_override(self, value):
        if isinstance(value, (_Dict, _Object)):
            return dict, (), None, None, iter(value.items())
        if value is dict:
            return NotImplemented
        raise pickle.PicklingError(f"it has a {type(value).__name__}")


def _answer(path, names, has_storages):
    size = os.path.getsize(path)
    _limit(size)
    storages, places = {} if has_storages else None, {}
    with open(path, "rb") as file:
        is_zip = file.read(4) == ZIP_MAGIC
        members = _zip_members(file) if is_zip else {"data.pkl": (0, size)}
        file.seek(members["data.pkl"][0])
        content = _Reader(file, names, storages).load()
        if is_zip:
            places = {key: members.get(f"data/{key}") for key in storages or ()}
        elif type(content) is int and content == _TORCH_MAGIC:
            for _ in range(3):
                content = _Reader(file, names, storages).load()
            places = _places_behind(file, names, storages or {}, size)
    if None in places.values() or len(places) < len(storages or ()):
        raise ValueError("the numbers of tensors are missing")
    _Writer(sys.stdout.buffer, 5).dump((content, places))


def _limit(size):
    """Limits the memory and the seconds of this process."""
    try:
        import resource
    except ImportError:  # on Windows
        return
    for kind, limit in (
        (resource.RLIMIT_AS, 4 * size + (200 << 20)),
        (resource.RLIMIT_CPU, _SECONDS + size // _BYTES_PER_SECOND),
        (resource.RLIMIT_CORE, 0),
    ):
        # Some systems have fewer limits, or lower ones.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (limit, limit))


def _places_behind(file, names, storages, size):
    """Returns where the storages are that follow an old file's pickles."""
    places = {}
    for key in _Reader(file, names, None).load() if storages else ():
        (count,) = struct.unpack("<q", file.read(8))
        start = file.tell()
        end = start + count * DTYPES[storages[key]][1]
        if not start <= end <= size:
            raise ValueError("its storages are cut short")
        places[key] = start, end
        file.seek(end)
    return places


def _zip_members(file):
    """Returns the start and the end of each member of a file of torch.save."""
    import zipfile

    members = {}
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            # All members are in one folder, which may have any name.
            name = info.filename.partition("/")[2] or info.filename
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
                raise ValueError(
                    f"{name!r:.99} is compressed or encrypted, which "
                    "torch.save does not write"
                )
            if name in members:
                raise ValueError(f"it has {info.filename!r:.99} twice")
            # The member's own header, which other tools may write longer.
            file.seek(info.header_offset + 26)
            lengths = struct.unpack("<HH", file.read(4))
            start = info.header_offset + 30 + sum(lengths)
            members[name] = start, start + info.file_size
        damaged = archive.testzip()
        if damaged:
            raise ValueError(f"the checksum of {damaged[:99]} is wrong")
        if "data.pkl" not in members:
            raise ValueError("it is a zip file, but not of torch.save")
        order = [x for x in archive.namelist() if x.endswith("/byteorder")]
        if order and archive.read(order[0]) != b"little":
            raise ValueError("its numbers must be little-endian")
    return members


if __name__ == "__main__":
    try:
        _answer(*json.loads(sys.argv[1]))
    except BaseException as error:  # noqa: BLE001, the parent raises it
        sys.exit(f"{type(error).__name__}: {str(error)[:500]}")
