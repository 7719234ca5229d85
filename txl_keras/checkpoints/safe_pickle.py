"""A reader of untrusted pickles that imports and calls nothing.

A pickle is a program: its opcodes import names and call them. Here a name, or
the object that calling it would create, becomes a `Record`, which is plain
data. Python's own unpickler runs the opcodes, in a child process whose memory
and seconds are limited where the system can (not on Windows), since a small
file can ask for much of both. This file is the program of the child, too.
"""

import contextlib
import json
import os
import pickle
import re
import subprocess
import sys

_ORDERED_DICT = "collections.OrderedDict"
# Protocols 0 and 1 create objects with this function.
_CONSTRUCTORS = ("copyreg._reconstructor", "copy_reg._reconstructor")
# Names that plain containers need in some protocol.
_PLAIN_NAMES = {
    "_codecs.encode",  # bytes that Python 3 wrote in a protocol of Python 2
    "collections.Counter",
    *(
        f"{module}.{name}"
        for module in ("__builtin__", "builtins")
        for name in ("bytearray", "bytes", "frozenset", "object", "set")
    ),
}
# First object in a file of torch.save before its zip format. A version, facts
# about the machine, the object and the keys of its storages follow.
_TORCH_MAGIC = 0x1950A86A20F9469CFC6C
# Longer strings are arrays, which nothing here needs.
_MAX_STRING = 1 << 20
# The vocabulary of the One Billion Word Benchmark, 793,471 words, takes 2 s.
_SECONDS, _BYTES_PER_SECOND = 4, 20 << 20


class RefusedError(ValueError):
    """Raised if a pickle requests what its reader does not need."""

    def __init__(self, request):
        super().__init__(
            f"the pickle asks for {request}, which is not needed. It was "
            "refused, and nothing in the file was executed."
        )
        self.request = request


class Record:
    """Represents a name in a pickle, or an object made by calling the name.

    `arguments` are those of the call, or `None` for the name itself. `state`
    is what would set the object's attributes.
    """

    def __init__(self, name, arguments=None, state=None):
        self.name = name
        self.arguments = arguments
        self.state = state

    def __setstate__(self, state):
        self.state = state


def load(path, start, names, pattern="", load_persistent=None):
    """Reads the pickle at `start`, or a file of PyTorch before its zip format.

    `names`, and names that `pattern` matches, are allowed besides those of
    plain containers; `load_persistent(id)` returns persistent objects. Returns
    the object, the keys of its storages, or `None`, and where it ends. Objects
    consist of `Record`s, containers, text, numbers and `None`, also in place of
    strings above a mebibyte.
    """
    names = sorted(names)
    request = [
        os.fspath(path),
        start,
        names,
        pattern,
        load_persistent is not None,
    ]
    with subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, json.dumps(request)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        try:
            answer = _AnswerReader(child.stdout, load_persistent).load()
        except (EOFError, pickle.UnpicklingError, RecursionError):
            answer = None
        child.stdout.close()
        message = child.stderr.read().decode("utf-8", "replace")
    if child.returncode or answer is None:
        _raise(message, child.returncode)
    return answer


def _raise(message, code):
    kind, _, text = message.strip().partition(":")
    if kind == "RefusedError":
        raise RefusedError(text.strip())
    if kind == "MemoryError":
        raise RefusedError("much more memory than the file has bytes")
    if code and code < 0:
        raise RefusedError("more time or memory than such a file needs")
    raise ValueError(f"the pickle is truncated or damaged: {message.strip()}")


class _AnswerReader(pickle.Unpickler):
    """Reads what the child wrote, which has no other class."""

    def __init__(self, file, load_persistent):
        super().__init__(file)
        self._load_persistent = load_persistent

    def persistent_load(self, key):
        return self._load_persistent(key) if key else None

    def find_class(self, module, name):
        return {"__main__.Record": Record, "builtins.dict": dict}[
            f"{module}.{name}"
        ]


# === The child ===


class _Dict(dict):
    """Takes the place of an `OrderedDict`, without its attributes."""

    def __setstate__(self, state):
        pass


class _Call:
    """Holds what a name would create; a subclass has the `name`."""

    def __new__(cls, *arguments):
        self = super().__new__(cls)
        self.arguments, self.state = arguments, None
        return self

    def __init__(self, *arguments):
        pass

    def __setstate__(self, state):
        self.state = state

    def append(self, item):
        pass

    def extend(self, items):
        pass

    def __setitem__(self, key, value):
        pass


class _Reader(pickle.Unpickler):
    def __init__(self, file, names, pattern, has_persistent):
        super().__init__(file, encoding="utf-8", errors="surrogateescape")
        self._names = {*names, *_PLAIN_NAMES}
        self._pattern = pattern
        self._has_persistent = has_persistent
        self._classes = {}

    def find_class(self, module, name):
        name = f"{module}.{name}"
        if name == _ORDERED_DICT:
            return _Dict
        if name in _CONSTRUCTORS:
            return lambda made, *_: made()
        if name not in self._names and not re.fullmatch(self._pattern, name):
            raise RefusedError(repr(name[:100]))
        if name not in self._classes:
            self._classes[name] = type("_Named", (_Call,), {"name": name})
        return self._classes[name]

    def persistent_load(self, key):
        if not self._has_persistent:
            raise RefusedError("data outside of it, such as tensors")
        if type(key) is tuple and key[:1] == ("module",):
            return key[1]  # a class, beside its source code
        return _Persistent(key)


class _Persistent:
    def __init__(self, key):
        self.key = key


class _Writer(pickle.Pickler):
    def persistent_id(self, value):
        if isinstance(value, _Persistent):
            return value.key
        if isinstance(value, (str, bytes, bytearray)):
            # Becomes `None`.
            return () if len(value) > _MAX_STRING else None
        return None

    def reducer_override(self, value):
        if value is Record or value is dict:
            return NotImplemented
        if isinstance(value, type) and issubclass(value, _Call):
            return Record, (value.name,)
        if isinstance(value, _Call):
            return Record, (value.name, value.arguments), value.state
        if isinstance(value, _Dict):
            return dict, (), None, None, iter(value.items())
        raise pickle.PicklingError(f"it has a {type(value).__name__}")


def _limit(size):
    try:
        import resource
    except ImportError:  # on Windows
        return
    for kind, limit in (
        (resource.RLIMIT_AS, 4 * size + (200 << 20)),
        (resource.RLIMIT_CPU, _SECONDS + size // _BYTES_PER_SECOND),
        (resource.RLIMIT_CORE, 0),
    ):
        _, most = resource.getrlimit(kind)
        if most != resource.RLIM_INFINITY:
            limit = min(limit, most)
        # Some systems have fewer limits.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (limit, limit))


def _answer(path, start, *allowed):
    _limit(os.path.getsize(path))
    with open(path, "rb") as file:
        file.seek(start)

        def read():
            return _Reader(file, *allowed).load()

        content, keys = read(), None
        if type(content) is int and content == _TORCH_MAGIC:
            read(), read()
            content = read()
            # A vocabulary has no storages.
            keys = read() if allowed[-1] else None
        end = file.tell()
    _Writer(sys.stdout.buffer, 5).dump((content, keys, end))


if __name__ == "__main__":
    try:
        _answer(*json.loads(sys.argv[1]))
    except BaseException as error:  # noqa: BLE001, the parent raises it
        text = str(getattr(error, "request", error))
        sys.exit(f"{type(error).__name__}: {text[:500]}")
