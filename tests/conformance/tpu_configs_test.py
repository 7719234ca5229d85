"""The flagfiles of TPU slices, and what their README claims to fit."""

import pathlib
import re

import pytest
from script_flags import flags_of

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
# As `TPUStrategy` counts: a core of v2 and v3, a chip of the others.
REPLICAS = {
    "v2_8": 8,
    "v3_8": 8,
    "v3_32": 32,
    "v3_64": 64,
    "v3_512": 512,
    "v4_8": 4,
    "v4_32": 16,
    "v5e_4": 4,
    "v5e_8": 8,
    "v5e_64": 64,
    "v5p_8": 4,
    "v6e_8": 8,
}


@pytest.fixture(scope="module")
def parse():
    with flags_of("main.py", *REQUIRED) as parse:
        yield parse


def claims():
    """Of the README's table: slice, experiment, rows, pieces."""
    text = (ROOT / "tpu_configs" / "README.md").read_text("utf-8")
    pattern = re.compile(
        r"^\| `(\w+)` \| `(\w+)` \| (\d+) \| (\d+) \|", re.MULTILINE
    )
    return [
        (name, experiment, int(rows), int(pieces))
        for name, experiment, rows, pieces in pattern.findall(text)
    ]


def replicas_in(path):
    """What the comments of a flagfile say."""
    return int(re.search(r"^# (\d+) replicas", path.read_text(), re.M)[1])


def test_all_slices_are_there():
    assert set(SLICES) == set(REPLICAS)
    assert {name for name, *_ in claims()} == set(REPLICAS)
    assert len(claims()) == len({claim[:2] for claim in claims()})


@pytest.mark.parametrize("name", SLICES)
def test_a_slice_sets_what_it_must_and_no_more(name, parse):
    path = SLICES[name]
    assert replicas_in(path) == REPLICAS[name]
    flags = parse(path)
    assert flags.precision == "bfloat16"
    assert flags.eval_batch_size % REPLICAS[name] == 0
    lines = path.read_text("utf-8").splitlines()
    given = {line.split("=")[0] for line in lines if line[0] != "#"}
    must = {"--precision", "--eval_batch_size", "--steps_per_execution"}
    assert must <= given <= {*must, "--checkpoint_every"}


@pytest.mark.parametrize("name, experiment, rows, pieces", claims())
def test_a_claim_divides(name, experiment, rows, pieces, parse):
    flags = parse(EXPERIMENTS[experiment], SLICES[name])
    assert flags.batch_size == rows * REPLICAS[name]
    assert rows % pieces == 0
    assert flags.precision == "bfloat16"
    # What is claimed is said in the flagfile too, with the flag to add.
    lines = SLICES[name].read_text("utf-8")
    added = f" --accumulate_steps={pieces}" if pieces > 1 else ""
    assert re.search(
        rf"^# {experiment}: {rows} rows?{added}(?! --)", lines, re.MULTILINE
    )
    assert f"`{experiment}`" in (ROOT / "README.md").read_text("utf-8")
