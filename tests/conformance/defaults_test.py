"""The default settings of training, and configs that do not depend on them."""

import pathlib

import pytest
from script_flags import flags_of

from txl_keras.scripts import training_flags

CONFIGS = pathlib.Path(__file__).parents[2] / "train" / "configs"
PUBLISHED = [
    path
    for path in sorted(CONFIGS.rglob("*.flags"))
    if path.parent.name != "evaluation"
]


@pytest.fixture(scope="module")
def parse():
    with (
        pytest.MonkeyPatch.context() as patch,
        flags_of("main.py", "--compile_only") as parse,
    ):
        patch.chdir(CONFIGS.parents[1])  # where flagfiles name others from
        yield parse


def test_the_defaults_are_the_settings_of_the_quickstart(parse):
    parse(CONFIGS / "quickstart.flags")
    quickstart = training_flags.result_settings()
    assert quickstart["warmup_steps"] == 500
    parse()
    assert training_flags.result_settings() == quickstart


def test_the_default_warmup_is_a_tenth_of_the_steps(parse):
    parse().max_steps = 45
    assert training_flags.result_settings()["warmup_steps"] == 4


@pytest.mark.parametrize(
    "path", PUBLISHED, ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_a_config_does_not_depend_on_what_may_become_another_default(
    path, parse
):
    flags = parse(path)
    for name in (
        "batch_size", "segment_length", "max_steps", "learning_rate",
        "warmup_steps", "eval_every", "checkpoint_every",
    ):  # fmt: skip
        assert flags[name].present, name
