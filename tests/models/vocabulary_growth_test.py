"""Tokens that are added to a trained vocabulary."""

import keras
import numpy as np
import pytest
from factories import D
from factories import V
from factories import assert_same
from factories import random_ids
from factories import small_backbone
from factories import small_model

from txl_keras.data import CharacterTokenizer
from txl_keras.models import LSTMBackbone
from txl_keras.models import TransformerXLBackbone
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models import TransformerXLTextClassifier
from txl_keras.models import XLNetBackbone
from txl_keras.models import extend_vocabulary
from txl_keras.weights import weights_by_name

pytestmark = pytest.mark.every_backend

B, T, MORE = 3, 5, 4
MODELS = {
    "plain": {},
    "untied": {"tie_embeddings": False},
    "projected": {"embedding_dim": 4},
    "adaptive": {"cutoffs": (3, 7)},
    "adaptive, untied": {
        "cutoffs": (3, 7),
        "div_val": 2,
        "tie_embeddings": False,
        "tie_projections": False,
    },
    "lstm": {"make": LSTMBackbone},
    "xlnet": {"make": XLNetBackbone},
}


def bounds(model):
    return model.backbone.token_embedding.bounds


@pytest.fixture(scope="module", params=MODELS.values(), ids=MODELS)
def models(request):
    """A model and the larger one; tests must not change them."""
    model = small_model(num_layers=1, **request.param)
    return model, extend_vocabulary(model, V + MORE)


def test_old_weights_are_equal_and_new_rows_are_near_the_mean(models):
    model, larger = models
    assert type(larger) is type(model)
    assert larger.backbone.vocabulary_size == V + MORE
    assert bounds(larger)[:-1] == bounds(model)[:-1]
    old, new = weights_by_name(model), weights_by_name(larger)
    assert old.keys() == new.keys()
    grown = set()
    for path, weight in new.items():
        before, after = old[path].numpy(), weight.numpy()
        np.testing.assert_array_equal(after[: len(before)], before)
        if before.shape == after.shape:
            continue
        grown.add(path)
        assert len(after) == len(before) + MORE
        rows = after[len(before) :]
        mean = np.broadcast_to(before.mean(axis=0), rows.shape)
        np.testing.assert_allclose(rows, mean, atol=0.1)
        if before.ndim == 2:
            assert len(np.unique(rows, axis=0)) == MORE
    last = len(bounds(model)) - 2
    tables = {f"token_embedding/embeddings_{last}", f"softmax/bias_{last}"}
    if not model.softmax.tie_embeddings:
        tables.add(f"softmax/kernel_{last}")
    assert grown == tables


def test_old_tokens_keep_their_ratios(models):
    model, _ = models
    ids = random_ids(B, T)
    before, after = (np.array(m.log_probs(ids)[0]) for m in models)
    assert after.shape == (B, T, V + MORE)
    np.testing.assert_allclose(np.exp(after).sum(-1), 1, atol=1e-5)
    clusters = bounds(model)
    for start, stop in zip(clusters, clusters[1:], strict=False):
        change = after[..., start:stop] - before[..., start:stop]
        np.testing.assert_allclose(
            change, np.broadcast_to(change[..., :1], change.shape), atol=1e-5
        )
        if stop < V:  # the probabilities of other clusters are as before
            np.testing.assert_allclose(change, 0, atol=1e-5)
    # As probable as one of the cluster's tokens, or less.
    cluster = np.exp(before[..., clusters[-2] :]).sum(-1, keepdims=True)
    limit = cluster / (V - clusters[-2])
    assert (np.exp(after[..., V:]) < 1.05 * limit).all()


def test_a_long_table_of_bfloat16_has_its_mean():
    model = small_model(num_layers=1, vocabulary_size=3000, dtype="bfloat16")
    model.softmax.biases[0].assign(np.full(3000, -3.0))
    larger = extend_vocabulary(model, 3002)
    biases = np.asarray(larger.softmax.biases[0], "float32")
    np.testing.assert_array_equal(biases, -3.0)


def test_seeds_draw_other_noise():
    model = small_model(num_layers=1)
    one, same, other = (
        extend_vocabulary(model, V + MORE, seed=seed).get_weights()
        for seed in (1, 1, 2)
    )
    assert_same(one, same)
    assert any((a != b).any() for a, b in zip(one, other, strict=True))


def test_backbones_classifiers_and_quantized_models_grow_too():
    ids = random_ids(B, T)
    backbone = small_backbone(num_layers=1)
    larger = extend_vocabulary(backbone, V + MORE)
    assert isinstance(larger, TransformerXLBackbone)
    np.testing.assert_allclose(larger(ids)[0], backbone(ids)[0], atol=1e-6)
    classifier = TransformerXLTextClassifier(backbone, 2, segment_length=T)
    larger = extend_vocabulary(classifier, V + MORE)
    lengths = np.full(B, T)
    np.testing.assert_allclose(
        larger((ids, lengths)), classifier((ids, lengths)), atol=1e-6
    )
    backbone.quantize("int8")
    larger = extend_vocabulary(backbone, V + MORE)
    np.testing.assert_allclose(larger(ids)[0], backbone(ids)[0], atol=1e-6)


def test_the_tokenizer_grows_with_the_model():
    symbols = "abcdefghijklmnop"
    model = TransformerXLCausalLM(
        small_backbone(num_layers=1),
        tokenizer=CharacterTokenizer(symbols[:V]),
    )
    with pytest.raises(ValueError, match="`tokenizer` must be given"):
        extend_vocabulary(model, V + 2)
    with pytest.raises(ValueError, match="`tokenizer` must have as many"):
        extend_vocabulary(model, V + 2, CharacterTokenizer(symbols))
    tokenizer = CharacterTokenizer(symbols[: V + 2])
    assert extend_vocabulary(model, V + 2, tokenizer).tokenizer is tokenizer


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("model", [None, keras.Sequential()], "a model or a back"),
        ("vocabulary_size", [V, 0, 2.5, None], "an integer"),
        ("seed", [-1, 1.5, "1", None], "an integer"),
    ],
)
def test_bad_arguments_are_errors(name, values, message):
    good = {"model": small_model(num_layers=1), "vocabulary_size": V + 1}
    for value in values:
        with pytest.raises(ValueError, match=f"`{name}` must be {message}"):
            extend_vocabulary(**{**good, name: value})


def test_lora_must_be_merged_first():
    model = small_model(num_layers=1)
    model.backbone.enable_lora(2)
    with pytest.raises(ValueError, match="`model` must have no LoRA matrices"):
        extend_vocabulary(model, V + 1)
    backbone = small_backbone(vocabulary_size=None, num_layers=1)
    with pytest.raises(ValueError, match="with a token embedding"):
        extend_vocabulary(backbone, D)
