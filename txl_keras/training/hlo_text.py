"""What a compiled HLO module says as text: collectives, bytes of loops."""

import math
import re

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


def share_of_loop(text):
    """The part of the bytes of a step that its loop moves, once around.

    Args:
        text: String, an HLO module. The loop of its entry computation that
            moves most counts.

    Returns:
        Float between 0 and 1: bytes of operands and results of the loop's
        body, padded to tiles as they lie in memory, over those and the same
        of the entry computation. 0 without a loop.
    """
    bodies = {name: body for _, name, body in _computations(text)}
    (entry,) = (body for first, _, body in _computations(text) if first)
    found = re.findall(r" while\(.*?body=%?([\w.-]+)", entry)
    inside = max((_moved(bodies[name]) for name in found), default=0)
    return inside / (inside + _moved(entry)) if inside else 0.0


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
    total = 0
    for kind, given, received in _instructions(body):
        if kind in _FREE or kind.endswith("-done"):
            continue
        # The result of a start has its operand, too.
        result = given if kind.endswith("-start") else received
        total += _bytes(given, padded=True) + _bytes(result, padded=True)
    return total


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
