"""Estimates on paper how a training run scales over the chips of a slice.

The inputs are the report of a compiled step (`report.py`), published numbers of
the chips and the assumptions below. Nothing here was measured on a TPU.

Letters: `b` rows of one replica, `T` segment, `n` chips of a slice.
"""

import dataclasses

from txl_keras.data.step_batches import replica_batch_size
from txl_keras.tpu.report import roofline

# Bytes per second of one link in one direction.
LINK_BYTES_PER_SECOND = {
    "v3": 100e9,
    "v4": 45e9,
    "v5e": 50e9,
    "v5p": 100e9,
    "v6e": 100e9,
}
# int32 inputs and targets, float32 weights.
BYTES_PER_TOKEN = 12


@dataclasses.dataclass(frozen=True)
class Assumptions:
    """Holds what is assumed and neither compiled nor published."""

    achieved_share: float = 0.5  # least time of a step over the time it takes
    link_share: float = 0.8  # the same for the all-reduce
    overlap: float = 0.0  # share of the all-reduce hidden by computation
    bucket_bytes_per_second: float = 200e6  # writing one file to a bucket


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Describes a training run on a slice."""

    rows: int  # of one replica
    bound_seconds: float  # of `roofline`
    bound_by: str
    sent_bytes: float  # by a chip per step, for the all-reduce
    all_reduce_seconds: float
    step_seconds: float  # expected
    efficiency: float  # share of a step in which the chips compute
    utilization: float  # nominal model FLOPs over `step_seconds` and the peak
    tokens_per_second: float  # the most to read, at `bound_seconds` per step
    hours: float  # of all steps, without evaluation, checkpoints, compilation
    chip_hours: float


def num_links(slice_):
    """Counts the links over which the worst-placed chip of a slice can send.

    An axis that wraps around gives each chip two links. Without, the chips at
    its ends have one. An axis of one chip has none.

    v4 and v5p wrap around if every axis is a multiple of 4. Otherwise an axis
    wraps around if it is as long as that of a pod: 32 on v3, 16 on v5e and v6e.

    >>> from txl_keras.tpu.slices import tpu_type
    >>> num_links(tpu_type("v4-32"))  # 2x2x4
    3
    >>> num_links(tpu_type("v4-128"))  # 4x4x4
    6
    >>> num_links(tpu_type("v6e-128"))  # 8x16
    3
    """
    axes = [int(length) for length in slice_.topology.split("x")]
    if slice_.chip.name in ("v4", "v5p"):
        wraps = [all(length % 4 == 0 for length in axes)] * len(axes)
    else:
        pod = 32 if slice_.chip.name == "v3" else 16
        wraps = [length == pod for length in axes]
    return sum(
        1 + wrap for length, wrap in zip(axes, wraps, strict=True) if length > 1
    )


def sent_bytes(num_bytes, slice_):
    """Returns the bytes that a chip sends in an all-reduce of `num_bytes`.

    A ring sends `2 (n - 1) / n` times the bytes: `(n - 1) / n` to reduce and
    scatter, the same to gather. No algorithm sends less (Patarasuk and Yuan,
    2009, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations"). On v3, the two cores of a chip add their gradients first.

    >>> from txl_keras.tpu.slices import tpu_type
    >>> sent_bytes(800, tpu_type("v4-16"))  # 8 chips
    1400.0
    """
    n = slice_.num_chips
    return 2 * (n - 1) / n * num_bytes


def all_reduce_seconds(num_bytes, slice_, assumptions):
    """Returns the time of an all-reduce: `sent_bytes` over all links."""
    # The bytes are divided over the axes of the slice, which reduce at the same
    # time ("How to Scale Your Model", part 3). The latency of a hop, about a
    # microsecond, is left out.
    speed = (
        num_links(slice_)
        * LINK_BYTES_PER_SECOND[slice_.chip.name]
        * assumptions.link_share
    )
    return sent_bytes(num_bytes, slice_) / speed


def nearest_report(reports, experiment, chip, rows, attention_kernel=False):
    """Finds the compiled training step whose rows are nearest by ratio."""
    # Of two equally near steps, the one with fewer micro-batches is returned.
    found = [
        report
        for report in reports
        if report["experiment"] == experiment
        and report["chip"] == chip
        and report["attention_kernel"] == attention_kernel
    ]
    if not found:
        raise ValueError(
            f"`compiled.jsonl` must have a step of {experiment} for {chip}: "
            "add it to claims.csv and run train/tpu_table.py. Received: "
            f"attention_kernel={attention_kernel}"
        )
    return min(
        found,
        key=lambda report: (
            max(report["rows"], rows) / min(report["rows"], rows),
            report["accumulate_steps"],
        ),
    )


def fixed_bytes(report):
    """Returns the bytes in HBM per step that do not depend on the rows.

    With W bytes of weights, as many of gradients, and O of optimizer state, in
    float32:

        5 W  gradients: written, read and written by the all-reduce, read to be
             clipped, read by the optimizer
        4 W  weights: read forward and backward, read and written by the
             optimizer
        2 O  optimizer state: read and written
    """
    return 9 * report["weights"] + 2 * report["optimizer"]


def scaled(report, rows):
    """Returns FLOPs and bytes in HBM of a compiled step with other rows."""
    # FLOPs are proportional to the rows, and so are the bytes that exceed
    # `fixed_bytes`.
    ratio = rows / report["rows"]
    fixed = min(fixed_bytes(report), report["hbm_bytes_accessed"])
    moved = fixed + ratio * (report["hbm_bytes_accessed"] - fixed)
    return ratio * report["flops"], moved


def checkpoint_bytes(report, batch_size):
    """Returns the bytes of weights, optimizer and the memory of all rows."""
    memory = report["memory"] / report["rows"] * batch_size
    return report["weights"] + report["optimizer"] + memory


def estimate(report, slice_, batch_size, max_steps, feeding_rate, assumptions):
    """Estimates a training run on a slice, from a report of any rows."""
    # A step takes `computing + exposed + waiting`: `bound / achieved_share`,
    # `(1 - overlap) all_reduce`, and what feeding at `tokens / feeding_rate`
    # exceeds these by, because the steps of the next call are read and sent
    # during a call (`data/feed.py`). The efficiency is the share of
    # `computing`.
    rows = replica_batch_size(batch_size, slice_)
    flops, moved = scaled(report, rows)
    bound = roofline(flops, moved, slice_)
    reduced = report["collectives"]["all-reduce"]["bytes"]
    reducing = all_reduce_seconds(reduced, slice_, assumptions)

    computing = bound["bound_seconds"] / assumptions.achieved_share
    exposed = (1 - assumptions.overlap) * reducing
    tokens = batch_size * report["segment_length"]
    waiting = max(0.0, tokens / feeding_rate - computing - exposed)
    seconds = computing + exposed + waiting

    model_flops = report["model_flops"] * rows / report["rows"]
    hours = seconds * max_steps / 3600
    return Estimate(
        rows=rows,
        **bound,
        sent_bytes=sent_bytes(reduced, slice_),
        all_reduce_seconds=reducing,
        step_seconds=seconds,
        efficiency=computing / seconds,
        utilization=model_flops / (seconds * slice_.flops),
        tokens_per_second=tokens / bound["bound_seconds"],
        hours=hours,
        chip_hours=hours * slice_.num_chips,
    )
