r"""Compiles the claims of tpu_configs/ and writes their table.

    python train/tpu_table.py
    python train/tpu_table.py --write_only

A claim, one line of tpu_configs/claims.csv, is that an experiment fits on a TPU
slice. `train/main.py --compile_only` compiles its training step, in minutes for
a large model; the report is a line of tpu_configs/compiled.jsonl. Reports by
the installed versions are not compiled again: after a change of the model or
the training step remove their lines. Exits with code 1 if a claim does not fit
or compile. It needs `pip install "txl_keras[tpu_compile]"`.
"""

import csv
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import txl_keras.scripts.quiet  # noqa: F401

from absl import flags

from txl_keras.data.corpora.files import write_text
from txl_keras.scripts import options
from txl_keras.scripts import running
from txl_keras.tpu.compiling import check_compiler
from txl_keras.tpu.compiling import versions

FLAGS = flags.FLAGS
_SCRIPTS = pathlib.Path(__file__).parent
_CONFIGS = _SCRIPTS.parent / "tpu_configs"
_REPORTS = _CONFIGS / "compiled.jsonl"


class Table(options.Options):
    """Holds the options of this script.

    write_only: Compile nothing; only write the table again.
    """

    write_only: bool = False


Table.define()
# Heading, field of a report, unit, format.
_COLUMNS = (
    ("slice", "slice", None, "`{}`"),
    ("experiment", "experiment", None, "`{}`"),
    ("rows per replica", "rows", None, "{}"),
    ("`--accumulate_steps`", "accumulate_steps", None, "{}"),
    ("`--attention_kernel`", "kernel", None, "{}"),
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
# The fields of a report that identify its claim.
_NAMES = ("slice", "experiment", "accumulate_steps", "attention_kernel")


def main(_):
    with (_CONFIGS / "claims.csv").open(newline="") as file:
        claims = [
            (x, y, int(steps), kernel == "yes")
            for x, y, steps, kernel in [*csv.reader(file)][1:]
        ]
    found = map(json.loads, _REPORTS.read_text().splitlines())
    reports = {tuple(map(report.get, _NAMES)): report for report in found}
    failed = []
    if not FLAGS.write_only:
        check_compiler()
        for claim in claims:
            if reports.get(claim, {}).get("versions") == versions():
                continue
            print(f"--- {' '.join(map(str, claim))}", flush=True)
            reports[claim] = _compile(*claim)
            if not reports[claim].get("fits"):
                failed.append(" ".join(map(str, claim)))
                del reports[claim]
            _write(claims, reports)
    _write(claims, reports)
    if failed:
        raise RuntimeError(f"Does not fit or compile: {'; '.join(failed)}.")


def _compile(slice_, experiment, *values):
    """Compiles a training step; returns its report, `{}` on failure."""
    with tempfile.TemporaryDirectory() as workdir:
        subprocess.run(
            [
                sys.executable,
                _SCRIPTS / "main.py",
                f"--flagfile={experiment}",
                f"--flagfile={slice_}",
                *map("--{}={}".format, _NAMES[2:], values),
                "--compile_only",
                "--compile_steps=train",
                f"--workdir={workdir}",
            ],
            check=False,
        )
        path = pathlib.Path(workdir, "tpu_compile.json")
        found = json.loads(path.read_text()) if path.exists() else {"steps": []}
    return {
        **dict(zip(_NAMES, (slice_, experiment, *values), strict=True)),
        **dict(*found.pop("steps")),
        **{name: found[name] for name in ("date", "versions") if name in found},
    }


def _write(claims, reports):
    """Writes the reports of all claims, in their order, and their table."""
    found = [reports[claim] for claim in claims if claim in reports]
    lines = [json.dumps(x, separators=(",", ":")) + "\n" for x in found]
    write_text("".join(lines), str(_REPORTS))
    days = sorted({report["date"] for report in found})
    by = ", ".join(f"{k} {v}" for k, v in found[0]["versions"].items())
    rows = [[column[0] for column in _COLUMNS], ["---"] * len(_COLUMNS)]
    for report in found:
        values = {**report, "kernel": "yes" * report["attention_kernel"]}
        rows.append(
            [
                text.format(values[field] / unit if unit else values[field])
                for _, field, unit, text in _COLUMNS
            ]
        )
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    status = (
        f"Compiled: {len(found)} of {len(claims)} pairs of claims.csv. "
        f"{days[0]} to {days[-1]}, {by}."
    )
    guide = _CONFIGS / "README.md"
    text = re.sub(
        r"(?<=<!-- tpu_table -->\n).*(?=<!-- end of tpu_table -->)",
        lambda match: f"{status}\n\n{table}",
        guide.read_text("utf-8"),
        flags=re.DOTALL,
    )
    guide.write_text(text, "utf-8")


if __name__ == "__main__":
    running.run(main)
