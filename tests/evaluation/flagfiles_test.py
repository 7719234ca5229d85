"""The settings of published results, as flags of train/evaluate.py."""

import pathlib

import pytest
from script_flags import flags_of

ROOT = pathlib.Path(__file__).parents[2]
CONFIGS = ROOT / "train" / "configs"
# As published: rows, segment, memory, clamp, same length.
EXPECTED = {
    "enwik8_18_layers": (10, 80, 2100, 820, True),
    "enwik8_base": (10, 80, 2100, 820, True),
    "enwik8_large": (16, 128, 3800, 1000, True),
    "lm1b_base": (16, 32, 128, None, True),
    "lm1b_large": (16, 32, 128, None, True),
    "ptb_24m": (1, 70, 70, None, None),
    "text8_base": (10, 80, 2100, 820, True),
    "text8_large": (16, 128, 3800, 1000, True),
    "wikitext103_base": (10, 64, 640, 400, True),
    "wikitext103_large": (16, 128, 1600, 1000, True),
    "wikitext103_nvidia_base": (16, 64, 640, 400, True),
    "wikitext103_nvidia_large": (16, 128, 1600, 1000, True),
}


@pytest.fixture(scope="module")
def parse():
    with flags_of("evaluate.py", "--workdir=w") as parse:
        yield parse


def test_every_experiment_but_our_own_has_one():
    names = {path.stem for path in CONFIGS.glob("*.flags")} - {"quickstart"}
    assert names == set(EXPECTED)
    files = {path.stem for path in (CONFIGS / "evaluation").glob("*.flags")}
    assert files == names


@pytest.mark.parametrize("name", EXPECTED)
def test_it_sets_what_was_published(name, parse):
    flags = parse(CONFIGS / "evaluation" / f"{name}.flags")
    assert EXPECTED[name] == (
        flags.batch_size,
        flags.segment_length,
        flags.memory_length,
        flags.clamp_length,
        flags.same_length,
    )
    assert flags.warmup == ("memory" if "nvidia" in name else "none")
