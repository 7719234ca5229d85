"""Reports on a compiled TPU step: memory, operations and speed limits.

Letters: `b` rows of one replica, `T` segment, `M` memory.
"""

import dataclasses
import re

from txl_keras.tpu.hlo_text import bytes_moved
from txl_keras.tpu.hlo_text import collectives

# Share of the memory of a program that a step may use. The rest is left for
# what the compiler does not count: the next batch, the memory of evaluation,
# fragmentation.
USABLE_SHARE = 0.95
_TOO_LARGE = re.compile(
    r"required for .*?\(([\d.]+)([KMGT]?)\) exceeds available HBM "
    r"\(([\d.]+)([KMGT]?)\)"
)
_VECTOR_MEMORY = re.compile(r"Used \S+ of \S+ vmem|$")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Step:
    """Describes a step before it is compiled."""

    name: str  # "train", "evaluation" or "generation"
    rows: int  # of one replica
    segment_length: int
    memory_length: int
    num_replicas: int  # that run the step together
    precision: str
    # Of one replica. None where the memory holds projected keys, which
    # `utilization.model_flops` would count again.
    model_flops: int | None = None
    accumulate_steps: int = 1
    # Bytes of the arguments by kind, complete for training only.
    parts: dict = dataclasses.field(default_factory=dict)
    beside: int = 0  # bytes that the run keeps on the chip besides this step


def report(step, slice_, answer):
    """Returns what is known of a step on a slice, as a dictionary for JSON."""
    facts = dataclasses.asdict(step)
    parts = facts.pop("parts")
    facts = {
        "step": facts.pop("name"),
        "tpu_type": slice_.name,
        "chip": slice_.chip.name,
        "topology": slice_.topology,
        "replicas": facts.pop("num_replicas"),
        **facts,
        **parts,
        "hbm": slice_.chip.hbm_bytes,
        "usable": slice_.chip.usable_bytes,
    }
    if "error" in answer:
        facts["peak"] = _needed_bytes(answer["error"])
    else:
        facts |= _compiled(step, slice_, answer)
    limit = USABLE_SHARE * slice_.chip.usable_bytes - step.beside
    return {**facts, "fits": facts["peak"] <= limit}


def _compiled(step, slice_, answer):
    """Returns bytes, operations and the limits of speed."""
    # The compiler counts the body of a loop once. The micro-batches of
    # `--accumulate_steps=k` are such a loop: its operations are multiplied by k
    # (those outside, of the optimizer, are less than a hundredth), and its
    # bytes by the ratios of `bytes_moved`, which also give the share of HBM.
    # Other loops are counted once and reported: the number of iterations of the
    # adaptive softmax depends on the text. So the time is a lower bound, as far
    # as the estimate of bytes is right.
    text = answer["text"]
    outside, loop = bytes_moved(text)
    # If there is no loop, the compiler has unrolled it.
    times = step.accumulate_steps if any(loop) else 1
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
    names = ("arguments", "outputs", "aliased", "temporaries", "code")
    sizes = {name: answer[name] for name in names}
    facts = {
        "compile_seconds": round(answer["seconds"], 1),
        **sizes,
        # Aliased bytes count as arguments and as outputs, but exist once.
        "peak": sum(sizes.values()) - 2 * sizes["aliased"],
        "flops": flops,
        "bytes_accessed": moved,
        "hbm_bytes_accessed": moved_in_hbm,
        "collectives": collectives(text),
        "loops_counted_once": len(re.findall(r" while\(", text)) - (times > 1),
        "bound_seconds": seconds,
        "bound_by": "flops" if computing > moving else "bytes",
    }
    tokens = step.num_replicas * step.rows * step.segment_length / seconds
    # A step of one replica leaves the other core of its chip idle.
    chips = max(1, step.num_replicas / slice_.chip.cores)
    facts["tokens_per_second"] = tokens
    facts["tokens_per_second_of_chip"] = tokens / chips
    if step.model_flops:
        possible = seconds * slice_.chip.flops
        facts["utilization"] = step.model_flops / possible
    return facts


def _needed_bytes(error):
    found = _TOO_LARGE.search(error)
    if not found and "memory space vmem" in error:
        raise RuntimeError(
            "`attention_kernel` needs all keys of one head and row in the "
            "vector memory of the chip, where they do not fit: leave it out, "
            "or choose a shorter segment_length or memory_length. Received: "
            f"{_VECTOR_MEMORY.search(error)[0]}"
        )
    if not found:
        raise RuntimeError(f"The TPU compiler rejected the step: {error}")
    return int(float(found[1]) * _UNITS[found[2]])


def describe(facts):
    """Returns a report as text."""
    steps = facts["accumulate_steps"]
    lines = [
        f"{facts['step']} on {facts['tpu_type']} ({facts['chip']}, "
        f"{facts['topology']} chips): replicas {facts['replicas']}, rows per "
        f"replica {facts['rows']}"
        + (f" in {steps} micro-batches" if steps > 1 else "")
        + f", segment {facts['segment_length']}, memory "
        f"{facts['memory_length']}, {facts['precision']}"
    ]
    sizes = (
        "weights", "optimizer", "memory", "arguments", "outputs", "aliased",
        "temporaries", "code", "beside",
    )  # fmt: skip
    rows = {
        key: f"{facts[key] / 2**20:12,.1f} MiB" for key in sizes if key in facts
    }
    rows["outside the step"] = rows.pop("beside")
    if "flops" in facts:
        rows |= _describe_speed(facts)
    lines += [f"  {label:20} {text}" for label, text in rows.items()]
    return "\n".join([*lines, f"  {verdict(facts)}"])


def _describe_speed(facts):
    exchanged = ", ".join(
        f"{value['count']} {kind} of {value['bytes'] / 2**20:,.1f} MiB"
        for kind, value in facts["collectives"].items()
    )
    nominal, utilization, counted_once = "", "", ""
    if "utilization" in facts:
        nominal = f", nominally {facts['model_flops'] / 1e12:.4g}"
        utilization = f", {facts['utilization']:.1%} of the peak"
    if facts["loops_counted_once"]:
        counted_once = (
            f" (counting one iteration of {facts['loops_counted_once']} loops "
            "whose length depends on the text)"
        )
    return {
        "compiled in": f"{facts['compile_seconds']:12,.1f} s",
        "operations": f"{facts['flops'] / 1e12:12.4g} TFLOP{nominal}",
        "bytes accessed": f"{facts['bytes_accessed'] / 1e9:12.4g} GB, about "
        f"{facts['hbm_bytes_accessed'] / 1e9:.4g} of them in HBM{counted_once}",
        "collectives": exchanged or "none",
        "at least": f"{1e3 * facts['bound_seconds']:12.4g} ms per step, bound "
        f"by {facts['bound_by']}",
        "at most": f"{facts['tokens_per_second']:12,.0f} tokens/s, "
        f"{facts['tokens_per_second_of_chip']:,.0f} per chip{utilization}",
    }


def verdict(facts):
    """Returns a sentence that tells whether a step fits, with the numbers."""
    numbers = _gibibytes(facts["peak"])
    if facts["beside"]:
        numbers += f", plus {_gibibytes(facts['beside'])} outside the step,"
    limit = USABLE_SHARE * facts["usable"]
    numbers += (
        f" of {_gibibytes(limit)} ({USABLE_SHARE:.0%} of what the compiler "
        f"allows a program; a replica has {_gibibytes(facts['hbm'])})"
    )
    if facts["fits"]:
        return f"fits: needs {numbers}"
    remedy = "Lower --batch_size or the lengths"
    if facts["step"] == "train":
        remedy += ", or raise --accumulate_steps"
    return f"does not fit: needs {numbers}. {remedy}"


def _gibibytes(size):
    return f"{size / 2**30:.2f} GiB"
