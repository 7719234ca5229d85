"""The configs: of presets, and of what Transformer-XL is compared with.

No config depends on the default settings of training, which are tested too.
"""

import pathlib

import numpy as np
import pytest
from script_flags import flags_of

from txl_keras.scripts import model_flags
from txl_keras.scripts import training_flags

ROOT = pathlib.Path(__file__).parents[2]
CONFIGS = ROOT / "train" / "configs"
REQUIRED = ("--workdir=w", "--corpus=c")
PUBLISHED = [
    str(path.relative_to(CONFIGS).with_suffix(""))
    for path in sorted(CONFIGS.rglob("*.flags"))
    # Those beyond are in tests/extensions/beyond_configs_test.py.
    if path.parent.name not in ("evaluation", "beyond")
]
# Backbone, memory, kind of attention, loss of the later half. None is the
# preset's.
XL, RELATIVE = None, None
EXPECTED = {
    "comparison/transformer_xl": (XL, 256, RELATIVE, False),
    "comparison/no_recurrence": (XL, 0, RELATIVE, False),
    "comparison/shaw": (XL, 256, "shaw", False),
    "comparison/vanilla": (XL, 0, "al_rfou", False),
    "comparison/lstm": ("lstm", None, None, False),
    "comparison_words/transformer_xl": (XL, 256, RELATIVE, False),
    "comparison_words/vanilla": (XL, 0, "al_rfou", False),
    "comparison_words/lstm": ("lstm", None, None, False),
    "table_6/transformer_xl": (XL, 128, RELATIVE, False),
    "table_6/shaw": (XL, 128, "shaw", False),
    "table_6/half_loss": (XL, 128, RELATIVE, True),
    "table_6/no_recurrence": (XL, 0, RELATIVE, False),
    "table_6/no_recurrence_half_loss": (XL, 0, RELATIVE, True),
    "table_6/no_recurrence_shaw": (XL, 0, "shaw", False),
    "table_6/no_recurrence_shaw_half_loss": (XL, 0, "shaw", True),
    "table_6/no_recurrence_vaswani_half_loss": (XL, 0, "vaswani", True),
    "table_6/al_rfou_half_loss": (XL, 0, "al_rfou", True),
    "table_6/transformer_xl_151m": (XL, None, RELATIVE, False),
    "table_7/transformer_xl": (XL, None, RELATIVE, False),
    "table_7/shaw": (XL, None, "shaw", False),
    "table_7/no_recurrence": (XL, 0, RELATIVE, False),
}


@pytest.fixture(scope="module")
def parse():
    with (
        pytest.MonkeyPatch.context() as patch,
        flags_of("main.py", *REQUIRED) as parse,
    ):
        patch.chdir(ROOT)  # where flagfiles name others from
        yield lambda *names: parse(*(CONFIGS / f"{n}.flags" for n in names))


def test_the_defaults_are_the_settings_of_the_quickstart(parse):
    parse("quickstart")
    quickstart = training_flags.result_settings()
    parse()
    # It trains for longer, and for short prompts.
    others = {"max_steps": 8000, "warmup_steps": 800, "cold_starts": 0.1}
    assert {**training_flags.result_settings(), **others} == quickstart


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_config_does_not_depend_on_what_may_become_another_default(
    name, parse
):
    flags = parse(name)
    for setting in (
        "batch_size", "segment_length", "max_steps", "learning_rate",
        "warmup_steps", "eval_every", "checkpoint_every",
    ):  # fmt: skip
        assert flags[setting].present, setting


def test_each_comparison_is_expected_here():
    files = CONFIGS.glob("table_*/*.flags"), CONFIGS.glob("comparison*/*.flags")
    found = {f"{p.parent.name}/{p.stem}" for paths in files for p in paths}
    common = {"comparison/common", "comparison_words/common"}
    assert found - common == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_it_is_the_model_of_its_name(name, parse):
    flags = parse(name)
    assert EXPECTED[name] == (
        flags.backbone,
        flags.memory_length,
        flags.attention_type,
        flags.half_loss,
    )
    # Of what the whole text is read in; half of it else never is a target.
    assert flags.order != "sequential" or not flags.half_loss
    if flags.attention_type == "shaw":
        keys = flags.memory_length
        if keys is None:
            assert name == "table_7/shaw"
            keys = 256
        assert flags.max_positions == keys + flags.segment_length


@pytest.mark.parametrize(
    ("folder", "vocabulary_size"),
    [("comparison", 204), ("comparison_words", 71_415)],
)
def test_those_that_are_compared_have_as_many_weights(
    parse, folder, vocabulary_size
):
    weights, steps = [], set()
    ranks = np.arange(vocabulary_size)
    tokens = np.repeat(ranks, 1 + 10**5 // (ranks + 1))
    for name in EXPECTED:
        if not name.startswith(f"{folder}/"):
            continue
        flags = parse(name)
        model = model_flags.build_model(vocabulary_size, tokens, "float32")
        weights.append(model.count_params())
        steps.add((flags.max_steps, flags.batch_size, flags.segment_length))
    assert max(weights) < 1.005 * min(weights)
    assert len(steps) == 1


def test_the_ablation_has_the_published_sizes(parse):
    flags = parse("table_6/transformer_xl")
    assert (flags.segment_length, flags.num_layers) == (128, 7)
    assert parse("table_7/transformer_xl").num_layers == 20
