"""Sizes of the published models, from the papers' numbers of weights."""

import pytest
from small_models import small_model

from txl_keras.models import TransformerXLCausalLM
from txl_keras.models.presets import preset_config
from txl_keras.models.presets import names

_NUM_WEIGHTS = {
    "enwik8_base": 41_055_436,
    "enwik8_large": 277_231_820,
    "text8_base": 40_964_635,
    "text8_large": 277_050_395,
}


def num_weights(
    vocabulary_size,
    num_layers,
    num_heads,
    hidden_dim,
    intermediate_dim,
    head_dim=None,
    **_,
):
    head_dim = head_dim or hidden_dim // num_heads
    attention = 5 * hidden_dim * num_heads * head_dim
    feed_forward = 2 * hidden_dim * intermediate_dim
    feed_forward += intermediate_dim + hidden_dim
    layer_norms = 2 * 2 * hidden_dim
    return (
        vocabulary_size * (hidden_dim + 1)
        + 2 * num_heads * head_dim
        + num_layers * (attention + feed_forward + layer_norms)
    )


@pytest.mark.parametrize("name", _NUM_WEIGHTS)
def test_presets_have_the_published_number_of_weights(name):
    assert num_weights(**preset_config(name)) == _NUM_WEIGHTS[name]


def test_a_model_has_the_weights_that_its_sizes_say():
    model = small_model()
    config = model.backbone.get_config()
    assert model.count_params() == num_weights(**config)


@pytest.mark.parametrize("name", ["enwik8_base", "text8_base"])
def test_base_models_have_the_published_number_of_weights(name):
    model = TransformerXLCausalLM.from_preset(name)
    assert model.count_params() == _NUM_WEIGHTS[name]


@pytest.mark.large
@pytest.mark.parametrize("name", ["enwik8_large", "text8_large"])
def test_large_models_have_the_published_number_of_weights(name):
    model = TransformerXLCausalLM.from_preset(name)
    assert model.count_params() == _NUM_WEIGHTS[name]


def test_arguments_take_the_place_of_the_presets_own():
    model = TransformerXLCausalLM.from_preset(
        "quickstart", dtype="mixed_bfloat16", num_layers=1, memory_length=7
    )
    assert model.backbone.num_layers == 1
    assert model.initial_memory(2).states[0].shape == (2, 7, 128)
    assert model.compute_dtype == "bfloat16"
    assert preset_config("quickstart")["num_layers"] == 4


def test_a_config_is_the_callers_own():
    preset_config("quickstart")["num_layers"] = 99
    assert preset_config("quickstart")["num_layers"] == 4


def test_unknown_presets_and_arguments_are_errors():
    assert {"quickstart", *_NUM_WEIGHTS} == set(names())
    with pytest.raises(ValueError, match="enwik8_base.*preset='enwik9_base'"):
        TransformerXLCausalLM.from_preset("enwik9_base")
    with pytest.raises(ValueError, match="num_layer"):
        TransformerXLCausalLM.from_preset("quickstart", num_layer=2)
