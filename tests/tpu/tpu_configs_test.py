"""The flagfiles of TPU slices, and what their README claims to fit."""

import json
import pathlib
import re
import runpy

import pytest
from script_flags import flags_of

from txl_keras.tpu.slices import TYPES

ROOT = pathlib.Path(__file__).parents[2]
SLICES = {
    path.stem: path for path in sorted((ROOT / "tpu_configs").glob("*.flags"))
}
EXPERIMENTS = {
    path.stem: path
    for path in sorted((ROOT / "train" / "configs").glob("*.flags"))
}
# What a flagfile leaves to the command line; a corpus of its own wins.
REQUIRED = ("--workdir=w", "--corpus=c")


@pytest.fixture(scope="module")
def parse():
    with flags_of("main.py", *REQUIRED) as parse:
        yield parse


COMPILED = (ROOT / "tpu_configs" / "compiled.jsonl").read_text("utf-8")
REPORTS = [json.loads(line) for line in COMPILED.splitlines()]
# Slice, experiment, pieces, and the kernel if it is used.
NAMES = "slice", "experiment", "accumulate_steps", "attention"
CLAIMS = [tuple(map(report.get, NAMES)) for report in REPORTS]


def replicas_in(path):
    """Returns the replicas in a comment, as `TPUStrategy` counts them."""
    return int(re.search(r"^# (\d+) replicas", path.read_text(), re.M)[1])


def test_all_slices_are_there():
    assert {name for name, *_ in CLAIMS} == set(SLICES)
    assert len(CLAIMS) == len({(*c[:2], c[3]) for c in CLAIMS})


@pytest.mark.parametrize("name", SLICES)
def test_a_slice_sets_what_it_must_and_no_more(name, parse):
    path = SLICES[name]
    flags = parse(path)
    assert TYPES[flags.tpu_type].num_replicas_in_sync == replicas_in(path)
    assert f"# --accelerator-type={flags.tpu_type}:" in path.read_text("utf-8")
    assert flags.precision == "bfloat16"
    assert flags.eval_batch_size % replicas_in(path) == 0
    lines = path.read_text("utf-8").splitlines()
    given = {line.split("=")[0] for line in lines if line[0] != "#"}
    must = {
        "--tpu_type", "--precision", "--eval_batch_size",
        "--steps_per_execution",
    }  # fmt: skip
    assert must <= given <= {*must, "--checkpoint_every"}


@pytest.mark.parametrize("report", REPORTS, ids=map(str, CLAIMS))
def test_a_claim_divides_and_fits(report, parse):
    name, experiment = report["slice"], report["experiment"]
    flags = parse(EXPERIMENTS[experiment], SLICES[name])
    assert report["fits"]
    assert report["rows"] * replicas_in(SLICES[name]) == flags.batch_size
    assert report["rows"] % report["accumulate_steps"] == 0
    assert report["tpu_type"] == flags.tpu_type
    assert report["segment_length"] == flags.segment_length
    # It never ran on a TPU: only who asks for it gets it.
    assert flags.attention is None
    assert flags.precision == "bfloat16"
    guide = ROOT / "docs" / "reproduction.md"
    assert f"`{experiment}`" in guide.read_text("utf-8")


@pytest.mark.parametrize("name", SLICES)
def test_the_command_of_a_slice_is_claimed(name):
    text = SLICES[name].read_text("utf-8")
    experiment = re.search(r"--flagfile=train/configs/(\w+)\.flags", text)[1]
    pieces = re.search(r"--accumulate_steps=(\d+)", text)
    pieces = int(pieces[1]) if pieces else 1
    assert (name, experiment, pieces, "") in CLAIMS


def test_the_table_is_that_of_the_reports():
    table = runpy.run_path(str(ROOT / "train/tpu_table.py"))["table"](REPORTS)
    guide = (ROOT / "tpu_configs/README.md").read_text("utf-8")
    assert f"<!-- tpu_table -->\n{table}<!-- end of tpu_table -->" in guide
    # Not because nothing was found.
    assert f"| {REPORTS[0]['peak'] / 2**30:.1f} |" in table
