"""Parser of compiled HLO text: loops and bytes moved."""

import math
import re

# These instructions move no bytes themselves.
_FREE = (
    "bitcast", "constant", "get-tuple-element", "parameter", "tuple", "while",
    "conditional", "call",
)  # fmt: skip
_COMPUTATION = re.compile(
    r"^(ENTRY )?%?([\w.-]+) \([^\n]*\{\n(.*?)^\}", re.MULTILINE | re.DOTALL
)
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = (.*)", re.MULTILINE)
# Memory space 0, which HLO text omits, is HBM; all others are on the chip.
_ON_CHIP = re.compile(r"\w+\[[\d,]*\]\{[^{}]*S\([1-9]\)[^{}]*\}")
_ARRAY = re.compile(
    r"\b(pred|bf16|[fsuc]\d+)\w*\[([\d,]*)\](?:\{([\d,]*)(?::T\(([\d,]+)\))?)?"
)


def bytes_moved(text):
    """Counts bytes read and written outside of loops, and per iteration."""
    # Returns two pairs: the bytes of all memories, and of HBM only. The rest is
    # on the chip, where the compiler keeps values that are needed again soon.
    # The loop is the one that moves most (zeros without a loop). Operands and
    # results are padded to their tiles; an operand that is read in part counts
    # in full. Hence only ratios of these counts are meaningful.
    computations = _COMPUTATION.findall(text)
    bodies = {name: body for _, name, body in computations}
    (entry,) = (body for first, _, body in computations if first)
    found = re.findall(r" while\(.*?body=%?([\w.-]+)", entry)
    per_loop = [_count_bytes_moved(bodies[name]) for name in found]
    return _count_bytes_moved(entry), max(per_loop, default=(0, 0))


def _instructions(body):
    """Yields the kind, operand types and result type of each instruction."""
    types = {}
    for name, rest in _INSTRUCTION.findall(body):
        types[name], rest = _split_type(rest)
        kind, _, operands = rest.partition("(")
        operands = re.findall(r"%([\w.-]+)", operands.partition(")")[0])
        given = " ".join(types.get(operand, "") for operand in operands)
        yield kind, given, types[name]


def _split_type(text):
    """Splits off the type at the beginning, which may be a tuple."""
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter in "({[") - (letter in ")}]")
        if letter == " " and not depth:
            return text[:i], text[i + 1 :]
    return text, ""


def _count_bytes_moved(body):
    everywhere = hbm = 0
    for kind, given, received in _instructions(body):
        if kind in _FREE or kind.endswith("-done"):
            continue
        types = f"{given} {received}"
        if kind.endswith("-start") and kind != "all-reduce-start":
            types = received  # the result type includes the operand
        everywhere += _bytes(types)
        hbm += _bytes(_ON_CHIP.sub("", types))
    return everywhere, hbm


def _bytes(types):
    """Counts the bytes of arrays, padded to their tiles."""
    total = 0
    for dtype, dims, order, tile in _ARRAY.findall(types):
        shape = _integers(dims)
        # The layout lists axes from the innermost, the tile to it.
        lengths = reversed(_integers(tile))
        for axis, length in zip(_integers(order), lengths, strict=False):
            shape[axis] = -(-shape[axis] // length) * length
        bits = 8 if dtype == "pred" else int(re.search(r"\d+", dtype)[0])
        total += math.prod(shape) * bits / 8
    return math.ceil(total)


def _integers(text):
    return [int(number) for number in text.split(",") if number]
