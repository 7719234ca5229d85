"""What every public model owes its user, as `layer_checks` asks of layers."""

import keras
import numpy as np
import pytest
from backends import dtype_of
from backends import gradients
from factories import random_ids
from factories import read_in_parts
from factories import small_backbone
from factories import small_model
from keras import ops

from txl_keras.models import LSTMBackbone
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models import TransformerXLTextClassifier
from txl_keras.models import XLNetBackbone
from txl_keras.optimizers import Muon

pytestmark = pytest.mark.every_backend

B, T = 3, 5
IDS = random_ids(B, T, seed=8)
TOLERANCE = {"mixed_bfloat16": 0.1, "mixed_float16": 0.02}


def classifier(dtype=None, **config):
    backbone = small_backbone(dtype, **config)
    return TransformerXLTextClassifier(
        backbone, num_classes=4, segment_length=2, pooling="mean"
    )


# How each is made, and of what. Sizes, such as those of the clusters, differ.
MODELS = {
    "TransformerXLBackbone": (small_backbone, {}),
    "adaptive backbone": (small_backbone, {"cutoffs": (4, 7), "div_val": 2}),
    "shaw": (small_backbone, {"attention_type": "shaw", "max_positions": 13}),
    "vaswani": (
        small_backbone,
        {"attention_type": "vaswani", "memory_length": 0},
    ),
    "al_rfou": (
        small_backbone,
        {"attention_type": "al_rfou", "memory_length": 0, "max_positions": 5},
    ),
    "LSTMBackbone": (small_backbone, {"make": LSTMBackbone}),
    "XLNetBackbone": (small_backbone, {"make": XLNetBackbone}),
    "TransformerXLCausalLM": (small_model, {}),
    "adaptive TransformerXLCausalLM": (small_model, {"cutoffs": (4, 7)}),
    "TransformerXLTextClassifier": (classifier, {}),
    "XLNetPermutationLM": (small_model, {"make": XLNetBackbone}),
}
INPUTS = {
    "TransformerXLTextClassifier": {
        "token_ids": IDS,
        "lengths": np.array([5, 1, 3]),
    },
    "XLNetPermutationLM": {"inputs": IDS, "token_type_ids": IDS % 2},
}


def model_and_inputs(name, dtype=None):
    make, config = MODELS[name]
    model = make(dtype, num_layers=1, **config)
    return model, INPUTS.get(name, IDS)


every_model = pytest.mark.parametrize("name", MODELS)


@keras.saving.register_keras_serializable("every_model_test")
class Tagger(keras.Model):
    """A user's own model, which has a model of ours as a layer."""

    def __init__(self, kind, **kwargs):
        super().__init__(**kwargs)
        self.kind = kind
        self.inner, _ = model_and_inputs(kind)
        self.head = keras.layers.Dense(2)

    def call(self, ids):
        if self.kind == "XLNetPermutationLM":
            ids = {"inputs": ids}
        hidden, *_ = keras.tree.flatten(self.inner(ids))
        return self.head(hidden)

    def get_config(self):
        return {**super().get_config(), "kind": self.kind}


def outputs_of(model, inputs):
    """The first output, from a cold start."""
    if hasattr(model, "reset_memory"):
        model.reset_memory()
    first, *_ = keras.tree.flatten(model(inputs))
    return np.array(ops.cast(first, "float32"))


@every_model
def test_files_keep_the_outputs(name, tmp_path):
    model, inputs = model_and_inputs(name)
    expected = outputs_of(model, inputs)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    filled, _ = model_and_inputs(name)
    filled.load_weights(tmp_path / "model.weights.h5")
    for loaded in (keras.saving.load_model(tmp_path / "model.keras"), filled):
        np.testing.assert_array_equal(outputs_of(loaded, inputs), expected)


@every_model
def test_a_model_that_has_it_is_saved_and_loaded(name, tmp_path):
    model = Tagger(name)
    expected = outputs_of(model, IDS)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(outputs_of(loaded, IDS), expected)


@every_model
def test_half_precision_is_close_to_float32(name):
    model, inputs = model_and_inputs(name)
    expected = outputs_of(model, inputs)
    for policy, tolerance in TOLERANCE.items():
        half, _ = model_and_inputs(name, policy)
        half.set_weights(model.get_weights())
        np.testing.assert_allclose(
            outputs_of(half, inputs),
            expected,
            atol=tolerance * max(1, np.abs(expected).max()),
        )
        assert {w.dtype for w in half.trainable_weights} == {"float32"}


@every_model
def test_outputs_have_the_shapes_that_symbols_have(name):
    model, inputs = model_and_inputs(name)
    outputs = model(inputs)
    symbols = model(
        keras.tree.map_structure(
            lambda x: keras.Input(x.shape[1:], x.shape[0], dtype="int32"),
            inputs,
        )
    )
    for output, symbol in zip(
        *map(keras.tree.flatten, (outputs, symbols)), strict=True
    ):
        for size, expected in zip(output.shape, symbol.shape, strict=True):
            assert expected in (None, size)


@every_model
def test_gradients_reach_every_weight(name):
    model, inputs = model_and_inputs(name)
    if isinstance(model, TransformerXLCausalLM):
        model.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
        before = model.get_weights()
        model.fit(IDS, IDS[:, ::-1], batch_size=B, epochs=2, verbose=0)
        changed = [
            not np.array_equal(a, b)
            for a, b in zip(before, model.get_weights(), strict=True)
        ]
    else:
        # From different memories: the position bias has no effect on a row
        # whose keys are all at one distance.
        def total():
            first, *_ = keras.tree.flatten(model(inputs))
            factors = np.random.default_rng(0).normal(size=first.shape)
            return ops.sum(first * ops.array(factors, "float32"))

        _, found = gradients(total, model.trainable_weights)
        changed = [np.any(np.array(gradient)) for gradient in found]
    names = [w.path for w in model.trainable_weights]
    missing = {n for n, c in zip(names, changed, strict=True) if not c}
    allowed = ()
    if name == "XLNetBackbone":  # no token types are given, nor targets
        allowed = ("token_type", "segment", "mask_embedding")
    assert not [n for n in missing if not any(part in n for part in allowed)]


@pytest.mark.parametrize(
    "config", [{}, {"make": LSTMBackbone}, {"make": XLNetBackbone}]
)
def test_a_functional_model_hands_memory_on(config, tmp_path):
    """Trains, saves, loads and goes on from the memory that it returns."""
    backbone = small_backbone(num_layers=1, **config)
    ids = keras.Input((2 * T,), dtype="int32")
    memory = keras.tree.map_structure(
        lambda x: keras.Input(x.shape[1:], dtype=dtype_of(x)),
        backbone.initial_memory(B),
    )
    first, between = backbone(ids[:, :T], memory=memory)
    second, after = backbone(ids[:, T:], memory=between)
    hidden = keras.layers.Concatenate(axis=1)([first, second])
    model = keras.Model([ids, memory], [hidden, after])
    text = random_ids(B, 4 * T, seed=5)

    def read(model):
        def call(ids, memory):
            return model([ops.array(ids), memory])

        memory = backbone.initial_memory(B)
        return read_in_parts(call, [2 * T] * 2, memory, ids=text)[0]

    expected, _ = read_in_parts(backbone, [T] * 4, token_ids=text)
    np.testing.assert_allclose(read(model), expected, atol=1e-5)
    model.save(tmp_path / "model.keras")
    for copy in (
        keras.saving.load_model(tmp_path / "model.keras"),
        keras.models.clone_model(model),
    ):
        copy.set_weights(model.get_weights())
        np.testing.assert_allclose(read(copy), expected, atol=1e-5)


def test_muon_trains_and_is_loaded(tmp_path):
    model = small_model(num_layers=1)
    model.compile(Muon(0.03))
    ids = random_ids(B, 2 * T + 1)
    data = {"x": ids[:, :-1], "y": ids[:, 1:], "batch_size": B, "verbose": 0}
    first, *_, last = model.fit(**data, epochs=9).history["loss"]
    assert last < 0.8 * first
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert isinstance(loaded.optimizer, Muon)
    expected = model.evaluate(**data)
    np.testing.assert_allclose(loaded.evaluate(**data), expected, rtol=1e-5)
