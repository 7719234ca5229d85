"""Scores by distance find their keys."""

import numpy as np
import pytest
import tensorflow as tf
from attention_loops import random

from txl_keras.layers import relative_shift
from txl_keras.layers.relative_shift import bidirectional_shift
from txl_keras.layers.relative_shift import part_lengths
from txl_keras.layers.relative_shift import scores_by_key
from txl_keras.layers.relative_shift import shift_nearest

B, N, T, H = 2, 5, 3, 4
# Whole tiles, a rest, less than a tile, none, and too many.
MEMORY_LENGTHS = [0, 1, 3, 5, 6, 12, 13]


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


def test_bidirectional_shift_of_distances_is_this():
    scores = np.tile(np.arange(5, -3, -1), (4, 2, 3, 1)).astype("float32")
    shifted = np.array(bidirectional_shift(scores))
    assert shifted.shape == (4, 2, 3, 5)
    for n, b in np.ndindex(4, 2):
        assert shifted[n, b].tolist() == [
            [2, 1, 0, -1, -2],
            [3, 2, 1, 0, -1],
            [4, 3, 2, 1, 0],
        ]


@pytest.mark.parametrize("length,num_keys", [(1, 1), (1, 6), (4, 4), (3, 7)])
def test_bidirectional_shift_equals_indexing_by_distance(length, num_keys):
    scores = random(5, 2, length, num_keys + length)
    shifted = np.array(bidirectional_shift(scores))
    assert shifted.shape == (5, 2, length, num_keys)
    for i, j in np.ndindex(length, num_keys):
        distance = num_keys - length + i - j
        np.testing.assert_array_equal(
            shifted[:, :, i, j], scores[:, :, i, num_keys - distance]
        )


@pytest.mark.parametrize("num_distances", [1, 4, 7, 8, 9, 12])
def test_shift_nearest_equals_indexing_by_the_nearest_distances(num_distances):
    length, num_keys = 3, 7
    scores = random(5, 2, length, num_distances)  # (N, B, T, R)
    shifted = np.array(shift_nearest(scores, num_keys))
    assert shifted.shape == (2, 5, length, num_keys)
    for i in range(length):
        for j in range(num_keys - length + i + 1):
            distance = min(num_keys - length + i - j, num_distances - 1)
            np.testing.assert_array_equal(
                shifted[:, :, i, j],
                scores[:, :, i, num_distances - 1 - distance].T,
            )


def by_distance(query, keys, biases):
    return tf.einsum("btnh,nrh->nbtr", query, keys) + biases[:, None, None]


def by_key(query, positions, memory_length):
    lengths = part_lengths(memory_length, T)
    parts = scores_by_key(
        lambda *some: by_distance(query, *some), positions, lengths
    )
    assert [tuple(part.shape) for part in parts] == [
        (N, B, T, length) for length in lengths
    ]
    return tf.concat(parts, axis=-1)


def indexed(query, positions, memory_length):
    """Column of each key, and zero where a key is after the query."""
    scores = by_distance(query, *positions)
    i, j = np.arange(T)[:, None], np.arange(memory_length + T)[None]
    distance = memory_length + i - j
    columns = tf.constant(memory_length + T - 1 - np.maximum(distance, 0))
    found = tf.gather(
        scores, tf.broadcast_to(columns, (N, B, *columns.shape)), batch_dims=3
    )
    return tf.where(distance >= 0, found, 0.0), distance >= 0


@pytest.mark.parametrize("memory_length", MEMORY_LENGTHS)
@pytest.mark.parametrize("jit_compile", [False, True])
def test_scores_by_key_equal_indexing_by_distance(memory_length, jit_compile):
    num_keys = memory_length + T
    query = tf.Variable(random(B, T, N, H, seed=1))
    positions = [
        tf.Variable(random(N, num_keys, H, seed=2)),
        tf.Variable(random(N, num_keys, seed=3)),
    ]
    weights = random(N, B, T, num_keys, seed=4)

    @tf.function(jit_compile=jit_compile)
    def both(query, *positions):
        expected, visible = indexed(query, positions, memory_length)
        got = by_key(query, positions, memory_length)
        return tf.where(visible, got, 0.0), expected

    with tf.GradientTape(persistent=True) as tape:
        got, expected = both(query, *positions)
        sums = [tf.reduce_sum(scores * weights) for scores in (got, expected)]
    np.testing.assert_allclose(got, expected, atol=1e-5)
    for variable in (query, *positions):
        one, other = (tape.gradient(total, variable) for total in sums)
        assert np.abs(other).max() > 0.1
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_parts_are_tiles_unless_there_are_many():
    lengths = {m: part_lengths(m, T) for m in MEMORY_LENGTHS}
    assert lengths == {
        0: [3],
        1: [1, 3],
        3: [3, 3],
        5: [2, 3, 3],
        6: [3, 3, 3],
        12: [3, 3, 3, 3, 3],
        13: [13, 3],
    }


def test_lengths_may_be_known_at_run_time_only():
    query, positions = random(B, T, N, H), [random(N, 8, H), random(N, 8)]

    @tf.function(input_signature=[tf.TensorSpec((), tf.int32)])
    def sheared(memory_length):
        lengths = part_lengths(memory_length, T)
        return scores_by_key(
            lambda *some: by_distance(query, *some), positions, lengths
        )

    expected, visible = indexed(query, positions, 5)
    memory, segment = sheared(tf.constant(5))
    assert memory.shape[:3] == (N, B, T) and segment.shape[:3] == (N, B, T)
    got = tf.where(visible, tf.concat([memory, segment], axis=-1), 0.0)
    np.testing.assert_allclose(got, expected, atol=1e-5)
