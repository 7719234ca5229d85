r"""Compiles the claims of tpu_configs/ and writes their table.

    python train/tpu_table.py
    python train/tpu_table.py --write_only

A claim, one line of tpu_configs/claims.csv, is that an experiment fits on a TPU
slice with a given --accumulate_steps and --attention_kernel. Its training step
is compiled by `train/main.py --compile_only`, which takes minutes for a large
model, and its report is a line of tpu_configs/compiled.jsonl. Reports by the
installed versions are not compiled again, so the command can be stopped and
resumes; after a change of the model or the training step remove their lines.
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

flags.DEFINE_bool(
    "write_only", False, "Compile nothing; only write the table again."
)
_COLUMNS = {
    "slice": lambda r: f"`{r['slice']}`",
    "experiment": lambda r: f"`{r['experiment']}`",
    "rows per replica": lambda r: f"{r['rows']}",
    "`--accumulate_steps`": lambda r: f"{r['accumulate_steps']}",
    "`--attention_kernel`": lambda r: "yes" if r["attention_kernel"] else "",
    "peak, GiB": lambda r: f"{r['peak'] / 2**30:.1f}",
    "of": lambda r: f"{r['usable'] / 2**30:.1f}",
    "code, GiB": lambda r: f"{r['code'] / 2**30:.1f}",
    "TFLOP": lambda r: f"{r['flops'] / 1e12:.2f}",
    "GB accessed": lambda r: f"{r['bytes_accessed'] / 1e9:.1f}",
    "in HBM": lambda r: f"{r['hbm_bytes_accessed'] / 1e9:.1f}",
    "at least, ms": lambda r: f"{1e3 * r['bound_seconds']:.1f}",
    "bound by": lambda r: r["bound_by"],
    "tokens/s per chip, at most": lambda r: (
        f"{r['tokens_per_second_of_chip']:,.0f}"
    ),
    "utilization, at most": lambda r: f"{r['utilization']:.0%}",
    "compiled in, s": lambda r: f"{r['compile_seconds']:.0f}",
}

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
            if not (reports[claim] or {}).get("fits"):
                failed.append(claim)
                del reports[claim]
            _write(claims, reports)
    _write(claims, reports)
    for claim in failed:
        print(f"Does not fit or compile: {' '.join(map(str, claim))}")
    sys.exit(1 if failed else 0)


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
    dates = {}
    for report in found:
        named = ", ".join(f"{k} {v}" for k, v in report["versions"].items())
        dates.setdefault(named, set()).add(report["date"])
    status = f"Compiled: {len(found)} of {len(claims)} pairs of claims.csv."
    for named, days in dates.items():
        status += f" {' to '.join(sorted({min(days), max(days)}))}, {named}."
    cells = [[cell(report) for cell in _COLUMNS.values()] for report in found]
    rows = _COLUMNS, ["---"] * len(_COLUMNS), *cells
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
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
