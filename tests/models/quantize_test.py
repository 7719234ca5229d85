"""`quantize` of models: every way to compute a model sees the int8 kernels."""

import shutil

import keras
import numpy as np
import pytest
from factories import assert_same
from factories import change_json
from factories import random_ids
from factories import small_model
from model_checks import check_every_way
from model_checks import scored
from safetensors.numpy import load_file
from safetensors.numpy import save_file

from txl_keras.keras_internals import layers_of
from txl_keras.layers import DecoderBlock
from txl_keras.models import TransformerXLBackbone
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models import TransformerXLTextClassifier
from txl_keras.models import XLNetBackbone
from txl_keras.weights import weights_by_name

B, T = 3, 5
# Keras warns of each kind of layer that stays float.
pytestmark = [
    pytest.mark.every_backend,
    pytest.mark.filterwarnings("ignore:Layer .* `quantize` method"),
]


def quantized(**config):
    model = small_model(**{"num_layers": 1, **config})
    model.quantize("int8")
    return model


def dense_dtypes(model):
    return {
        weight.dtype
        for weight in model.backbone.weights
        if weight.path.endswith("/kernel")
    }


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"attention_type": "shaw", "max_positions": 20},
        {"attention_type": "vaswani", "memory_length": 0},
        {"cutoffs": (4, 7), "div_val": 2},
        {"tie_attention_biases": False, "normalize_first": True},
    ],
)
def test_kernels_are_int8_and_the_loss_is_near(config):
    model = small_model(num_layers=1, **config)
    ids = random_ids(B, 2 * T + 1)
    before = scored(model, ids)
    tables = [table.numpy() for table in model.backbone.token_embedding.weights]
    model.quantize("int8")
    assert dense_dtypes(model) == {"int8"}
    after = scored(model, ids)
    assert 0 < np.abs(after - before).max() < 0.2
    assert_same(model.backbone.token_embedding.weights, tables)


def test_every_way_to_compute_agrees():
    model = quantized(memory_length=2 * T)
    check_every_way(model, random_ids(B, 2 * T + 1), atol=0.02)


@pytest.mark.parametrize("make", [TransformerXLBackbone, XLNetBackbone])
def test_a_loaded_model_is_the_same_also_when_saved_again(make, tmp_path):
    model = quantized(make=make)
    assert dense_dtypes(model) == {"int8"}
    ids = random_ids(B, T)
    expected, _ = model.score(ids, ids)
    for _ in range(2):
        model.save(tmp_path / "model.keras")
        model = keras.saving.load_model(tmp_path / "model.keras")
        assert dense_dtypes(model) == {"int8"}
        np.testing.assert_array_equal(model.score(ids, ids)[0], expected)
    expected = model.backbone(ids)[0]
    model.backbone.save(tmp_path / "backbone.keras")
    loaded = keras.saving.load_model(tmp_path / "backbone.keras")
    np.testing.assert_array_equal(loaded(ids)[0], expected)


def test_only_chosen_layers_are_quantized_and_stay_so(tmp_path):
    model = small_model("mixed_bfloat16", num_layers=1)
    config = keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)
    model.quantize(config=config, filters="feed_forward")
    ids = random_ids(B, T)
    expected, _ = model.score(ids, ids)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert dense_dtypes(loaded) == {"int8", "float32"}
    np.testing.assert_array_equal(loaded.score(ids, ids)[0], expected)


def test_fit_trains_what_is_still_float():
    model = quantized()
    # LoRA's tests train an int8 model in a graph.
    model.compile("sgd", run_eagerly=True)
    before = {w.path: w.numpy() for w in model.weights}
    ids = random_ids(B, T + 1)
    model.fit(ids[:, :-1], ids[:, 1:], batch_size=B, verbose=0)
    changed = {
        w.path.rsplit("/")[-1]
        for w in model.weights
        if (w.numpy() != before[w.path]).any()
    }
    assert changed == {
        "content_attention_bias",
        "positional_attention_bias",
        "embeddings_0",
        "gamma",
        "beta",
        "bias",
        "bias_0",
    }


# --------------------------------- Presets ---------------------------------

KERNEL = "block_0/attention/query/kernel"
PATH = "quantization.block_0/attention/query"


@pytest.fixture(scope="module")
def int8_folder(tmp_path_factory):
    model = quantized(num_layers=2)
    folder = tmp_path_factory.mktemp("int8")
    model.save_to_preset(folder)
    return model, folder


@pytest.fixture
def folder(int8_folder, tmp_path):
    shutil.copytree(int8_folder[1], tmp_path / "preset")
    return tmp_path / "preset"


@pytest.mark.parametrize(
    "mode, make",
    [
        ("int8", TransformerXLBackbone),
        ("int8", XLNetBackbone),
        ("int4", TransformerXLBackbone),
        ("float8", TransformerXLBackbone),
    ],
)
def test_a_preset_holds_the_kernels_as_they_are(mode, make, tmp_path):
    model = small_model(make=make, num_layers=1)
    model.quantize(mode)
    ids = random_ids(B, T)
    expected, _ = model.score(ids, ids)
    model.save_to_preset(tmp_path)
    loaded = type(model).from_preset(tmp_path)
    file = load_file(tmp_path / "model.safetensors")
    # Both, so it is the same also when saved again.
    for tensors in (file, weights_by_name(loaded)):
        for name, weight in weights_by_name(model).items():
            assert tensors[name].dtype == weight.dtype
            np.testing.assert_array_equal(tensors[name], weight)
    np.testing.assert_array_equal(loaded.score(ids, ids)[0], expected)
    assert loaded.get_config() == model.get_config()


@pytest.mark.tensorflow
def test_a_model_in_float8_is_trained():
    model = small_model(num_layers=1)
    x = y = random_ids(4, T)
    model.compile("sgd", jit_compile=False)
    model.quantize("float8")
    with pytest.raises(ValueError, match="Compile the model again"):
        model.fit(x, y, batch_size=2, verbose=0)
    model.compile(keras.optimizers.Adam(0.01), jit_compile=False)
    history = model.fit(x, y, batch_size=2, epochs=3, verbose=0).history
    assert history["loss"][2] < history["loss"][0]


def test_a_quantized_preset_gives_other_models(tmp_path):
    model = small_model(num_layers=1)
    config = keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)
    model.quantize(config=config, filters="query|key")
    ids = random_ids(B, T)
    expected = model.backbone(ids)[0]
    model.save_to_preset(tmp_path)
    loaded = TransformerXLBackbone.from_preset(tmp_path)
    np.testing.assert_array_equal(loaded(ids)[0], expected)
    new = TransformerXLBackbone.from_preset(tmp_path, load_weights=False)
    assert {w.dtype for w in new.weights} == {"float32"}
    classifier = TransformerXLTextClassifier.from_preset(
        tmp_path, num_classes=3
    )
    classifier.quantize("int8", filters="logits")
    lengths = np.array([T, 2, 3])
    expected = classifier((ids, lengths))
    classifier.save_to_preset(tmp_path)
    loaded = TransformerXLTextClassifier.from_preset(tmp_path)
    assert loaded.logits.quantization_mode == "int8"
    np.testing.assert_array_equal(loaded((ids, lengths)), expected)


def test_only_float_models_are_rounded_by_saving(int8_folder, tmp_path):
    model, _ = int8_folder
    for dtype in ("bfloat16", "int8"):
        with pytest.raises(ValueError, match="`dtype` must be 'float32'"):
            model.save_to_preset(tmp_path, dtype=dtype)
    assert not list(tmp_path.iterdir())


def test_blocks_may_be_quantized_in_different_ways(tmp_path):
    model = small_model(num_layers=2)
    layers = {layer.path: layer for layer in layers_of(model.backbone)}
    layers[f"{model.backbone.name}/block_1/attention/query"].quantize("int8")
    ids = random_ids(B, T)
    expected, _ = model.score(ids, ids)
    model.save_to_preset(tmp_path)
    loaded = type(model).from_preset(tmp_path)
    np.testing.assert_array_equal(loaded.score(ids, ids)[0], expected)


@pytest.mark.parametrize(
    "fields, message",
    [
        # Kernels of floats or of other sizes than in the file.
        ({"quantization": ...}, "of another model: .*kernel_scale is not in"),
        ({"intermediate_dim": 10**9}, "of another model: .*kernel is .8, 12"),
        ({"num_layers": 1}, "paths of layers"),
        # What the file may ask for.
        ({"quantization": 3}, "config.json does not describe"),
        ({"quantization": {"token_embedding": {}}}, "paths of layers"),
        ({f"{PATH}.mode": "gptq"}, "must be one of .*'int4', .*'gptq'"),
        ({f"{PATH}.mode": "int4"}, "of another model"),
        ({f"{PATH}.config.class_name": "Lambda"}, "must be one of .*'Lambda'"),
        (
            {f"{PATH}.config.config.activation_quantizer.class_name": "GPTQ"},
            "must be one of .*'GPTQ'",
        ),
        ({f"{PATH}.config.config": {"x": 1}}, "unexpected keyword"),
    ],
    ids=str,
)
def test_a_quantized_preset_by_a_stranger_is_refused(fields, message, folder):
    # All blocks in the same way.
    changes = {
        f"config.backbone.config.{field.replace('block_0', block)}": value
        for field, value in fields.items()
        for block in ("block_0", "block_1")
    }
    change_json(folder / "config.json", changes)
    with pytest.raises(ValueError, match=message) as error:
        TransformerXLCausalLM.from_preset(folder)
    assert str(folder) in str(error.value)


def test_floats_in_place_of_a_quantized_kernel_are_refused(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors[KERNEL] = tensors[KERNEL].astype("float32")
    save_file(tensors, path)
    with pytest.raises(ValueError, match=f"{KERNEL}' must be of int8.*floats"):
        TransformerXLCausalLM.from_preset(folder)


def test_a_quantized_layer_in_a_model_of_ones_own_is_not_saved(tmp_path):
    states = keras.Input((T, 8))
    model = keras.Model(states, DecoderBlock(2, 4, 8)(states))
    model.quantize("int8")
    with pytest.raises(ValueError, match="Save the model before `quantize`"):
        model.save(tmp_path / "model.keras")
