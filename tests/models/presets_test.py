"""Sizes of the published models, from the papers' numbers of weights."""

import functools
import math

import keras
import pytest
from factories import assert_same
from factories import small_backbone

from txl_keras.data import CharacterTokenizer
from txl_keras.models import LSTMBackbone
from txl_keras.models import TransformerXLBackbone
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models import TransformerXLTextClassifier
from txl_keras.models.model_folder import weight_specs
from txl_keras.models.presets import PRESETS

pytestmark = pytest.mark.every_backend

_NUM_WEIGHTS = {
    "enwik8_base": 41_055_436,
    "enwik8_large": 277_231_820,
    "text8_base": 40_964_635,
    "text8_large": 277_050_395,
    "wikitext103_base": 151_119_838,
    "wikitext103_large": 285_205_322,
    "wikitext103_nvidia_base": 191_950_298,
    "wikitext103_nvidia_large": 285_167_482,
    "lm1b_base": 355_749_763,
    "lm1b_large": 838_078_083,
    # Papers give these in millions: 88 and 24.
    "enwik8_18_layers": 87_965_708,
    "ptb_24m": 23_845_904,
}
# The PyTorch scripts, where they differ from the TensorFlow ones.
_PYTORCH = {"tie_attention_biases": True, "project_same_dim": True}
_NUM_PYTORCH_WEIGHTS = {
    "wikitext103_base": 151_107_538,
    "wikitext103_large": 285_170_506,
    "lm1b_base": 357_812_099,
    "lm1b_large": 841_296_003,
}


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        *((name, {}, number) for name, number in _NUM_WEIGHTS.items()),
        *(
            (name, _PYTORCH, number)
            for name, number in _NUM_PYTORCH_WEIGHTS.items()
        ),
    ],
)
def test_presets_have_the_published_number_of_weights(name, changes, expected):
    config = {**PRESETS[name], **changes}
    own = {"tie_projections": config.pop("tie_projections", True)}
    backbone = {
        "module": "txl_keras.models",
        "class_name": "TransformerXLBackbone",
        "registered_name": "txl_keras>TransformerXLBackbone",
        "config": config,
    }
    # In a graph, which allocates no weights.
    specs = weight_specs(
        {**own, "backbone": backbone}, TransformerXLCausalLM, name, 99
    )
    numbers = [math.prod(spec.shape) for spec in specs.values()]
    assert sum(numbers) == expected


def test_a_preset_cannot_be_changed():
    with pytest.raises(TypeError):
        TransformerXLCausalLM.presets["quickstart"]["num_layers"] = 99


def test_a_trained_preset_is_found_by_its_name(tmp_path, monkeypatch):
    tokenizer = CharacterTokenizer("abcdefg")
    model = TransformerXLCausalLM.from_preset(
        "quickstart", num_layers=1, tokenizer=tokenizer
    )
    # Links to the files, as some installers make them.
    model.save_to_preset(tmp_path / "files", dtype="int8")
    folder = tmp_path / "mine_small"
    folder.mkdir()
    for path in (tmp_path / "files").iterdir():
        (folder / path.name).symlink_to(path)
    trained = {"mine_small": str(folder)}
    for model_class in (TransformerXLCausalLM, TransformerXLBackbone):
        monkeypatch.setattr(model_class, "trained_presets", trained)
    loaded = TransformerXLCausalLM.from_preset("mine_small", memory_length=5)
    assert loaded.tokenizer.vocabulary_size == 7
    assert loaded.backbone.memory_length == 5
    backbone = TransformerXLBackbone.from_preset("mine_small")
    assert_same(backbone.weights, loaded.backbone.weights)
    message = r"a trained model, one of \['mine_small'\], .*'mine_smal'"
    with pytest.raises(ValueError, match=message):
        TransformerXLCausalLM.from_preset("mine_smal")
    # An LSTM has no such model.
    with pytest.raises(ValueError, match=r"_24m'\], the path.*='mine_small'"):
        LSTMBackbone.from_preset("mine_small")


def test_unknown_presets_and_arguments_are_errors():
    assert {"quickstart", *_NUM_WEIGHTS} == set(PRESETS)
    with pytest.raises(ValueError, match="`load_weights` must be a boolean"):
        TransformerXLCausalLM.from_preset("quickstart", "mixed_bfloat16")


@pytest.mark.parametrize(
    "build",
    [
        TransformerXLCausalLM.from_preset,
        functools.partial(
            TransformerXLTextClassifier.from_preset, num_classes=2
        ),
    ],
)
def test_unknown_arguments_are_refused_with_the_known(build):
    message = "'num_layers'.*'vocabulary_size'.*Received: .'num_layer'"
    with pytest.raises(ValueError, match=message):
        build("quickstart", num_layer=1)
    model = build("quickstart", num_layers=1, trainable=False, name="mine")
    assert not model.trainable_variables
    assert model.name == "mine"
    assert model.backbone.name != "mine"
    with pytest.raises(ValueError, match="`tokenizer` must be a tokenizer of"):
        build("quickstart", num_layers=1, tokenizer="bytes")


@pytest.mark.parametrize("make", [TransformerXLBackbone, LSTMBackbone])
def test_a_backbone_may_be_frozen_by_its_constructor(make):
    backbone = small_backbone(make=make, num_layers=1, trainable=False)
    ids = keras.Input((5,), dtype="int32")
    model = keras.Model(ids, keras.layers.Dense(3)(backbone(ids)[0]))
    assert len(model.weights) > 5
    assert len(model.trainable_weights) == 2
