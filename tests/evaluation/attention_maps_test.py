import types

import factories
import numpy as np
import pytest
from factories import L
from factories import N
from factories import V

from txl_keras.evaluation.attention_maps import attention_by_distance
from txl_keras.evaluation.attention_maps import attention_maps
from txl_keras.evaluation.attention_maps import mean_diagonals

B, T, M = 4, 5, 7
TEXT = np.random.default_rng(6).integers(V, size=60, dtype="uint8")


def small_model(attention_type="relative", **config):
    memory_length = M if attention_type == "relative" else 0
    sizes = {"memory_length": memory_length, "head_dim": 6, **config}
    return factories.small_model(
        attention_type=attention_type, max_positions=13, **sizes
    )


def maps_of(model, ids, memory=None):
    """Maps of one segment, and the memory after it."""
    _, memory, scores = model.backbone(
        ids.astype("int32"), memory=memory, return_attention_scores=True
    )
    return np.stack(scores), memory


def rows_of_text(*starts, length):
    return np.stack([TEXT[start : start + length] for start in starts])


@pytest.mark.parametrize("attention_type", ["relative", "al_rfou"])
def test_heads_without_weights_look_at_all_alike(attention_type):
    model = small_model(attention_type)
    for weight in model.backbone.weights:
        if "embedding" not in weight.path:
            weight.assign(np.zeros(weight.shape))
    ids = rows_of_text(0, 9, 20, 31, length=T)
    maps, memory = maps_of(model, ids)
    num_memory = model.backbone.memory_length
    assert maps.shape == (L, B, N, T, num_memory + T)
    assert maps.dtype == np.float32
    triangle = np.tril(np.ones((T, T))) / np.arange(1, T + 1)[:, None]
    cold = np.concatenate([np.zeros((T, num_memory)), triangle], axis=1)
    np.testing.assert_allclose(
        maps, np.broadcast_to(cold, maps.shape), rtol=1e-6
    )
    if num_memory:  # T of M entries are there now
        maps, _ = maps_of(model, ids, memory)
        seen = np.tril(np.ones((T, M + T)), M)
        seen[:, : M - T] = 0
        expected = seen / seen.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(
            maps, np.broadcast_to(expected, maps.shape), rtol=1e-6
        )


def test_maps_in_a_text_are_read_with_memory_full():
    model = small_model()
    starts = [10, 41, 55]  # two segments before each
    maps = attention_maps(model, TEXT, starts, T)
    for row, start in enumerate(starts):
        memory = model.initial_memory(1)
        for first in range(start - 2 * T, start, T):
            ids = rows_of_text(first, length=T)
            _, memory = model.backbone(ids, memory=memory)
        ids = rows_of_text(start, length=T)
        expected, _ = maps_of(model, ids, memory)
        np.testing.assert_allclose(maps[:, row], expected[:, 0], atol=1e-6)
    assert (maps[..., 0, : M + 1] > 0).all()
    without = attention_maps(model, TEXT, [0], 4, memory_length=0)
    assert without.shape == (L, 1, N, 4, 4)


def test_attention_by_distance_is_a_mean_over_the_diagonals():
    maps = np.array(
        [  # M = 2, T = 3: the distances are 2 1 0, 3 2 1 0, 4 3 2 1 0
            [0.3, 0.5, 0.2, 0.0, 0.0],
            [0.1, 0.2, 0.3, 0.4, 0.0],
            [0.9, 0.0, 0.0, 0.0, 0.1],
        ]
    )
    expected = [0.7 / 3, 0.8 / 3, 0.5 / 3, 0.1 / 2, 0.9]
    np.testing.assert_allclose(mean_diagonals(maps), expected)
    stacked = mean_diagonals(np.stack([maps, 2 * maps])[:, None])
    assert stacked.shape == (2, 1, 5)
    np.testing.assert_allclose(stacked[1, 0], np.multiply(2, expected))


def test_what_cannot_be_looked_at_is_refused():
    model = small_model()
    other = types.SimpleNamespace(backbone=model.softmax)
    with pytest.raises(ValueError, match="attention.*AdaptiveSoftmax"):
        attention_maps(other, TEXT, [20], T)
    with pytest.raises(ValueError, match=r"integers in \[0, 11\)"):
        attention_maps(model, TEXT + V, [20], T)
    with pytest.raises(ValueError, match=r"\[10, 56\).*from 9 to 30"):
        attention_maps(model, TEXT, [9, 30], T)
    with pytest.raises(ValueError, match=r"\[10, 56\).*from 20 to 56"):
        attention_maps(model, TEXT, [20, 56], T)
    with pytest.raises(ValueError, match="segment_length=0"):
        attention_maps(model, TEXT, [20], 0)
    with pytest.raises(ValueError, match="batch_size=0"):
        attention_by_distance(model, TEXT, [20], T, batch_size=0)
    with pytest.raises(ValueError, match="al_rfou.*memory_length=3"):
        attention_maps(small_model("al_rfou"), TEXT, [20], T, 3)
