"""What compiling a step for a TPU slice says of it, in numbers and words.

Letters: `b` rows of one replica, `T` segment, `M` memory.
"""

import dataclasses
import re

from txl_keras.tpu.hlo_text import collectives
from txl_keras.tpu.hlo_text import loops
from txl_keras.tpu.hlo_text import moved

# A step may take this share of what the compiler gives a program. The rest is
# for what it does not see: the next batch, the memory of evaluation, gaps.
USABLE_SHARE = 0.95
# Of that, what an estimate may come to. The compiler computes things again
# rather than keep them where memory is short: half of the rows takes more than
# half. (A step refused with 11.5 GiB took 7.5 in two pieces.)
_SAFE_SHARE = 0.8
_TOO_LARGE = re.compile(
    r"required for .*?\(([\d.]+)([KMGT]?)\) exceeds available HBM "
    r"\(([\d.]+)([KMGT]?)\)"
)
_VECTOR_MEMORY = re.compile(r"Used \S+ of \S+ vmem|$")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Step:
    """What is known of a step before it is compiled.

    Attributes:
        name: String, `"train"`, `"evaluation"` or `"generation"`.
        rows: Integer `b`.
        segment_length: Integer `T`.
        memory_length: Integer `M`.
        num_replicas: Integer, how many run it together.
        precision: String.
        model_flops: Optional integer, of one replica: see
            `utilization.model_flops`. Without memory of projected keys it
            would count what is not done.
        accumulate_steps: Integer, pieces of the rows.
        parts: Dictionary of bytes of the arguments, of `estimate_bytes`.
            Training has all.
        beside: Integer, bytes of the run that lie there meanwhile.
    """

    name: str
    rows: int
    segment_length: int
    memory_length: int
    num_replicas: int
    precision: str
    model_flops: int | None = None
    accumulate_steps: int = 1
    parts: dict = dataclasses.field(default_factory=dict)
    beside: int = 0


def report(step, slice_, answer):
    """All that is known of a step of a slice.

    The compiler counts what a loop does once. The pieces of
    `--accumulate_steps=k` are such a loop: operations are taken k times (those
    outside, of the optimizer, are less than a hundredth), and bytes as `moved`
    divides them. Tried with enwik8_base on v4-8, 6 rows a replica: in 1, 2, 3
    and 6 pieces this makes 1.19, 1.21, 1.22 and 1.28 TFLOP, and 49.5, 49.6,
    50.0 and 64.8 GB, as weights are read again for each piece.

    Its bytes are in all memories of the chip; how many in HBM is by the same
    ratios, an estimate.

    Other loops stay counted once, and are reported: those of an adaptive
    softmax make as many passes as a text needs. The time that follows is a
    lower bound as far as that estimate goes.

    Args:
        step: `Step`.
        slice_: `TpuType`.
        answer: Dictionary of `compile_hlo`.

    Returns:
        Dictionary, for JSON. `fits` says whether the slice can run it; where
        the compiler itself refused there are only the bytes `peak` and how to
        make it fit, `advice`.

    Raises:
        RuntimeError: If the compiler refused for another reason.
    """
    facts = _facts(step, slice_)
    if "error" in answer:
        facts["peak"] = _needed_bytes(answer["error"])
        return _with_verdict(facts, step, slice_)
    facts |= _compiled(step, answer)
    facts |= roofline(facts["flops"], facts["hbm_bytes_accessed"], slice_)
    seconds = facts["bound_seconds"]
    tokens = step.num_replicas * step.rows * step.segment_length / seconds
    # A step of one replica leaves the other of its chip idle.
    chips = max(1, step.num_replicas / slice_.chip.cores)
    facts |= {
        "tokens_per_second": tokens,
        "tokens_per_second_of_chip": tokens / chips,
    }
    if step.model_flops:
        utilization = step.model_flops / (seconds * slice_.flops)
        facts["utilization"] = utilization
    return _with_verdict(facts, step, slice_)


def roofline(flops, bytes_accessed, slice_):
    """The least time that a replica needs for a step.

    Args:
        flops: Float, operations.
        bytes_accessed: Float, to and from HBM.
        slice_: `TpuType`.

    Returns:
        Dictionary: `bound_seconds` and `bound_by`, `"flops"` or `"bytes"`.

    Example:

    >>> from txl_keras.tpu.slices import tpu_type
    >>> roofline(275e12, 614e9, tpu_type("v4-8"))
    {'bound_seconds': 1.0, 'bound_by': 'flops'}
    """
    computing = flops / slice_.flops
    moving = bytes_accessed / slice_.bytes_per_second
    return {
        "bound_seconds": max(computing, moving),
        "bound_by": "flops" if computing > moving else "bytes",
    }


def _facts(step, slice_):
    return {
        "step": step.name,
        "tpu_type": slice_.name,
        "chip": slice_.chip.name,
        "topology": slice_.topology,
        "replicas": step.num_replicas,
        "rows": step.rows,
        "segment_length": step.segment_length,
        "memory_length": step.memory_length,
        "accumulate_steps": step.accumulate_steps,
        "precision": step.precision,
        "model_flops": step.model_flops,
        **step.parts,
        "beside": step.beside,
        "hbm": slice_.hbm_bytes,
        "usable": slice_.usable_bytes,
    }


def _compiled(step, answer):
    """Bytes and operations, those of a loop as often as it runs."""
    text = answer["text"]
    outside, loop = moved(text)
    # Without a loop the compiler has unrolled it.
    times = step.accumulate_steps if loop.all else 1
    scale = answer["bytes_accessed"] / (outside.all + loop.all)
    names = ("arguments", "outputs", "aliased", "temporaries", "code")
    sizes = {name: answer[name] for name in names}
    return {
        "compile_seconds": round(answer["seconds"], 1),
        **sizes,
        # What is aliased is an argument and an output in one place.
        "peak": sum(sizes.values()) - 2 * sizes["aliased"],
        "flops": answer["flops"] * times,
        "bytes_accessed": scale * (outside.all + times * loop.all),
        "hbm_bytes_accessed": scale * (outside.hbm + times * loop.hbm),
        "collectives": collectives(text),
        "loops_counted_once": loops(text) - (times > 1),
    }


def _needed_bytes(error):
    found = _TOO_LARGE.search(error)
    if not found and "memory space vmem" in error:
        raise RuntimeError(
            "The keys of a head and row do not fit the vector memory of the "
            "chip, where `attention_kernel` needs them all: leave it out, or "
            "choose a shorter segment_length or memory_length. Received: "
            f"{_VECTOR_MEMORY.search(error)[0]}"
        )
    if not found:
        raise RuntimeError(f"The TPU compiler refused the step: {error}")
    return int(float(found[1]) * _UNITS[found[2]])


def _with_verdict(facts, step, slice_):
    facts["fits"] = facts["peak"] <= _limit(step, slice_)
    if not facts["fits"] and "gradients" in step.parts:
        facts["advice"] = advice(step, slice_, facts["peak"])
    return facts


def _limit(step, slice_):
    return USABLE_SHARE * slice_.usable_bytes - step.beside


def advice(step, slice_, peak):
    """What would fit: a smaller batch, or smaller pieces.

    An estimate: weights, their gradients and the optimizer are as they are,
    memory grows with the rows, and all the rest with the rows of a piece. Only
    divisors of the rows are looked at, as an odd number is padded to a tile,
    and a fifth is left free.

    Args:
        step: `Step`, of training.
        slice_: `TpuType`.
        peak: Integer, bytes that the step takes.

    Returns:
        Dictionary: `batch_size`, over all replicas, with the pieces as they
        are; `accumulate_steps` with the rows as they are. `None` where
        nothing would do.
    """
    limit = _SAFE_SHARE * _limit(step, slice_)
    pieces = step.accumulate_steps
    a_row = step.parts["memory"] / step.rows
    in_piece = (peak - _fixed(step, pieces) - step.parts["memory"]) / (
        step.rows / pieces
    )

    def takes(rows, pieces):
        piece = in_piece * rows / pieces
        return _fixed(step, pieces) + a_row * rows + piece

    divisors = [n for n in range(1, step.rows + 1) if step.rows % n == 0]
    rows = [
        n for n in divisors if n % pieces == 0 and takes(n, pieces) <= limit
    ]
    finer = [n for n in divisors if n > pieces and takes(step.rows, n) <= limit]
    return {
        "batch_size": max(rows) * slice_.replicas if rows else None,
        "accumulate_steps": min(finer, default=None),
    }


def _fixed(step, pieces):
    """Bytes whatever the rows; pieces add up gradients in their own place."""
    gradients = step.parts["gradients"] / min(step.accumulate_steps, 2)
    return (
        step.parts["weights"]
        + step.parts["optimizer"]
        + gradients * min(pieces, 2)
    )


def describe(facts):
    """A report in words.

    Args:
        facts: Dictionary of `report`.

    Returns:
        String of lines.
    """
    pieces = facts["accumulate_steps"]
    lines = [
        f"{facts['step']} on {facts['tpu_type']} ({facts['chip']}, "
        f"{facts['topology']} chips): replicas {facts['replicas']}, rows of "
        f"one {facts['rows']}"
        + (f" in {pieces} pieces" if pieces > 1 else "")
        + f", segment {facts['segment_length']}, memory "
        f"{facts['memory_length']}, {facts['precision']}"
    ]
    lines += [
        f"  {name:20} {_mebibytes(facts[key])}"
        for name, key in (
            ("weights", "weights"),
            ("optimizer", "optimizer"),
            ("memory", "memory"),
            ("arguments", "arguments"),
            ("outputs", "outputs"),
            ("of these aliased", "aliased"),
            ("temporaries", "temporaries"),
            ("code", "code"),
            ("beside it", "beside"),
        )
        if key in facts
    ]
    if "flops" in facts:
        lines += _describe_speed(facts)
    return "\n".join([*lines, f"  {verdict(facts)}"])


def _describe_speed(facts):
    exchanged = ", ".join(
        f"{value['count']} {kind} of {value['bytes'] / 2**20:,.1f} MiB"
        for kind, value in facts["collectives"].items()
    )
    nominal, utilization = "", ""
    if "utilization" in facts:
        nominal = f", nominally {facts['model_flops'] / 1e12:.4g}"
        utilization = f", {facts['utilization']:.1%} of its peak"
    counted_once = ""
    if facts["loops_counted_once"]:
        counted_once = (
            f" (of {facts['loops_counted_once']} loops, whose length the text "
            "decides, one pass)"
        )
    return [
        f"  {'compiled in':20} {facts['compile_seconds']:12,.1f} s",
        f"  {'operations':20} {facts['flops'] / 1e12:12.4g} TFLOP{nominal}",
        f"  {'bytes accessed':20} {facts['bytes_accessed'] / 1e9:12.4g} GB, "
        f"of these in HBM about {facts['hbm_bytes_accessed'] / 1e9:.4g}"
        f"{counted_once}",
        f"  {'exchanged':20} {exchanged or 'nothing'}",
        f"  {'at least':20} {1e3 * facts['bound_seconds']:12.4g} ms a step, "
        f"by {facts['bound_by']}",
        f"  {'so at most':20} {facts['tokens_per_second']:12,.0f} tokens/s, "
        f"{facts['tokens_per_second_of_chip']:,.0f} a chip{utilization}",
    ]


def verdict(facts):
    """Whether a step fits, with the numbers.

    Args:
        facts: Dictionary of `report`.

    Returns:
        String.
    """
    numbers = f"{_gibibytes(facts['peak'])}"
    if facts["beside"]:
        numbers += f", and {_gibibytes(facts['beside'])} lie beside it,"
    limit = USABLE_SHARE * facts["usable"]
    numbers += (
        f" of {_gibibytes(limit)} ({USABLE_SHARE:.0%} of what the compiler "
        f"gives a program; a replica has {_gibibytes(facts['hbm'])})"
    )
    if facts["fits"]:
        return f"fits: takes {numbers}"
    text = f"does not fit: needs {numbers}"
    found = facts.get("advice", {})
    ways = [f"--{name}={value}" for name, value in found.items() if value]
    if ways:
        text += f". By estimate {' or '.join(ways)} would fit"
    elif found:
        text += ". By estimate no batch would"
    return text


def _mebibytes(size):
    return f"{size / 2**20:12,.1f} MiB"


def _gibibytes(size):
    return f"{size / 2**30:.2f} GiB"
