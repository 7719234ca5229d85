"""Embeddings instead of token ids: time series, audio, anything."""

import keras
import numpy as np
import pytest
from attention_loops import random
from factories import D
from factories import M
from factories import random_ids
from factories import small_backbone

from txl_keras.callbacks import ResetMemory
from txl_keras.layers.memory.memory_stack import MemoryStack
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models import TransformerXLTextClassifier

B, T, FEATURES, BATCHES = 2, 5, 4, 3


def plain_backbone(**config):
    """Without a vocabulary."""
    return small_backbone(vocabulary_size=None, num_layers=1, **config)


def series_model(batch_size=None, **config):
    """Predicts one value per step from `FEATURES` features."""
    features = keras.Input((T, FEATURES), batch_size=batch_size)
    x = keras.layers.Dense(D, kernel_initializer="orthogonal")(features)
    hidden, _ = plain_backbone(stateful=True, **config)(embeddings=x)
    return keras.Model(features, keras.layers.Dense(1)(hidden))


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"attention_type": "vaswani", "memory_length": 0},
        {"cutoffs": (4,), "div_val": 2},
    ],
)
def test_scaled_token_embeddings_give_what_ids_give(config):
    backbone = small_backbone(**config)
    ids = random_ids(B, T)
    embeddings = backbone.token_embedding(ids) * D**0.5
    expected, expected_memory = backbone(ids)
    hidden, memory = backbone(embeddings=embeddings)
    np.testing.assert_allclose(hidden, expected, atol=1e-6)
    np.testing.assert_allclose(
        memory.states[-1], expected_memory.states[-1], atol=1e-6
    )


def test_a_stateful_backbone_goes_on_where_it_was():
    backbone = plain_backbone(memory_length=M, stateful=True)
    x = random(B, 2 * T, D)
    _, memory = backbone(embeddings=x[:, :T], memory=backbone.initial_memory(B))
    expected, after = backbone(embeddings=x[:, T:], memory=memory)
    backbone(embeddings=x[:, :T])
    backbone(embeddings=x[:, :T], training=True)  # has its own memory
    hidden, same = backbone(embeddings=x[:, T:])
    np.testing.assert_allclose(hidden, expected, atol=1e-5)
    np.testing.assert_allclose(same.states[0], after.states[0], atol=1e-5)
    # Row 1 begins anew, row 0 goes on.
    reset = np.array([False, True])
    hidden, _ = backbone(embeddings=x[:, :T], reset=reset)
    fresh, _ = backbone(embeddings=x[:, :T], memory=backbone.initial_memory(B))
    np.testing.assert_allclose(hidden[1], fresh[1], atol=1e-5)
    assert np.abs(hidden[0] - fresh[0]).max() > 0.01


def test_a_time_series_is_learned_through_memory():
    # The target is the first feature of the segment before: unknown without
    # memory.
    rng = np.random.default_rng(2)
    x = rng.choice([-1.0, 1.0], size=(BATCHES, B, 1, FEATURES))
    x = np.repeat(x, T, axis=2)
    y = np.concatenate([0 * x[:1], x[:-1]])[..., :1]
    x, y = (a.reshape(BATCHES * B, T, -1) for a in (x, y))
    model = series_model()
    model.compile(keras.optimizers.Adam(0.02), "mse")
    arguments = {"batch_size": B, "verbose": 0, "callbacks": [ResetMemory()]}
    losses = model.fit(x, y, shuffle=False, epochs=40, **arguments).history
    assert losses["loss"][-1] < 0.1
    assert model.evaluate(x, y, **arguments) < 0.1
    predicted = model.predict(x, **arguments)
    # Without what came before, as at the first batch, it cannot know.
    alone = model.predict(x[-B:], **arguments)
    assert np.abs(alone - predicted[-B:]).max() > 0.1
    with pytest.raises(ValueError, match="`shuffle` must be False"):
        model.fit(x, y, **arguments)


def test_a_functional_model_is_saved_without_its_memory(tmp_path):
    model = series_model()
    kinds = [type(layer) for layer in model._flatten_layers()]
    assert kinds.count(MemoryStack) == 2
    x = np.random.default_rng(3).normal(size=(B, T, FEATURES))
    expected = model(x)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(x), expected, atol=1e-6)
    assert [w.shape for w in loaded.weights] == [w.shape for w in model.weights]


@pytest.mark.parametrize(
    "arguments,message",
    [
        ({}, "`token_ids` or `embeddings` must be passed"),
        (
            {"token_ids": random_ids(B, T), "embeddings": random(B, T, D)},
            "and not both",
        ),
        ({"embeddings": random(T, D)}, "`embeddings` must have the shape"),
        (
            {"embeddings": random(B, T, D)[..., 1:]},
            r"`embeddings` must have the shape \(None, None, 8\)",
        ),
        (
            {"embeddings": random(B, T, D).astype("int32")},
            "`embeddings` must be floats",
        ),
        ({"token_ids": random(B, T, D)}, "`token_ids` must have the shape"),
    ],
)
def test_wrong_inputs_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        small_backbone(num_layers=1)(**arguments)


def test_ids_need_a_vocabulary():
    with pytest.raises(ValueError, match="`embeddings` must be passed to a"):
        plain_backbone()(random_ids(B, T))
    with pytest.raises(ValueError, match="`vocabulary_size` must be given"):
        plain_backbone(cutoffs=(3,))
    for backbone in (plain_backbone(), small_backbone(stateful=True)):
        for make in (
            TransformerXLCausalLM,
            lambda backbone: TransformerXLTextClassifier(backbone, 2),
        ):
            with pytest.raises(ValueError, match="`backbone` must have a `voc"):
                make(backbone)
