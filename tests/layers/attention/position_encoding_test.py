"""Expected values are sines and cosines in Python floats."""

import math

import numpy as np
import pytest
from layer_checks import check_layer

from txl_keras.layers import RelativePositionEncoding


def loops(num_keys, hidden_dim, clamp_length=None):
    return sinusoids(range(num_keys - 1, -1, -1), hidden_dim, clamp_length)


def sinusoids(distances, hidden_dim, clamp_length=None):
    rows = []
    for d in distances:
        if clamp_length is not None:
            d = max(-clamp_length, min(d, clamp_length))
        angles = [
            d * 10000 ** (-2 * i / hidden_dim) for i in range(hidden_dim // 2)
        ]
        rows.append(
            [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
        )
    return np.array(rows)


@pytest.mark.parametrize(
    "clamp_length, bidirectional, look_ahead",
    [(None, False, 0), (3, False, 1), (None, True, 0)],
)
def test_keras_layer(tmp_path, clamp_length, bidirectional, look_ahead):
    check_layer(
        RelativePositionEncoding,
        {
            "clamp_length": clamp_length,
            "bidirectional": bidirectional,
            "look_ahead": look_ahead,
        },
        {
            "inputs": np.ones((2, 3, 8), "float32"),
            "memory": np.ones((2, 4, 8), "float32"),
        },
        num_weights=0,
        folder=tmp_path,
        float32_outputs=[0],
        batch_outputs=False,
    )


def test_rows_run_from_the_farthest_key_to_the_token_itself():
    encoding = RelativePositionEncoding()(np.zeros((2, 3, 6)))
    np.testing.assert_allclose(encoding, loops(3, 6), atol=1e-6)
    np.testing.assert_allclose(encoding[-1], [0, 0, 0, 1, 1, 1], atol=1e-7)


def test_memory_adds_distances():
    encoding = RelativePositionEncoding()(
        np.zeros((2, 3, 6)), np.zeros((2, 4, 6))
    )
    np.testing.assert_allclose(encoding, loops(7, 6), atol=1e-6)


def test_distances_beyond_clamp_length_are_encoded_as_it():
    encoding = RelativePositionEncoding(clamp_length=2)(np.zeros((3, 5, 4)))
    np.testing.assert_allclose(encoding, loops(5, 4, 2), atol=1e-6)
    np.testing.assert_array_equal(encoding[0], encoding[2])


@pytest.mark.parametrize("look_ahead, rows", [(1, 1), (2, 2), (9, 2)])
def test_look_ahead_adds_negative_distances(look_ahead, rows):
    encoding = RelativePositionEncoding(look_ahead=look_ahead)(
        np.zeros((2, 3, 6)), np.zeros((2, 4, 6))
    )
    expected = sinusoids(range(6, -1 - rows, -1), 6)
    np.testing.assert_allclose(encoding, expected, atol=1e-6)


def test_one_kind_of_negative_distances_is_chosen():
    with pytest.raises(ValueError, match="`look_ahead` must be 0 with"):
        RelativePositionEncoding(bidirectional=True, look_ahead=2)


@pytest.mark.parametrize("clamp_length", [None, 2])
def test_both_directions_run_to_the_last_key_from_the_first_query(clamp_length):
    encoding = RelativePositionEncoding(clamp_length, bidirectional=True)(
        np.zeros((2, 3, 6)), np.zeros((2, 4, 6))
    )
    expected = sinusoids([7, 6, 5, 4, 3, 2, 1, 0, -1, -2], 6, clamp_length)
    np.testing.assert_allclose(encoding, expected, atol=1e-6)


def test_both_directions_are_clamped():
    layer = RelativePositionEncoding(1, bidirectional=True)
    encoding = layer(np.zeros((2, 4, 6)))
    expected = sinusoids([1, 1, 1, 1, 0, -1, -1, -1], 6)
    np.testing.assert_allclose(encoding, expected, atol=1e-6)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_low_precision_does_not_collapse_distances(policy):
    layer = RelativePositionEncoding(dtype=policy)
    encoding = np.array(
        layer(np.zeros((1, 5, 8), "float32"), np.zeros((1, 3995, 8), "float32"))
    )
    assert len(np.unique(encoding, axis=0)) == 4000
    np.testing.assert_allclose(encoding, loops(4000, 8), atol=1e-3)


def test_odd_hidden_size_is_an_error():
    with pytest.raises(ValueError, match=r"must be even.*\(2, 3, 7\)"):
        RelativePositionEncoding()(np.zeros((2, 3, 7)))


def test_clamp_length_must_be_positive():
    with pytest.raises(ValueError, match="clamp_length=0"):
        RelativePositionEncoding(clamp_length=0)
