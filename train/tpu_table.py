r"""Compiles the claims in tpu_configs/ and writes their table.

    python train/tpu_table.py

A claim says that an experiment fits on a TPU slice: it is the first fields of a
line of tpu_configs/compiled.jsonl. `train/main.py --compile_only` compiles the
training step, in minutes for a large model; its report completes the line.
Reports by the installed versions are not compiled again: after a change of the
training step remove all other fields. Exits with code 1 if a claim does not fit
or compile. It needs `pip install "txl_keras[tpu_compile]"`.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import txl_keras.scripts.quiet  # noqa: F401

from txl_keras.data.corpora.files import write_text
from txl_keras.scripts import running
from txl_keras.tpu.compiling import check_packages
from txl_keras.tpu.compiling import versions

_MAIN = pathlib.Path(__file__).with_name("main.py")
_REPORTS = _MAIN.parents[1] / "tpu_configs" / "compiled.jsonl"
# Heading, field of a report, unit, format.
_COLUMNS = (
    ("slice", "slice", None, "`{}`"),
    ("experiment", "experiment", None, "`{}`"),
    ("rows per replica", "rows", None, "{}"),
    ("`--accumulate_steps`", "accumulate_steps", None, "{}"),
    ("`--attention`", "attention", None, "{}"),
    ("peak, GiB", "peak", 2**30, "{:.1f}"),
    ("of", "usable", 2**30, "{:.1f}"),
    ("code, GiB", "code", 2**30, "{:.1f}"),
    ("TFLOP", "flops", 1e12, "{:.2f}"),
    ("GB accessed", "bytes_accessed", 1e9, "{:.1f}"),
    ("in HBM", "hbm_bytes_accessed", 1e9, "{:.1f}"),
    ("at least, ms", "bound_seconds", 1e-3, "{:.1f}"),
    ("bound by", "bound_by", None, "{}"),
    ("tokens/s per chip, at most", "tokens_per_second_of_chip", 1, "{:,.0f}"),
    ("utilization, at most", "utilization", 1, "{:.0%}"),
    ("compiled in, s", "compile_seconds", 1, "{:.0f}"),
)
_CLAIM = ("slice", "experiment", "accumulate_steps", "attention")


def main(_):
    check_packages()
    reports = [*map(json.loads, _REPORTS.read_text().splitlines())]
    for i, report in enumerate(reports):
        if report.get("versions") != versions():
            reports[i] = _compile({name: report[name] for name in _CLAIM})
            lines = [json.dumps(x, separators=(",", ":")) for x in reports]
            write_text("".join(f"{line}\n" for line in lines), str(_REPORTS))
    guide = _REPORTS.with_name("README.md")
    start, end = "<!-- tpu_table -->\n", "<!-- end of tpu_table -->"
    before, _, after = guide.read_text("utf-8").partition(start)
    after = after.partition(end)[2]
    guide.write_text(f"{before}{start}{table(reports)}{end}{after}", "utf-8")
    failed = [x for x in reports if not x.get("fits")]
    if failed:
        raise RuntimeError(f"These do not fit or compile: {failed}")


def _compile(claim):
    """Returns a claim, completed by the report of its training step."""
    print("---", *claim.values(), flush=True)
    slice_, experiment, steps, attention = claim.values()
    with tempfile.TemporaryDirectory() as workdir:
        subprocess.run(
            [
                *(sys.executable, _MAIN, "--compile_only"),
                *(f"--flagfile={experiment}", f"--flagfile={slice_}"),
                *(f"--accumulate_steps={steps}", f"--attention={attention}"),
                f"--workdir={workdir}",
            ],
            check=False,
        )
        path = pathlib.Path(workdir, "tpu_compile.json")
        if not path.exists():
            return claim
        return {**claim, **json.loads(path.read_text())}


def table(reports):
    """Returns the table of the claims that fit, as Markdown."""
    found = [report for report in reports if report.get("fits")]
    by = ", ".join(f"{k} {v}" for k, v in found[0]["versions"].items())
    days = sorted(report["date"] for report in found)
    rows = [[column[0] for column in _COLUMNS], ["---"] * len(_COLUMNS)]
    rows += [
        [
            text.format(report[field] / unit if unit else report[field])
            for _, field, unit, text in _COLUMNS
        ]
        for report in found
    ]
    lines = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    when = f"{days[0]} to {days[-1]}, {by}"
    return f"Compiled: {len(found)} of {len(reports)} pairs. {when}.\n\n{lines}"


if __name__ == "__main__":
    running.run(main)
