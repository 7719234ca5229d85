"""A workdir by a stranger: nothing is built of the sizes or classes it names.

Otherwise 100 bytes take minutes, terabytes, or whatever Keras can import.
"""

import sys

import pytest
from factories import change_json
from factories import small_model

from txl_keras.models import LSTMBackbone
from txl_keras.models import XLNetBackbone
from txl_keras.models.model_folder import ModelFolder

MODELS = {
    "adaptive": {
        "cutoffs": (3, 5),
        "div_val": 2,
        "same_length": "pytorch",
        "normalize_output": True,
        "dtype": "mixed_bfloat16",
        "tie_projections": "all_but_first",
    },
    "lstm": {"make": LSTMBackbone},
    "xlnet": {"make": XLNetBackbone},
}
CONFIG = "config.backbone.config"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """By name: class of a model, and the folder of one."""
    runs = {}
    for name, config in MODELS.items():
        model = small_model(**{"num_layers": 2, **config})
        folder = tmp_path_factory.mktemp(name) / "model"
        model.save_to_preset(folder, {"step": 3})
        runs[name] = type(model), folder
    return runs


@pytest.fixture
def load(runs):
    """Loads a run with fields of its config.json changed."""

    def load_with(name, changes):
        model_class, folder = runs[name]
        path = folder / "config.json"
        text = path.read_text()
        change_json(path, changes)
        try:
            config = ModelFolder(str(folder)).read_model_config()
            return model_class.from_config(config)
        finally:
            path.write_text(text)

    return load_with


@pytest.mark.parametrize("name", MODELS)
def test_unchanged_it_is_loaded(name, load, runs):
    model = load(name, {})
    ModelFolder(str(runs[name][1])).restore_weights(model)
    dtype = "bfloat16" if name == "adaptive" else "float32"
    assert model.compute_dtype == dtype


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "size, value, message",
    [
        ("num_layers", 10**7, "`num_layers` must be from 0 to"),
        ("num_layers", 3, "of another model: weights/.* is missing"),
        ("num_layers", 1, "of another model: weights/.* is not in this"),
        ("vocabulary_size", 10**9, "of another model: .*, not .(10{9}|9{8})"),
        ("hidden_dim", 10**8, "of another model: .* is .*, not .*10{8}"),
        ("hidden_dim", 10**30, "hidden_dim` must be from 0 to"),
    ],
)
def test_sizes_are_compared_with_the_weights(name, size, value, message, load):
    with pytest.raises(ValueError, match=message):
        load(name, {f"{CONFIG}.{size}": value})


DAMAGED = "config.json is damaged: its field `{field}` must be"
REFUSED = "of another model|{name}` must be from 0|`tie_projections` must"
CHECKED = "config.json .*`{name}` must"


@pytest.mark.parametrize(
    "field, value, message",
    [
        # No other size is allocated.
        (f"{CONFIG}.intermediate_dim", 10**10, REFUSED),
        (f"{CONFIG}.head_dim", 10**9, REFUSED),
        (f"{CONFIG}.embedding_dim", 10**9, REFUSED),
        (f"{CONFIG}.cutoffs", list(range(1, 9)), REFUSED),
        (f"{CONFIG}.cutoffs", list(range(1, 100_000)), REFUSED),
        (f"{CONFIG}.memory_length", 10**12, REFUSED),
        (f"{CONFIG}.memory_length", -1, REFUSED),
        # Fields of another type.
        ("config", None, f"{DAMAGED} an object"),
        ("training", [], f"{DAMAGED} an object"),
        ("tokenizer", 5, f"{DAMAGED} a string or null"),
        ("config.backbone", None, f"{DAMAGED} an object"),
        ("config.backbone.class_name", [], f"{DAMAGED} a string"),
        (CONFIG, None, f"{DAMAGED} an object"),
        (f"{CONFIG}.num_layers", "2", f"{DAMAGED} an integer"),
        (f"{CONFIG}.cutoffs", 5, f"{DAMAGED} a list or null"),
        # What the constructor checks.
        (f"{CONFIG}.num_heads", True, CHECKED),
        (f"{CONFIG}.hidden_dim", None, CHECKED),
        (f"{CONFIG}.name", 5, CHECKED),
        (f"{CONFIG}.dropout", "x", CHECKED),
        (f"{CONFIG}.layer_norm_epsilon", float("nan"), CHECKED),
        ("config.tie_projections", {"a": 1}, CHECKED),
    ],
)
def test_a_wrong_field_is_named(field, value, message, load):
    expected = message.format(field=field, name=field.split(".")[-1])
    with pytest.raises(ValueError, match=expected):
        load("adaptive", {field: value})


@pytest.mark.parametrize("field", ["num_heads", "vocabulary_size"])
def test_a_field_that_is_missing_is_named(field, load):
    message = f"config.json .* no field `{CONFIG}.{field}`"
    with pytest.raises(ValueError, match=message):
        load("xlnet", {f"{CONFIG}.{field}": ...})


def test_keras_looks_up_no_class_that_a_file_names(load):
    changes = {
        "compile_config": {"optimizer": "Evil"},
        "module": "antigravity",  # opens a browser
        "registered_name": "package>Evil",
    }
    model = load(
        "adaptive", {f"config.backbone.{k}": v for k, v in changes.items()}
    )
    assert not model.compiled
    assert "antigravity" not in sys.modules
    evil = {"module": "keras.layers", "class_name": "Lambda", "config": {}}
    for name in ("dropout", "dtype"):
        with pytest.raises(ValueError, match=f"config.json .*{name}"):
            load("adaptive", {f"{CONFIG}.{name}": evil})
