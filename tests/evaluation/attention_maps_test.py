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

T, M = 5, 7
TEXT = np.random.default_rng(6).integers(V, size=60, dtype="uint8")


def small_model(**config):
    sizes = {"memory_length": M, "head_dim": 6, **config}
    return factories.small_model(**sizes)


def test_maps_in_a_text_are_read_with_memory_full():
    model = small_model()
    starts = [10, 41, 55]  # two segments before each
    maps = attention_maps(model, TEXT, starts, T)
    memory = model.initial_memory(3)
    for first in (-2 * T, -T, 0):
        ids = [TEXT[start + first :][:T] for start in starts]
        _, memory, expected = model.backbone(
            np.stack(ids).astype("int32"),
            memory=memory,
            return_attention_scores=True,
        )
    np.testing.assert_allclose(maps, np.stack(expected), atol=1e-6)
    np.testing.assert_allclose(maps.sum(-1), 1, rtol=1e-5)
    assert (maps[..., 0, : M + 1] > 0).all()
    assert maps.shape == (L, 3, N, T, M + T) and maps.dtype == np.float32
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
    absolute = small_model(
        attention_type="al_rfou", memory_length=0, max_positions=13
    )
    with pytest.raises(ValueError, match="al_rfou.*memory_length=3"):
        attention_maps(absolute, TEXT, [20], T, 3)
