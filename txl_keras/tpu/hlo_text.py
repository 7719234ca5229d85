"""What a compiled HLO module says as text: collectives, loops, bytes moved."""

import math
import re
import typing

_COLLECTIVES = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all",
    "collective-permute", "collective-broadcast", "ragged-all-to-all",
)  # fmt: skip
# These move nothing themselves.
_FREE = (
    "bitcast", "constant", "get-tuple-element", "parameter", "tuple", "while",
    "conditional", "call",
)  # fmt: skip
_COMPUTATION = re.compile(
    r"^(ENTRY )?%?([\w.-]+) \([^\n]*\{\n(.*?)^\}", re.MULTILINE | re.DOTALL
)
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = (.*)", re.MULTILINE)
# Memory space 0, which is not written, is HBM.
_ON_CHIP = re.compile(r"\w+\[[\d,]*\]\{[^{}]*S\([1-9]\)[^{}]*\}")
_ARRAY = re.compile(
    r"\b(pred|bf16|[fsuc]\d+)\w*\[([\d,]*)\](?:\{([\d,]*)(?::T\(([\d,]+)\))?)?"
)


def collectives(text):
    """What the replicas exchange.

    Args:
        text: String, an HLO module.

    Returns:
        Dictionary of the kinds there are, such as `"all-reduce"`, each a
        dictionary: `count`, of instructions, and `bytes`, of what one replica
        gives or gets, the larger of both, without padding.

    Example:

    >>> module = '''ENTRY %main (p: f32[2,3]) -> f32[2,3] {
    ...   %p = f32[2,3]{1,0:T(2,128)} parameter(0)
    ...   ROOT %sum = f32[2,3]{1,0:T(2,128)} all-reduce(%p), to_apply=%add
    ... }
    ... '''
    >>> collectives(module)
    {'all-reduce': {'count': 1, 'bytes': 24}}
    """
    found = {}
    for _, _, body in _computations(text):
        for kind, given, received in _instructions(body):
            kind = kind.removesuffix("-start")
            if kind in _COLLECTIVES:
                entry = found.setdefault(kind, {"count": 0, "bytes": 0})
                entry["count"] += 1
                entry["bytes"] += max(_bytes(given), _bytes(received))
    return found


def loops(text):
    """Number of `while` instructions in an HLO module.

    Args:
        text: String, an HLO module.

    Returns:
        Integer.
    """
    return len(re.findall(r" while\(", text))


class Moved(typing.NamedTuple):
    """Bytes that instructions read and write.

    Attributes:
        all: Integer, in all memories.
        hbm: Integer, of these in HBM; the others are on the chip, where the
            compiler keeps what is needed again soon.
    """

    all: int
    hbm: int


def moved(text):
    """What instructions read and write, outside of a loop and in it.

    Operands and results count, padded to tiles as they lie in memory; of an
    operand that is read in part, all of it. So ratios count.

    Args:
        text: String, an HLO module.

    Returns:
        Two `Moved`: of the entry computation, and of the body of its loop,
        once around: of the loop that moves most, or zeros without one.
    """
    bodies = {name: body for _, name, body in _computations(text)}
    (entry,) = (body for first, _, body in _computations(text) if first)
    found = re.findall(r" while\(.*?body=%?([\w.-]+)", entry)
    loops_moved = [_moved(bodies[name]) for name in found]
    return _moved(entry), max(loops_moved, default=Moved(0, 0))


def _computations(text):
    return _COMPUTATION.findall(text)


def _instructions(body):
    """Yields kind, types of operands and type of result of instructions."""
    types = {}
    for name, rest in _INSTRUCTION.findall(body):
        types[name], rest = _split_type(rest)
        kind, _, rest = rest.partition("(")
        operands = re.findall(r"%([\w.-]+)", rest.partition(")")[0])
        given = " ".join(types.get(operand, "") for operand in operands)
        yield kind, given, types[name]


def _split_type(text):
    """The type at the beginning, which may be a tuple, and the rest."""
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter in "({[") - (letter in ")}]")
        if letter == " " and not depth:
            return text[:i], text[i + 1 :]
    return text, ""


def _moved(body):
    everywhere = hbm = 0
    for kind, given, received in _instructions(body):
        if kind in _FREE or kind.endswith("-done"):
            continue
        types = f"{given} {received}"
        if kind.endswith("-start") and kind != "all-reduce-start":
            types = received  # its operand is in it
        everywhere += _bytes(types, padded=True)
        hbm += _bytes(_ON_CHIP.sub("", types), padded=True)
    return Moved(everywhere, hbm)


def _bytes(types, padded=False):
    total = 0
    for dtype, dims, order, tile in _ARRAY.findall(types):
        shape = _integers(dims)
        if padded and tile:
            # Axes from the innermost one, and so the tile.
            lengths = reversed(_integers(tile))
            for axis, length in zip(_integers(order), lengths, strict=False):
                shape[axis] = -(-shape[axis] // length) * length
        total += math.prod(shape) * _item_bytes(dtype)
    return math.ceil(total)


def _item_bytes(dtype):
    if dtype == "pred":
        return 1
    return int(re.search(r"\d+", dtype)[0]) / 8


def _integers(text):
    return [int(number) for number in text.split(",") if number]
