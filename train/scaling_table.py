"""Computes how training scales over TPU slices, and writes docs/scaling.md.

    python train/scaling_table.py
    python train/scaling_table.py --feeding_rate=500000

Every number follows from tpu_configs/compiled.jsonl, from the batch size and
steps of train/configs, and from what `txl_keras/tpu/scaling.py` assumes. The
first command writes the tables of the guide again. The second prints the table
of slices that one host can feed, for a rate that you measured, and writes
nothing.
"""

import json
import pathlib
import re

import txl_keras.scripts.quiet  # noqa: F401

from absl import flags

from txl_keras.scripts import running
from txl_keras.scripts.guide_tables import replace
from txl_keras.scripts.guide_tables import table
from txl_keras.tpu import scaling
from txl_keras.tpu.slices import names
from txl_keras.tpu.slices import tpu_type

FLAGS = flags.FLAGS

flags.DEFINE_float(
    "feeding_rate", None,
    "Tokens per second that one host feeds, as measured on yours. Prints the "
    "slices that it can feed. By default the rates of the guide.",
    lower_bound=1.0,
)  # fmt: skip
flags.DEFINE_string(
    "root", str(pathlib.Path(__file__).parents[1]),
    "Folder that holds docs, tpu_configs and train/configs.",
)  # fmt: skip

# Experiment and attention kernel, by the name of their table.
_TABLES = {
    "enwik8_large": ("enwik8_large", False),
    "enwik8_large_kernel": ("enwik8_large", True),
    "lm1b_large": ("lm1b_large", False),
}
# Of one core with eight hosts, by train/benchmark.py --experiment=feeding.
_FEEDING_RATES = {"enwik8_large": 30e6, "lm1b_large": 2.8e6}
# The slice of the published run, and its time according to its README.
_PUBLISHED = {
    "enwik8_large": ("v3-32", "2 to 5 days"),
    "lm1b_large": ("v3-512", "2 to 5 days"),
}
_ASSUMPTIONS = scaling.Assumptions()
# Those whose links have a known speed, without half a host of v5e.
_SLICES = [
    slice_
    for slice_ in map(tpu_type, names())
    if slice_.chip.name in scaling.LINK_BYTES_PER_SECOND
    and slice_.name != "v5litepod-4"
]
_CHIPS = {slice_.chip.name: slice_.chip for slice_ in _SLICES}
_BOOK = "https://jax-ml.github.io/scaling-book"
_CLOUD = "https://docs.cloud.google.com/tpu/docs"
_COLUMNS = (
    "slice", "chips", "rows per replica", "from", "at least, ms", "bound by",
    "sent per chip, GB", "all-reduce, ms", "expected, ms", "efficiency",
    "utilization", "hours", "chip-hours",
)  # fmt: skip


def main(_):
    root = pathlib.Path(FLAGS.root)
    reports = _reports(root)
    runs = {
        name: _runs(root, reports, *setting)
        for name, setting in _TABLES.items()
    }
    if FLAGS.feeding_rate:
        print(_input_table(runs, dict.fromkeys(_TABLES, FLAGS.feeding_rate)))
        return
    rates = {
        name: _FEEDING_RATES[experiment]
        for name, (experiment, _) in _TABLES.items()
    }
    tables = {
        "assumptions": _assumptions_table(),
        "check": _check_table(root, reports),
        "checkpoint": _checkpoint_table(root, reports),
        **{name: _run_table(found) for name, found in runs.items()},
        "limits": _limits_table(runs),
        "input": _input_table(runs, rates),
    }
    replace(root / "docs" / "scaling.md", tables)


def _reports(root):
    path = root / "tpu_configs" / "compiled.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def _settings(root, experiment):
    """Reads batch size, steps and steps per checkpoint of an experiment."""
    path = root / "train" / "configs" / f"{experiment}.flags"
    found = dict(re.findall(r"^--(\w+)=(.*)$", path.read_text(), re.MULTILINE))
    names = ("batch_size", "max_steps", "checkpoint_every")
    return [int(found[name]) for name in names]


def _run(root, reports, experiment, attention_kernel, slice_):
    """Returns slice, report and estimate of a run."""
    batch_size, max_steps, _ = _settings(root, experiment)
    report = scaling.nearest_report(
        reports,
        experiment,
        slice_.chip.name,
        batch_size // slice_.replicas,
        attention_kernel,
    )
    rate = _FEEDING_RATES[experiment]
    found = scaling.estimate(
        report, slice_, batch_size, max_steps, rate, _ASSUMPTIONS
    )
    return slice_, report, found


def _runs(root, reports, experiment, attention_kernel):
    """Returns the runs on slices with at least a row per replica."""
    # Chips that the experiment was not compiled for are left out.
    batch_size, _, _ = _settings(root, experiment)
    compiled = {
        report["chip"]
        for report in reports
        if report["experiment"] == experiment
        and report["attention_kernel"] == attention_kernel
    }
    return [
        _run(root, reports, experiment, attention_kernel, slice_)
        for slice_ in _SLICES
        if slice_.chip.name in compiled - {"v3"}
        and slice_.replicas <= batch_size
    ]


def _check_table(root, reports):
    rows = []
    for experiment, (name, published) in _PUBLISHED.items():
        slice_ = tpu_type(name)
        _, _, result = _run(root, reports, experiment, False, slice_)
        rows.append(
            (
                f"`{experiment}`",
                f"`{name}`",
                slice_.num_chips,
                published,
                f"{result.hours / 24:.1f} days",
            )
        )
    columns = "experiment", "slice", "chips", "published", "computed"
    return table(columns, rows)


def _run_table(found):
    return table(_COLUMNS, [_run_cells(*line) for line in found])


def _run_cells(slice_, report, result):
    return [
        f"`{slice_.name}`",
        slice_.num_chips,
        result.rows,
        f"`{report['slice']}`, {report['rows']}",
        f"{1e3 * result.bound_seconds:.1f}",
        result.bound_by,
        f"{result.sent_bytes / 1e9:.2f}",
        f"{1e3 * result.all_reduce_seconds:.1f}",
        f"{1e3 * result.step_seconds:.0f}",
        f"{result.efficiency:.0%}",
        f"{result.utilization:.0%}",
        f"{result.hours:,.1f}",
        f"{result.chip_hours:,.0f}",
    ]


def _limits_table(runs):
    """Makes a table of the sensible slices of each chip."""
    rows = []
    for name, found in runs.items():
        for chip in dict.fromkeys(slice_.chip.name for slice_, _, _ in found):
            lines = [
                (slice_, result)
                for slice_, _, result in found
                if slice_.chip.name == chip
            ]
            cheapest = min(lines, key=lambda line: line[1].chip_hours)
            limit = 2 * cheapest[1].chip_hours
            affordable = [line for line in lines if line[1].chip_hours <= limit]
            rows.append(
                (
                    _described(name),
                    chip,
                    *_cost_cells(*cheapest),
                    *_cost_cells(*affordable[-1]),
                    _largest(lines, lambda run: run.efficiency),
                    _largest(lines, _efficiency_at_bound),
                    *_cost_cells(*lines[-1]),
                )
            )
    columns = (
        "experiment", "chip",
        "cheapest", "hours", "chip-hours",
        "largest at up to twice the cost", "hours", "chip-hours",
        "largest with 50% efficiency", "the same for steps at their bound",
        "largest with a row per replica", "hours", "chip-hours",
    )  # fmt: skip
    return table(columns, rows)


def _largest(lines, efficiency):
    """Returns the name of the largest slice with an efficiency of a half."""
    names = [
        slice_.name for slice_, result in lines if efficiency(result) >= 0.5
    ]
    return f"`{names[-1]}`" if names else "none"


def _efficiency_at_bound(result):
    """Returns the efficiency if computing took no longer than its bound."""
    lost = (1 - result.efficiency) * result.step_seconds
    return result.bound_seconds / (result.bound_seconds + lost)


def _cost_cells(slice_, result):
    return (
        f"`{slice_.name}`",
        f"{result.hours:,.1f}",
        f"{result.chip_hours:,.0f}",
    )


def _input_table(runs, rates):
    """Makes a table of what each slice reads, and whether a core suffices."""
    columns = ["slice"]
    lines = {slice_.name: [f"`{slice_.name}`"] for slice_ in _SLICES}
    for name, found in runs.items():
        described = _described(name)
        columns += [
            f"{described}, tokens/s",
            "MB/s",
            f"of {rates[name] / 1e6:g} M tokens/s",
        ]
        results = {slice_.name: result for slice_, _, result in found}
        for slice_name, cells in lines.items():
            cells += _input_cells(results.get(slice_name), rates[name])
    return table(columns, [cells for cells in lines.values() if any(cells[1:])])


def _input_cells(result, rate):
    if result is None:
        return "", "", ""
    share = result.tokens_per_second / rate
    return (
        f"{result.tokens_per_second:,.0f}",
        f"{result.tokens_per_second * scaling.BYTES_PER_TOKEN / 1e6:.1f}",
        f"{share:.0%}" if share <= 1 else f"**{share:.0%}: no**",
    )


def _checkpoint_table(root, reports):
    rows = []
    for experiment in dict(_TABLES.values()):
        batch_size, max_steps, every = _settings(root, experiment)
        report = next(
            report for report in reports if report["experiment"] == experiment
        )
        size = scaling.checkpoint_bytes(report, batch_size)
        seconds = size / _ASSUMPTIONS.bucket_bytes_per_second
        rows.append(
            (
                f"`{experiment}`",
                f"{batch_size} x {report['segment_length']}",
                f"{max_steps:,}",
                f"{report['collectives']['all-reduce']['bytes'] / 1e9:.2f}",
                f"{report['weights'] / 1e9:.2f}",
                f"{report['optimizer'] / 1e9:.2f}",
                f"{(size - report['weights'] - report['optimizer']) / 1e9:.2f}",
                f"{size / 1e9:.2f}",
                f"{seconds:.0f}",
                f"{every:,}",
            )
        )
    columns = (
        "experiment", "batch", "steps", "all-reduced per step, GB",
        "weights, GB", "optimizer, GB", "memory of all rows, GB",
        "checkpoint, GB", "seconds to write", "saved every, steps",
    )  # fmt: skip
    return table(columns, rows)


def _assumptions_table():
    def per_chip(value):
        return ", ".join(f"{name} {value(name)}" for name in _CHIPS)

    docs = ", ".join(f"[{name}]({_CLOUD}/{name})" for name in _CHIPS)
    assumed = _ASSUMPTIONS
    rates = ", ".join(
        f"`{name}` {rate / 1e6:g} M" for name, rate in _FEEDING_RATES.items()
    )
    return table(
        ("assumption", "value", "source"),
        [
            (
                "peak per chip, bfloat16, TFLOP/s",
                per_chip(lambda name: f"{_CHIPS[name].flops / 1e12:g}"),
                f"published: {docs}",
            ),
            (
                "HBM per chip, GB/s",
                per_chip(
                    lambda name: f"{_CHIPS[name].bytes_per_second / 1e9:g}"
                ),
                "the same pages",
            ),
            (
                "one link of a chip, in one direction, GB/s",
                per_chip(
                    lambda name: (
                        f"{scaling.LINK_BYTES_PER_SECOND[name] / 1e9:g}"
                    )
                ),
                f"[How to Scale Your Model, part 2]({_BOOK}/tpus); the pages "
                "of v5e, v5p and v6e agree: 400, 1,200 and 800 GB/s in both "
                "directions of 4, 6 and 4 links",
            ),
            (
                "links that an axis gives each chip",
                "2 if it wraps around: on v4 and v5p if all axes are "
                "multiples of 4, on v5e and v6e if its length is 16, on v3 "
                "32; otherwise 1",
                f"[part 2]({_BOOK}/tpus), [v5p]({_CLOUD}/v5p)",
            ),
            (
                "achieved share of the links",
                f"{assumed.link_share:.0%}",
                f"[part 3]({_BOOK}/sharding): an all-gather on v5e took 680 "
                "us, computed 560 us",
            ),
            (
                "all-reduce hidden by computation",
                f"{assumed.overlap:.0%}",
                "ours, the worst case: the optimizer has to wait for the norm "
                "of all gradients",
            ),
            (
                "achieved share of a step's bound",
                f"{assumed.achieved_share:.0%}",
                "ours. PaLM reached 46% of the peak of v4 "
                "([arXiv:2204.02311](https://arxiv.org/abs/2204.02311))",
            ),
            (
                "writing one file to a bucket, MB/s",
                f"{assumed.bucket_bytes_per_second / 1e6:g}",
                "one stream from a VM: [182 to 233 MB/s](https://gist.github"
                ".com/doit-mattporter/977f6cfb575fa8b36b06128e37c955fc)",
            ),
            (
                "bytes per token to feed",
                scaling.BYTES_PER_TOKEN,
                "input and target in int32, weight in float32",
            ),
            (
                "feeding by one core, tokens/s",
                rates,
                "measured [below](#input), with eight hosts, on an Intel Xeon "
                "of a cloud machine",
            ),
        ],
    )


def _described(name):
    experiment, attention_kernel = _TABLES[name]
    return f"`{experiment}`" + (", kernel" if attention_kernel else "")


if __name__ == "__main__":
    running.run(main)
