"""Encodings of distances against sines and cosines in Python floats."""

import numpy as np
import pytest
from attention_loops import sinusoid
from layer_checks import check_layer

from txl_keras.layers import RelativePositionEncoding

pytestmark = pytest.mark.every_backend


@pytest.mark.parametrize(
    "config",
    [{"clamp_length": 3, "look_ahead": 1}, {"look_ahead": None}],
)
def test_keras_layer(tmp_path, config):
    check_layer(
        RelativePositionEncoding,
        config,
        {
            "inputs": np.ones((2, 3, 8), "float32"),
            "memory": np.ones((2, 4, 8), "float32"),
        },
        num_weights=0,
        folder=tmp_path,
        float32_outputs=[0],
        batch_outputs=False,
    )


@pytest.mark.parametrize(
    ("config", "length", "num_memory", "distances"),
    [
        ({}, 3, 0, [2, 1, 0]),
        ({}, 3, 4, range(6, -1, -1)),
        ({"clamp_length": 2}, 5, 0, [2, 2, 2, 1, 0]),
        ({"look_ahead": 1}, 3, 4, range(6, -2, -1)),
        ({"look_ahead": 9}, 3, 4, range(6, -3, -1)),
        # From the first query to the last key.
        ({"look_ahead": None}, 3, 4, range(6, -3, -1)),
        (
            {"look_ahead": None, "clamp_length": 1},
            *(4, 0, [1, 1, 1, 0, -1, -1, -1]),
        ),
    ],
)
def test_rows_encode_these_distances(config, length, num_memory, distances):
    memory = [np.zeros((2, num_memory, 6))] if num_memory else []
    layer = RelativePositionEncoding(**config)
    encoding = layer(np.zeros((2, length, 6)), *memory)
    expected = [sinusoid(distance, 6) for distance in distances]
    np.testing.assert_allclose(encoding, expected, atol=1e-6)


def test_what_has_no_encoding_is_an_error():
    with pytest.raises(ValueError, match="`look_ahead` must be an integer"):
        RelativePositionEncoding(look_ahead=-1)
    with pytest.raises(ValueError, match=r"must be even.*\(2, 3, 7\)"):
        RelativePositionEncoding()(np.zeros((2, 3, 7)))
