"""Episodes that end inside a segment: `reset` of shape (B, T)."""

import keras
import numpy as np
import pytest
from attention_loops import random
from factories import assert_same
from factories import feature_backbone
from factories import read_in_parts

pytestmark = pytest.mark.every_backend

B, T, M, F, D = 3, 11, 6, 5, 16
# First steps of episodes: none; inside; at the start, twice in a row and last.
RESET = np.zeros((B, T), bool)
RESET[1, 4] = True
RESET[2, [0, 7, 8, T - 1]] = True


@pytest.mark.parametrize("attention_type", ["relative", "shaw"])
def test_acting_step_by_step_equals_learning_on_segments(attention_type):
    # With `same_length` all cuts of a text see the same keys.
    settings = {"same_length": True, "attention_type": attention_type}
    if attention_type == "shaw":
        settings["max_positions"] = M + T
    backbone = feature_backbone(normalize_first=True, **settings)
    _, before = backbone(embeddings=random(B, M, D, seed=1))
    x = random(B, T, D)
    text = {"embeddings": x, "reset": RESET}
    expected, memory = read_in_parts(backbone, [1] * T, before, **text)
    for lengths in ([T], [5, 1, 5]):
        found, other = read_in_parts(backbone, lengths, before, **text)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        np.testing.assert_array_equal(other.valid_length, [M, M, 1])
        mask = np.array(memory.mask())[..., None]
        for a, b in zip(memory.states, other.states, strict=True):
            np.testing.assert_allclose(a * mask, b * mask, atol=1e-5)


@pytest.mark.parametrize("look_ahead", [0, 2])
def test_an_episode_sees_nothing_of_others(look_ahead):
    backbone = feature_backbone(look_ahead=look_ahead)
    _, before = backbone(embeddings=random(B, M, D, seed=1))
    x = random(B, T, D)
    hidden, memory = backbone(embeddings=x, memory=before, reset=RESET)
    for row, start, stop in ((1, 4, T), (2, 0, 7), (2, 7, 8), (2, 8, T - 1)):
        alone, _ = backbone(embeddings=x[row : row + 1, start:stop])
        np.testing.assert_allclose(hidden[row, start:stop], alone[0], atol=1e-5)
    # The last episode of row 2 has one step, all others went into memory.
    np.testing.assert_array_equal(memory.valid_length, [M, M, 1])
    # Without a new episode nothing changes.
    same, _ = backbone(embeddings=x, memory=before)
    np.testing.assert_allclose(hidden[0], same[0], atol=1e-6)


def test_a_short_episode_leaves_a_short_memory():
    backbone = feature_backbone(memory_length=M + T)
    _, memory = backbone(embeddings=random(B, T, D), reset=RESET)
    np.testing.assert_array_equal(memory.valid_length, [T, T - 4, 1])


def test_zeros_that_are_attended_to_allow_no_reset_inside_a_segment():
    backbone = feature_backbone(cold_start="zeros")
    x = random(B, T, D)
    with pytest.raises(ValueError, match=r"`reset` must be of shape \(B,\)"):
        backbone(embeddings=x, reset=RESET)
    hidden, _ = backbone(embeddings=x, reset=RESET[:, 0])
    assert hidden.shape == (B, T, D)


def test_a_keras_model_learns_with_episodes(tmp_path):
    features = keras.Input((T, F))
    reset = keras.Input((T,), dtype="bool")
    backbone = feature_backbone(
        normalize_first=True, stateful=True, memory_length=T, num_layers=1
    )
    x = keras.layers.Dense(D)(features)
    hidden, _ = backbone(embeddings=x, reset=reset)
    model = keras.Model([features, reset], keras.layers.Dense(1)(hidden))
    model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(2 * B, T, F)).astype("float32")
    # The first value of the episode, to be remembered.
    resets = np.concatenate([RESET, RESET])
    starts = np.maximum.accumulate(np.where(resets, np.arange(T), 0), axis=1)
    y = np.take_along_axis(x[..., :1], starts[..., None], axis=1)
    history = model.fit(
        [x, resets], y, batch_size=B, epochs=8, shuffle=False, verbose=0
    ).history["loss"]
    assert history[-1] < 0.8 * history[0]
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.saving.load_model(path)
    assert_same(loaded.weights, model.weights)
