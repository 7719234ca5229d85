"""Scores by distance find their keys."""

import numpy as np
import pytest
from attention_loops import random

from txl_keras.layers import relative_shift
from txl_keras.layers.compute.relative_shift import shift_to_keys


def test_relative_shift_of_distances_is_this():
    scores = np.tile(np.arange(5)[::-1], (2, 3, 3, 1)).astype("float32")
    shifted = np.array(relative_shift(scores))
    assert shifted.shape == (2, 3, 3, 5)
    for b in range(2):
        for n in range(3):
            assert shifted[b, n, 0, :3].tolist() == [2, 1, 0]
            assert shifted[b, n, 1, :4].tolist() == [3, 2, 1, 0]
            assert shifted[b, n, 2].tolist() == [4, 3, 2, 1, 0]


@pytest.mark.parametrize("length,num_keys", [(1, 1), (1, 6), (4, 4), (3, 7)])
def test_relative_shift_equals_indexing_by_distance(length, num_keys):
    scores = random(2, 5, length, num_keys)
    shifted = np.array(relative_shift(scores))
    for i in range(length):
        for j in range(num_keys - length + i + 1):
            distance = num_keys - length + i - j
            np.testing.assert_array_equal(
                shifted[:, :, i, j], scores[:, :, i, num_keys - 1 - distance]
            )


def test_distances_of_keys_after_the_query_are_negative():
    scores = np.tile(np.arange(5, -3, -1), (4, 2, 3, 1)).astype("float32")
    shifted = np.array(shift_to_keys(scores, 5, nearest=-2))
    assert shifted.shape == (4, 2, 3, 5)
    for n, b in np.ndindex(4, 2):
        assert shifted[n, b].tolist() == [
            [2, 1, 0, -1, -2],
            [3, 2, 1, 0, -1],
            [4, 3, 2, 1, 0],
        ]


@pytest.mark.parametrize("length,num_keys", [(1, 1), (1, 6), (4, 4), (3, 7)])
def test_both_directions_equal_indexing_by_distance(length, num_keys):
    scores = random(5, 2, length, num_keys + length)
    shifted = np.array(shift_to_keys(scores, num_keys, nearest=1 - length))
    assert shifted.shape == (5, 2, length, num_keys)
    for i, j in np.ndindex(length, num_keys):
        distance = num_keys - length + i - j
        np.testing.assert_array_equal(
            shifted[:, :, i, j], scores[:, :, i, num_keys - distance]
        )


@pytest.mark.parametrize("num_distances", [1, 4, 7, 8, 9, 12])
def test_farther_keys_count_as_the_farthest_distance(num_distances):
    length, num_keys = 3, 7
    scores = random(5, 2, length, num_distances)  # (N, B, T, R)
    shifted = np.array(shift_to_keys(scores, num_keys))
    assert shifted.shape == (5, 2, length, num_keys)
    for i in range(length):
        for j in range(num_keys - length + i + 1):
            distance = min(num_keys - length + i - j, num_distances - 1)
            np.testing.assert_array_equal(
                shifted[:, :, i, j],
                scores[:, :, i, num_distances - 1 - distance],
            )
