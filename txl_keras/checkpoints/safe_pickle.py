"""A reader of untrusted pickles that imports and calls nothing.

A pickle is a program: its opcodes import names, call them and hash what they
return. Here a name, or the object that calling it would create, becomes a
`Record`, which is plain data. Keys of dictionaries must be strings, bytes or
small integers, so that none takes long to hash. The sizes of all objects are
added up, so that a small file cannot fill memory.
"""

import codecs
import gc
import struct
from sys import getsizeof

from txl_keras.checks import shown

# Each opcode takes about a microsecond, so a hostile file takes 0.2 s per MiB.
# Vocabularies of up to 800,000 words, in any protocol, fit within both limits.
_MAX_OPCODES = 8_000_000
_OPCODES_PER_BYTE, _SMALL_OPCODES = 0.17, 1_000_000
# Objects may take this much memory, and 3.4 times the size of the pickle: what
# the Python 2 pickle of the One Billion Word Benchmark's 793,471 words needs.
_MAX_BYTES = 160_000_000
_MAX_MARKS = 1000  # one per container that is not complete
_MAX_INTEGER_BYTES = 255
# Longer strings are arrays, which nothing here needs.
_MAX_STRING = 1 << 20
# Bytes of memory per list item, and per dictionary item with a text key or not.
_SLOT, _TEXT_ITEM, _ITEM = 8, 40, 90

_MUCH_MEMORY = "much more memory than the file has bytes"

_ORDERED_DICT = "collections.OrderedDict"
# Protocols 0 and 1 create objects with this function.
_CONSTRUCTORS = ("copy_reg._reconstructor", "copyreg._reconstructor")
# Names that plain containers need in some protocol.
_PLAIN_NAMES = {
    _ORDERED_DICT,
    *_CONSTRUCTORS,
    "_codecs.encode",  # bytes that Python 3 wrote in a protocol of Python 2
    "collections.Counter",
    *(
        f"{module}.{name}"
        for module in ("__builtin__", "builtins")
        for name in ("bytearray", "bytes", "frozenset", "object", "set")
    ),
}


class RefusedError(ValueError):
    """Raised if a pickle requests what its reader does not need."""

    def __init__(self, request):
        super().__init__(
            f"the pickle asks for {request}, which is not needed. It was "
            "refused, and nothing in the file was executed."
        )


class Record:
    """Represents a name in a pickle, or an object made by calling the name.

    `arguments` are those of the call, or `None` for the name itself. `state`
    is what would set the object's attributes.
    """

    __slots__ = ("arguments", "name", "state")

    def __init__(self, name, arguments=None):
        self.name = name
        self.arguments = arguments
        self.state = None


def load(data, start, end, is_known, load_persistent=None):
    """Reads the pickle at `start` and returns its object and where it ends.

    `is_known(name)` allows names besides those of plain containers, and
    `load_persistent(id)` returns persistent objects. The result consists of
    `Record`s, dictionaries, lists (also for sets), tuples, text, bytes (if not
    UTF-8), numbers and `None`, also in place of strings above a mebibyte.
    """
    machine = _Machine(data, start, end, is_known, load_persistent)
    was_enabled = gc.isenabled()
    gc.disable()  # It would scan millions of objects repeatedly.
    try:
        return machine.run()
    except RefusedError:
        raise
    except KeyError as error:
        raise ValueError(
            f"the pickle is damaged: it has the unknown opcode {error}"
        ) from error
    except (IndexError, TypeError, ValueError, struct.error) as error:
        raise ValueError(
            f"the pickle is truncated or damaged: {shown(str(error))}"
        ) from error
    finally:
        if was_enabled:
            gc.enable()


class _Machine:
    """Runs the opcodes of a pickle, which `pickletools` describes."""

    def __init__(self, data, start, end, is_known, load_persistent):
        self._data = data
        self._at = start
        self._end = end
        self._is_known = is_known
        self._load_persistent = load_persistent
        self._stack = []
        self._marks = []
        self._memo = []
        self._left = _MAX_BYTES + 3.4 * (end - start)

    def run(self):
        data, opcodes, end = self._data, _OPCODES, self._end
        limit = _SMALL_OPCODES + int(_OPCODES_PER_BYTE * (end - self._at))
        limit = min(limit, _MAX_OPCODES)
        for _ in range(limit):
            at = self._at
            if at >= end:
                raise ValueError("it has no end")
            self._at = at + 1
            code = data[at]
            if code == _STOP:
                return self._stack.pop(), self._at
            function, argument = opcodes[code]
            function(self, argument)
        raise RefusedError(f"more than {limit:,} opcodes")

    def _spend(self, size):
        self._left -= size
        if self._left < 0:
            raise RefusedError(_MUCH_MEMORY)

    def _push(self, value):
        # Inlines `_spend`, since reading spends most of its time here. Memory
        # is allocated in units of 16 bytes.
        self._left -= (getsizeof(value) + 15 & ~15) + _SLOT
        if self._left < 0:
            self._spend(0)
        self._stack.append(value)

    # ------------------------------ Arguments -----------------------------

    def _number(self, layout):
        (number,) = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return number

    def _take(self, count):
        """Reads bytes, or skips them and returns `None` for a long string."""
        start, end = self._at, self._at + count
        if count < 0 or end > self._end:
            raise ValueError("it ends within a string")
        self._at = end
        return None if count > _MAX_STRING else self._data[start:end]

    def _line(self):
        start = self._at
        end = self._data.find(b"\n", start, self._end)
        if end < 0:
            raise ValueError("it ends within a line")
        if end - start > _MAX_STRING:
            raise RefusedError("a very long line")
        self._at = end + 1
        return self._data[start:end]

    def _items(self):
        """Pops the items above the last mark."""
        stack, mark = self._stack, self._marks.pop()
        if _SLOT * (len(stack) - mark) > self._left:
            raise RefusedError(_MUCH_MEMORY)
        items = stack[mark:]
        del stack[mark:]
        return items

    # -------------------------------- Values ------------------------------

    def skip(self, count):
        self._take(count)

    def number(self, layout):
        self._push(self._number(layout))

    def text_number(self, kind):
        self._push(kind(self._line()))

    def long_integer(self, layout):
        count = self._number(layout)
        if count > _MAX_INTEGER_BYTES:
            raise RefusedError(f"an integer of {count} bytes")
        self._push(int.from_bytes(self._take(count), "little", signed=True))

    def string(self, how):
        layout, convert = how
        data = self._take(self._number(layout))
        self._push(None if data is None else convert(data))

    def text_string(self, convert):
        self._push(convert(self._line()))

    def container(self, kind):
        self._push(kind())

    def list_of_items(self, _):
        self._push(self._items())

    def tuple_of_items(self, _):
        self._push(tuple(self._items()))

    def dict_of_items(self, _):
        items = self._items()
        self._push({})
        if items:
            self._set_items(items)

    def tuple_of(self, count):
        items = [self._stack.pop() for _ in range(count)]
        self._push(tuple(reversed(items)))

    def append(self, _):
        self._extend([self._stack.pop()])

    def extend(self, _):
        self._extend(self._items())

    def _extend(self, items):
        target = self._stack[-1]
        if type(target) is list:
            size = getsizeof(target)
            target += items
            self._spend(getsizeof(target) - size)
        elif type(target) is not Record:
            raise ValueError(f"it appends to a {type(target).__name__}")

    def set_item(self, _):
        value = self._stack.pop()
        self._set_items([self._stack.pop(), value])

    def set_items(self, _):
        self._set_items(self._items())

    def _set_items(self, items):
        target = self._stack[-1]
        if type(target) is dict:
            self._update(target, zip(items[::2], items[1::2], strict=True))
        elif type(target) is not Record:
            raise ValueError(f"it sets items of a {type(target).__name__}")

    def _update(self, target, pairs):
        for key, value in pairs:
            kind = type(key)
            # Other keys may all collide, or take very long to hash.
            if kind not in (str, bytes) and not (
                kind in (int, bool) and abs(key) < 1 << 31
            ):
                raise RefusedError(f"the key {shown(key)}")
            self._spend(_TEXT_ITEM if kind is str else _ITEM)
            target[key] = value

    # -------------------------- The stack, the memo -----------------------

    def mark(self, _):
        if len(self._marks) == _MAX_MARKS:
            raise RefusedError("objects that are nested too deeply")
        self._marks.append(len(self._stack))

    def drop(self, _):
        # If nothing is above the last mark, the mark is dropped.
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self._stack.pop()

    def drop_items(self, _):
        self._items()

    def duplicate(self, _):
        self._spend(_SLOT)
        self._stack.append(self._stack[-1])

    def get(self, layout):
        self._get(self._number(layout))

    def text_get(self, _):
        self._get(int(self._line()))

    def _get(self, index):
        if index < 0:
            raise ValueError(f"it asks for the object {index}")
        self._stack.append(self._memo[index])

    def put(self, layout):
        self._put(self._number(layout))

    def text_put(self, _):
        self._put(int(self._line()))

    def memoize(self, _):
        self._put(len(self._memo))

    def _put(self, index):
        # Pickles number their objects from 0 or from 1.
        count = len(self._memo)
        if not 0 <= index <= count + 1:
            raise RefusedError(
                f"the place {shown(index)} of a memo of {count} objects"
            )
        self._spend(_SLOT)
        if index > count:
            self._memo.append(None)
        self._memo[index : index + 1] = [self._stack[-1]]

    # -------------------------- Names and objects -------------------------

    def name(self, _):
        self._push(self._known(self._line().decode(), self._line().decode()))

    def stack_name(self, _):
        name, module = self._stack.pop(), self._stack.pop()
        self._push(self._known(module, name))

    def _known(self, module, name):
        name = f"{module}.{name}" if {type(module), type(name)} == {str} else ""
        if name not in _PLAIN_NAMES and not self._is_known(name):
            raise RefusedError(shown(name))
        return Record(name)

    def call(self, num_parts):
        """Replaces a name and its arguments by the record of a call."""
        _, arguments, *_ = parts = self._stack[-num_parts:]
        del self._stack[-num_parts:]
        self._make(parts[0], arguments)

    def call_items(self, _):
        function, *arguments = self._items()
        self._make(function, tuple(arguments))

    def call_name(self, _):
        function = self._known(self._line().decode(), self._line().decode())
        self._make(function, tuple(self._items()))

    def _make(self, function, arguments):
        is_name = type(function) is Record and function.arguments is None
        if not is_name or type(arguments) is not tuple:
            raise ValueError("it calls what is no name")
        if function.name == _ORDERED_DICT:
            self._push({})
            self._update(self._stack[-1], *arguments or [[]])
        elif function.name in _CONSTRUCTORS and type(arguments[0]) is Record:
            self._push(Record(arguments[0].name, ()))
        else:
            self._push(Record(function.name, arguments))

    def set_state(self, _):
        state = self._stack.pop()
        target = self._stack[-1]
        if type(target) is Record and target.arguments is not None:
            target.state = state
        elif type(target) is not dict:
            raise ValueError(f"it sets the state of a {type(target).__name__}")

    def persistent(self, _):
        self._persistent(self._stack.pop())

    def text_persistent(self, _):
        self._persistent(self._line())

    def _persistent(self, persistent_id):
        if self._load_persistent is None:
            raise RefusedError("data outside of it, such as tensors")
        self._push(self._load_persistent(persistent_id))


def _text(data):
    return data.decode("utf-8")


def _text_or_bytes(data):
    """Decodes a Python 2 string; returns bytes if it is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


def _quoted(line):
    if len(line) < 2 or line[0] != line[-1] or line[0] not in b"'\"":
        raise ValueError("it has a string without quotes")
    content = line[1:-1]
    if b"\\" in content:
        content = codecs.escape_decode(content)[0]
    return _text_or_bytes(content)


def _escaped(line):
    return codecs.raw_unicode_escape_decode(line)[0]


_BOOLEANS = {b"00": False, b"01": True}


def _integer(line):
    try:
        # Booleans of the first protocols are written 00 and 01.
        return _BOOLEANS[line] if line in _BOOLEANS else int(line)
    except ValueError:
        return int(line.removesuffix(b"L"))


_STOP = ord(".")
_U1, _U2, _U4, _U8 = map(struct.Struct, ("<B", "<H", "<I", "<Q"))
_I4, _F8 = map(struct.Struct, ("<i", ">d"))
_OPCODES = {
    code[0]: (function, argument)
    for code, function, argument in (
        (b"\x80", _Machine.skip, 1),  # protocol
        (b"\x95", _Machine.skip, 8),  # frame
        (b"N", _Machine._push, None),
        (b"\x88", _Machine._push, True),
        (b"\x89", _Machine._push, False),
        (b"K", _Machine.number, _U1),
        (b"M", _Machine.number, _U2),
        (b"J", _Machine.number, _I4),
        (b"G", _Machine.number, _F8),
        (b"I", _Machine.text_number, _integer),
        (b"L", _Machine.text_number, _integer),
        (b"F", _Machine.text_number, float),
        (b"\x8a", _Machine.long_integer, _U1),
        (b"\x8b", _Machine.long_integer, _I4),
        (b"S", _Machine.text_string, _quoted),
        (b"V", _Machine.text_string, _escaped),
        (b"U", _Machine.string, (_U1, _text_or_bytes)),
        (b"T", _Machine.string, (_I4, _text_or_bytes)),
        (b"C", _Machine.string, (_U1, bytes)),
        (b"B", _Machine.string, (_U4, bytes)),
        (b"\x8e", _Machine.string, (_U8, bytes)),
        (b"\x96", _Machine.string, (_U8, bytes)),
        (b"\x8c", _Machine.string, (_U1, _text)),
        (b"X", _Machine.string, (_U4, _text)),
        (b"\x8d", _Machine.string, (_U8, _text)),
        (b"]", _Machine.container, list),
        (b")", _Machine.container, tuple),
        (b"}", _Machine.container, dict),
        (b"\x8f", _Machine.container, list),  # a set
        (b"l", _Machine.list_of_items, None),
        (b"t", _Machine.tuple_of_items, None),
        (b"\x91", _Machine.list_of_items, None),  # a frozenset
        (b"d", _Machine.dict_of_items, None),
        (b"\x85", _Machine.tuple_of, 1),
        (b"\x86", _Machine.tuple_of, 2),
        (b"\x87", _Machine.tuple_of, 3),
        (b"a", _Machine.append, None),
        (b"e", _Machine.extend, None),
        (b"\x90", _Machine.extend, None),
        (b"s", _Machine.set_item, None),
        (b"u", _Machine.set_items, None),
        (b"(", _Machine.mark, None),
        (b"0", _Machine.drop, None),
        (b"1", _Machine.drop_items, None),
        (b"2", _Machine.duplicate, None),
        (b"h", _Machine.get, _U1),
        (b"j", _Machine.get, _U4),
        (b"g", _Machine.text_get, None),
        (b"q", _Machine.put, _U1),
        (b"r", _Machine.put, _U4),
        (b"p", _Machine.text_put, None),
        (b"\x94", _Machine.memoize, None),
        (b"c", _Machine.name, None),
        (b"\x93", _Machine.stack_name, None),
        (b"R", _Machine.call, 2),
        (b"\x81", _Machine.call, 2),
        (b"\x92", _Machine.call, 3),
        (b"o", _Machine.call_items, None),
        (b"i", _Machine.call_name, None),
        (b"b", _Machine.set_state, None),
        (b"Q", _Machine.persistent, None),
        (b"P", _Machine.text_persistent, None),
    )
}
