"""The flagfiles of TPU slices, and what their README claims to fit."""

import json
import pathlib
import re

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


NAMES = "slice", "experiment", "accumulate_steps", "attention_kernel"


def reports():
    path = ROOT / "tpu_configs" / "compiled.jsonl"
    lines = path.read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def claims():
    """Slice, experiment, pieces, whether with the kernel."""
    return [tuple(map(report.get, NAMES)) for report in reports()]


def replicas_in(path):
    """Returns the replicas in a comment, as `TPUStrategy` counts them."""
    return int(re.search(r"^# (\d+) replicas", path.read_text(), re.M)[1])


def test_all_slices_are_there():
    assert {name for name, *_ in claims()} == set(SLICES)
    assert len(claims()) == len({(*c[:2], c[3]) for c in claims()})


@pytest.mark.parametrize("name", SLICES)
def test_a_slice_sets_what_it_must_and_no_more(name, parse):
    path = SLICES[name]
    flags = parse(path)
    assert TYPES[flags.tpu_type].replicas == replicas_in(path)
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


@pytest.mark.parametrize("name, experiment, pieces, attention_kernel", claims())
def test_a_claim_divides(name, experiment, pieces, attention_kernel, parse):
    flags = parse(EXPERIMENTS[experiment], SLICES[name])
    rows, rest = divmod(flags.batch_size, replicas_in(SLICES[name]))
    assert not rest
    assert rows % pieces == 0
    # It never ran on a TPU: only who asks for it gets it.
    assert flags.attention_kernel is False
    assert flags.precision == "bfloat16"
    guide = ROOT / "docs" / "reproduction.md"
    assert f"`{experiment}`" in guide.read_text("utf-8")


@pytest.mark.parametrize("name", SLICES)
def test_the_command_of_a_slice_is_claimed(name):
    text = SLICES[name].read_text("utf-8")
    experiment = re.search(r"--flagfile=train/configs/(\w+)\.flags", text)[1]
    pieces = re.search(r"--accumulate_steps=(\d+)", text)
    pieces = int(pieces[1]) if pieces else 1
    assert (name, experiment, pieces, False) in claims()


def test_what_is_claimed_is_in_the_tables_and_fits(parse):
    for report in reports():
        name, experiment = report["slice"], report["experiment"]
        assert report["fits"]
        flags = parse(EXPERIMENTS[experiment], SLICES[name])
        replicas = replicas_in(SLICES[name])
        assert report["rows"] * replicas == flags.batch_size
        assert report["tpu_type"] == flags.tpu_type
        assert report["segment_length"] == flags.segment_length
