"""`quantize` of models: every way to compute a model sees the int8 kernels."""

import keras
import numpy as np
import pytest
from factories import assert_same
from factories import random_ids
from factories import small_model
from model_checks import check_every_way
from model_checks import scored

from txl_keras.models import TransformerXLBackbone
from txl_keras.models import TransformerXLTextClassifier
from txl_keras.models import XLNetBackbone

B, T = 3, 5
# Keras warns of each kind of layer that stays float.
pytestmark = pytest.mark.filterwarnings("ignore:Layer .* `quantize` method")


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


def test_a_classifier_is_quantized_with_its_head(tmp_path):
    backbone = small_model(num_layers=1).backbone
    model = TransformerXLTextClassifier(backbone, 2, segment_length=T)
    model.quantize("int8")
    ids = random_ids(B, T)
    expected = model((ids, np.array([T, 2, 3])))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.logits.quantization_mode == "int8"
    np.testing.assert_allclose(
        loaded((ids, np.array([T, 2, 3]))), expected, atol=1e-6
    )
