r"""Compiles the claims of tpu_configs/ and writes their table.

    python train/tpu_table.py
    python train/tpu_table.py --only=v4_8,enwik8_large,enwik8_base
    python train/tpu_table.py --write_only

A claim, one line of tpu_configs/claims.csv, is that an experiment fits on a TPU
slice with a given --accumulate_steps and --attention_kernel. Its training step
is compiled by `train/main.py --compile_only`, which takes minutes for a large
model, and its report is a line of tpu_configs/compiled.jsonl. Reports by the
installed versions are not compiled again, so the command can be stopped and
resumes; after a change of the model or the training step it needs --force.
It needs `pip install "txl_keras[tpu_compile]"`.

A claim that does not fit or does not compile is not written, and the command
exits with code 1.
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
from txl_keras.scripts import running
from txl_keras.tpu.compiling import check_compiler
from txl_keras.tpu.compiling import versions

FLAGS = flags.FLAGS
_SCRIPTS = pathlib.Path(__file__).parent
_CONFIGS = _SCRIPTS.parent / "tpu_configs"
_REPORTS = _CONFIGS / "compiled.jsonl"

flags.DEFINE_list(
    "only", [],
    "Names of slices, experiments or both to compile. Without a name of a "
    "slice all slices, and without one of an experiment all experiments.",
)  # fmt: skip
flags.DEFINE_bool(
    "force", False, "Compile again claims that have a current report."
)
flags.DEFINE_bool(
    "write_only", False, "Compile nothing; only write the table again."
)
_COLUMNS = (
    "slice", "experiment", "rows per replica", "`--accumulate_steps`",
    "`--attention_kernel`", "peak, GiB", "of", "code, GiB", "TFLOP",
    "GB accessed", "in HBM", "at least, ms", "bound by",
    "tokens/s per chip, at most", "utilization, at most", "compiled in, s",
)  # fmt: skip

# The fields of a report that identify its claim.
_NAMES = ("slice", "experiment", "accumulate_steps", "attention_kernel")


def main(_):
    claims, reports = _read_claims(), _read_reports()
    failed = []
    for claim in [] if FLAGS.write_only else _chosen(claims):
        check_compiler()
        report = reports.get(claim)
        if report and report["versions"] == versions() and not FLAGS.force:
            continue
        print(f"--- {' '.join(map(str, claim))}", flush=True)
        reports[claim] = _compile(*claim)
        if not (reports[claim] or {}).get("fits"):
            failed.append(claim)
            del reports[claim]
        _write(claims, reports)
    _write(claims, reports)
    for claim in failed:
        print(f"Does not fit or compile: {' '.join(map(str, claim))}")
    sys.exit(1 if failed else 0)


def _read_claims():
    """Reads tuples of slice, experiment, accumulate_steps, attention_kernel."""
    with (_CONFIGS / "claims.csv").open(newline="") as file:
        return [
            (
                row["slice"],
                row["experiment"],
                int(row["accumulate_steps"]),
                row["attention_kernel"] == "yes",
            )
            for row in csv.DictReader(file)
        ]


def _read_reports():
    """Reads the reports into a dictionary by claim."""
    lines = _REPORTS.read_text().splitlines()
    reports = [json.loads(line) for line in lines]
    return {tuple(map(report.get, _NAMES)): report for report in reports}


def _chosen(claims):
    """Returns the claims that `--only` selects."""
    chosen = claims
    names = set(FLAGS.only)
    known = [{claim[i] for claim in claims} for i in (0, 1)]
    unknown = names - known[0] - known[1]
    if unknown:
        raise ValueError(
            "`only` must name slices and experiments of claims.csv. "
            f"Received: {', '.join(sorted(unknown))}"
        )
    for i in (0, 1):
        selected = names & known[i]
        if selected:
            chosen = [claim for claim in chosen if claim[i] in selected]
    return chosen


def _compile(slice_, experiment, accumulate_steps, attention_kernel):
    """Compiles a training step; returns its report, or `None` on failure."""
    with tempfile.TemporaryDirectory() as workdir:
        subprocess.run(
            [
                sys.executable,
                _SCRIPTS / "main.py",
                f"--flagfile={_SCRIPTS}/configs/{experiment}.flags",
                f"--flagfile={_CONFIGS}/{slice_}.flags",
                f"--accumulate_steps={accumulate_steps}",
                f"--attention_kernel={attention_kernel}",
                "--compile_only",
                "--compile_steps=train",
                f"--workdir={workdir}",
            ],
            check=False,
        )
        path = pathlib.Path(workdir, "tpu_compile.json")
        if not path.exists():
            return None
        found = json.loads(path.read_text())
    return {
        "slice": slice_,
        "experiment": experiment,
        "attention_kernel": attention_kernel,
        **found["steps"][0],
        "date": found["date"],
        "versions": found["versions"],
    }


def _write(claims, reports):
    """Writes the reports of all claims, in their order, and their table."""
    found = [reports[claim] for claim in claims if claim in reports]
    lines = [json.dumps(x, separators=(",", ":")) + "\n" for x in found]
    write_text("".join(lines), str(_REPORTS))
    rows = _COLUMNS, ["---"] * len(_COLUMNS), *map(_cells, found)
    table = "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)
    guide = _CONFIGS / "README.md"
    text = re.sub(
        r"(?<=<!-- tpu_table -->\n).*(?=<!-- end of tpu_table -->)",
        lambda match: f"{_status(claims, found)}\n\n{table}",
        guide.read_text("utf-8"),
        flags=re.DOTALL,
    )
    guide.write_text(text, "utf-8")


def _status(claims, found):
    """Describes how many claims are compiled, when and by which versions."""
    text = f"Compiled: all {len(found)} pairs of claims.csv."
    if len(found) < len(claims):
        text = f"Compiled: {len(found)} of {len(claims)} pairs of claims.csv."
    by_versions = {}
    for report in found:
        named = ", ".join(f"{k} {v}" for k, v in report["versions"].items())
        by_versions.setdefault(named, set()).add(report["date"])
    for named, dates in by_versions.items():
        first, last = min(dates), max(dates)
        days = first if first == last else f"{first} to {last}"
        text += f" {days}, {named}."
    return text


def _cells(report):
    return (
        f"`{report['slice']}`",
        f"`{report['experiment']}`",
        report["rows"],
        report["accumulate_steps"],
        "yes" if report["attention_kernel"] else "",
        f"{report['peak'] / 2**30:.1f}",
        f"{report['usable'] / 2**30:.1f}",
        f"{report['code'] / 2**30:.1f}",
        f"{report['flops'] / 1e12:.2f}",
        f"{report['bytes_accessed'] / 1e9:.1f}",
        f"{report['hbm_bytes_accessed'] / 1e9:.1f}",
        f"{1e3 * report['bound_seconds']:.1f}",
        report["bound_by"],
        f"{report['tokens_per_second_of_chip']:,.0f}",
        f"{report['utilization']:.0%}",
        f"{report['compile_seconds']:.0f}",
    )


if __name__ == "__main__":
    running.run(main)
