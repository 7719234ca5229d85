"""The configs: of presets, and of what Transformer-XL is compared with.

No config depends on the default settings of training, which are tested too.
"""

import pathlib
import re

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
COMPARED = [
    name
    for name in PUBLISHED
    if name.startswith(("comparison", "table_")) and "/common" not in name
]
# What words in a name promise of the attention; `None` is the preset's.
ATTENTION = {
    "shaw": "shaw", "vaswani": "vaswani", "al_rfou": "al_rfou",
    "vanilla": "al_rfou",
}  # fmt: skip
# Memory by folder, of those that have one.
MEMORY = {
    "comparison": 256, "comparison_words": 256, "table_6": 128, "table_7": None
}  # fmt: skip


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
    # It has Muon, which needs more rows than the Adam of the paper, and trains
    # for short prompts.
    muon = {"optimizer": "muon", "batch_size": 16}
    others = {"max_steps": 4000, "warmup_steps": 400, "cold_starts": 0.1} | muon
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


@pytest.mark.parametrize("name", COMPARED)
def test_it_is_the_model_of_its_name(name, parse):
    flags = parse(name)
    folder, model = name.split("/")
    is_lstm = model == "lstm"
    assert flags.backbone == ("lstm" if is_lstm else None)
    attention = [kind for word, kind in ATTENTION.items() if word in model]
    assert [flags.attention_type] == (attention or [None])
    assert flags.half_loss == ("half_loss" in model)
    memory = None if is_lstm or model.endswith("151m") else MEMORY[folder]
    if re.search("no_recurrence|vanilla|al_rfou", model):
        memory = 0
    assert flags.memory_length == memory
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
    for name in COMPARED:
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
