"""Reports on a compiled training step: memory, operations, speed limits.

The bytes that it moves are counted in the text of the compiled module.
"""

import math
import re

# Share of a program's memory that a step may use. The rest is left for memory
# that the compiler does not count: the next batch, fragmentation.
USABLE_SHARE = 0.95
_TOO_LARGE = re.compile(
    r"required for .*?\(([\d.]+)([KMGT]?)\) exceeds available HBM "
    r"\(([\d.]+)([KMGT]?)\)"
)
_VECTOR_MEMORY = re.compile(r"Used \S+ of \S+ vmem|$")
# These instructions move no bytes themselves.
_FREE = (
    "bitcast", "constant", "get-tuple-element", "parameter", "tuple", "while",
    "conditional", "call",
)  # fmt: skip
_COMPUTATION = re.compile(
    r"^(ENTRY )?%?([\w.-]+) \([^\n]*\{\n(.*?)^\}", re.MULTILINE | re.DOTALL
)
# Name, type (which may be a tuple), kind and operands.
_INSTRUCTION = re.compile(
    r"^\s*(?:ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\(([^)]*)", re.MULTILINE
)
# Memory space 0, which HLO text omits, is HBM; all others are on the chip.
_ON_CHIP = re.compile(r"\w+\[[\d,]*\]\{[^{}]*S\([1-9]\)[^{}]*\}")
_ARRAY = re.compile(
    r"\b(pred|bf16|[fsuc]\d+)\w*\[([\d,]*)\](?:\{([\d,]*)(?::T\(([\d,]+)\))?)?"
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def report(step, slice_, answer):
    """Adds the compiler's answer to the facts about a step."""
    # `command.py` collects the facts that are known before.
    facts = {
        **step,
        "chip": slice_.chip.name,
        "topology": slice_.topology,
        "usable": slice_.chip.usable_bytes,
    }
    if "error" in answer:
        facts["peak"] = _needed_bytes(answer["error"])
    else:
        facts |= _compiled(step, slice_, answer)
    limit = USABLE_SHARE * facts["usable"] - step["beside"]
    return {**facts, "fits": facts["peak"] <= limit}


def _compiled(step, slice_, answer):
    """Returns bytes, operations and the speed limits."""
    # The compiler counts the body of a loop once. The micro-batches of
    # `--accumulate_steps=k` are such a loop: its operations are multiplied by k
    # (operations outside, of the optimizer, are less than a hundredth), and its
    # bytes by the ratios of `bytes_moved`, which also give the share of HBM.
    # Other loops are counted once and reported: the number of iterations of the
    # adaptive softmax depends on the text. So the time is a lower bound, as far
    # as the estimate of bytes is right.
    text = answer["text"]
    outside, loop = bytes_moved(text)
    # If there is no loop, the compiler has unrolled it.
    times = step["accumulate_steps"] if any(loop) else 1
    scale = answer["bytes_accessed"] / (outside[0] + loop[0])
    moved, moved_in_hbm = (
        scale * (once + times * each)
        for once, each in zip(outside, loop, strict=True)
    )
    flops = answer["flops"] * times
    # The roofline model.
    computing = flops / slice_.chip.flops
    moving = moved_in_hbm / slice_.chip.bytes_per_second
    seconds = max(computing, moving)
    tokens = step["rows"] * step["segment_length"] / seconds
    names = ("arguments", "outputs", "aliased", "temporaries", "code")
    sizes = {name: answer[name] for name in names}
    return {
        "compile_seconds": round(answer["seconds"], 1),
        **sizes,
        # Aliased bytes count as arguments and as outputs, but exist once.
        "peak": sum(sizes.values()) - 2 * sizes["aliased"],
        "flops": flops,
        "bytes_accessed": moved,
        "hbm_bytes_accessed": moved_in_hbm,
        "loops_counted_once": len(re.findall(r" while\(", text)) - (times > 1),
        "bound_seconds": seconds,
        "bound_by": "flops" if computing > moving else "bytes",
        "tokens_per_second": tokens * step["replicas"],
        "tokens_per_second_of_chip": tokens * slice_.chip.cores,
        "utilization": step["model_flops"] / (seconds * slice_.chip.flops),
    }


def _needed_bytes(error):
    found = _TOO_LARGE.search(error)
    if not found and "memory space vmem" in error:
        raise RuntimeError(
            "`--attention=pallas` keeps all keys of one head and row in the "
            "vector memory of the chip, but they do not fit: leave it out, "
            "or choose a shorter segment_length or memory_length. Received: "
            f"{_VECTOR_MEMORY.search(error)[0]}"
        )
    if not found:
        raise RuntimeError(f"The TPU compiler rejected the step: {error}")
    return int(float(found[1]) * _UNITS[found[2]])


def describe(facts):
    """Returns a report as text, with a verdict."""
    lines = [
        f"  {name:26} {value:,.4g}"
        if isinstance(value, (int, float))
        else f"  {name:26} {value}"
        for name, value in facts.items()
    ]
    peak, beside, usable = (
        facts[name] / 2**30 for name in ("peak", "beside", "usable")
    )
    remedy = "Lower --batch_size or the lengths, or raise --accumulate_steps."
    verdict = "Fits: it" if facts["fits"] else f"Does not fit. {remedy} It"
    lines.append(
        f"{verdict} needs {peak:.2f} GiB, plus {beside:.2f} GiB outside the "
        f"step, of {USABLE_SHARE * usable:.2f} GiB ({USABLE_SHARE:.0%} of what "
        "the compiler allows a program)."
    )
    return "\n".join(lines)


# === Bytes moved ===


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


def _count_bytes_moved(body):
    everywhere = hbm = 0
    types = {}
    for name, received, kind, operands in _INSTRUCTION.findall(body):
        types[name] = moved = received
        if kind in _FREE or kind.endswith("-done"):
            continue
        # Otherwise the result type includes the operand.
        if not kind.endswith("-start") or kind == "all-reduce-start":
            names = re.findall(r"%([\w.-]+)", operands)
            moved = " ".join([*(types.get(x, "") for x in names), received])
        everywhere += _bytes(moved)
        hbm += _bytes(_ON_CHIP.sub("", moved))
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
