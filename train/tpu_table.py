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
import subprocess
import sys
import tempfile

import txl_keras.scripts.quiet  # noqa: F401

from absl import flags

from txl_keras.data.corpora.files import write_text
from txl_keras.scripts import running
from txl_keras.scripts.guide_tables import replace
from txl_keras.scripts.guide_tables import table
from txl_keras.tpu.compiling import check_compiler
from txl_keras.tpu.compiling import versions

FLAGS = flags.FLAGS
_SCRIPTS = pathlib.Path(__file__).parent

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
flags.DEFINE_string(
    "root", str(_SCRIPTS.parent),
    "Folder that holds tpu_configs and train/configs.",
)  # fmt: skip

_COLUMNS = (
    "slice", "experiment", "rows per replica", "`--accumulate_steps`",
    "`--attention_kernel`", "peak, GiB", "of", "code, GiB", "TFLOP",
    "GB accessed", "in HBM", "at least, ms", "bound by",
    "tokens/s per chip, at most", "utilization, at most", "compiled in, s",
)  # fmt: skip

# The fields of a report that identify its claim.
_NAMES = ("slice", "experiment", "accumulate_steps", "attention_kernel")


def main(_):
    root = pathlib.Path(FLAGS.root)
    claims = _read_claims(root)
    reports = _read_reports(root)
    chosen = _chosen(claims)
    failed = []
    if not FLAGS.write_only:
        check_compiler()
        for claim in chosen:
            if FLAGS.force or not _is_current(reports.get(claim)):
                print(f"--- {' '.join(map(str, claim))}", flush=True)
                reports[claim] = _compile(root, *claim)
                if not (reports[claim] or {}).get("fits"):
                    failed.append(claim)
                    del reports[claim]
                _write_reports(root, claims, reports)
    _write_reports(root, claims, reports)
    _write_table(root, claims, reports)
    for claim in failed:
        print(f"Does not fit or compile: {' '.join(map(str, claim))}")
    sys.exit(1 if failed else 0)


def _read_claims(root):
    """Reads tuples of slice, experiment, accumulate_steps, attention_kernel."""
    path = root / "tpu_configs" / "claims.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    claims = [
        (
            row["slice"],
            row["experiment"],
            int(row["accumulate_steps"]),
            row["attention_kernel"] == "yes",
        )
        for row in rows
    ]
    for slice_, experiment, *_ in claims:
        for flagfile in _flagfiles(root, slice_, experiment):
            if not flagfile.exists():
                raise ValueError(
                    f"{path} must name flagfiles that exist. Received: "
                    f"{flagfile}"
                )
    return claims


def _flagfiles(root, slice_, experiment):
    return (
        root / "train" / "configs" / f"{experiment}.flags",
        root / "tpu_configs" / f"{slice_}.flags",
    )


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


def _is_current(report):
    return report is not None and report["versions"] == versions()


def _compile(root, slice_, experiment, accumulate_steps, attention_kernel):
    """Compiles a training step; returns its report, or `None` on failure."""
    flagfiles = _flagfiles(root, slice_, experiment)
    with tempfile.TemporaryDirectory() as workdir:
        subprocess.run(
            [
                sys.executable,
                _SCRIPTS / "main.py",
                *(f"--flagfile={path}" for path in flagfiles),
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


def _reports_path(root):
    return root / "tpu_configs" / "compiled.jsonl"


def _read_reports(root):
    """Reads the reports into a dictionary by claim."""
    path = _reports_path(root)
    lines = path.read_text().splitlines() if path.exists() else []
    reports = [json.loads(line) for line in lines]
    return {tuple(map(report.get, _NAMES)): report for report in reports}


def _write_reports(root, claims, reports):
    """Writes the reports of all claims, in their order, and drops others."""
    path = _reports_path(root)
    lines = [
        json.dumps(reports[claim], separators=(",", ":")) + "\n"
        for claim in claims
        if claim in reports
    ]
    write_text("".join(lines), str(path))


def _write_table(root, claims, reports):
    found = [reports[claim] for claim in claims if claim in reports]
    compiled = table(_COLUMNS, map(_cells, found))
    replace(
        root / "tpu_configs" / "README.md",
        {"tpu_table": f"{_status(claims, found)}\n\n{compiled}"},
    )


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
