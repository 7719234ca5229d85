"""Attention without positions, against loops over queries and keys."""

import numpy as np
import pytest
import tensorflow as tf
from attention_loops import assert_equals_loops
from attention_loops import everything
from attention_loops import random
from attention_loops import with_random_weights
from layer_checks import check_layer

from txl_keras.layers import CausalMultiHeadAttention

B, T, M, D, N, H = 2, 3, 5, 8, 4, 7


def segment_and_memory(memory_length=M):
    return random(B, T, D, seed=1), random(B, memory_length, D, seed=2)


def attention(**config):
    layer = CausalMultiHeadAttention(N, H, **config)
    return with_random_weights(layer, (B, T, D))


def assert_equals_reference(layer, query, memory, allowed, **call):
    def score(q, k, n, distance):
        return q @ k

    assert_equals_loops(layer, query, memory, allowed, score, **call)


@pytest.mark.parametrize("with_memory", [True, False])
def test_keras_layer(tmp_path, with_memory):
    query, memory = segment_and_memory()
    inputs, config = {"query": query}, {}
    if with_memory:
        inputs["memory"] = memory
        config = {"same_length": "pytorch"}
    check_layer(
        CausalMultiHeadAttention,
        {"num_heads": N, "key_dim": H, "dropout": 0.25, "seed": 9, **config},
        inputs,
        num_weights=4,
        folder=tmp_path,
    )


@pytest.mark.parametrize("memory_length", [5, 1, 0, None])
def test_equals_loops(memory_length):
    query, memory = segment_and_memory(memory_length or 0)
    if memory_length is None:
        memory = None
    assert_equals_reference(attention(), query, memory, everything)


@pytest.mark.parametrize(
    "same_length,keys_back", [(True, M), ("pytorch", M - 1)]
)
def test_same_length_counts_keys_in_two_ways(same_length, keys_back):
    query, memory = segment_and_memory()
    layer = attention(same_length=same_length)
    assert_equals_reference(
        layer, query, memory, lambda b, i, j, distance: distance <= keys_back
    )
    _, scores = layer(query, memory=memory, return_attention_scores=True)
    seen = np.count_nonzero(scores, axis=-1)
    np.testing.assert_array_equal(seen, np.full((B, N, T), keys_back + 1))


@pytest.mark.parametrize("same_length", [True, "pytorch"])
def test_same_length_of_an_empty_memory_leaves_a_token_itself(same_length):
    query, memory = segment_and_memory(0)
    assert_equals_reference(
        attention(same_length=same_length),
        query,
        memory,
        lambda b, i, j, distance: distance == 0,
    )


@pytest.mark.parametrize("bad", ["tensorflow", "", None, 2])
def test_same_length_must_be_known(bad):
    with pytest.raises(ValueError, match=f"Received: same_length={bad!r}"):
        CausalMultiHeadAttention(N, H, same_length=bad)


@pytest.mark.parametrize("same_length", [True, "pytorch"])
def test_same_length_needs_a_memory(same_length):
    with pytest.raises(ValueError, match="needs a memory"):
        attention(same_length=same_length)(random(B, T, D))


def test_all_masks_together():
    query, memory = segment_and_memory()
    of_query = np.array([[1, 0, 1], [1, 1, 0]], bool)
    of_memory = np.array([[0, 1, 0, 1, 1], [1, 0, 0, 1, 1]], bool)
    of_pair = np.random.default_rng(6).random((B, T, M + T)) < 0.6
    of_pair[:, :, M - 1] = True
    keys = np.concatenate([of_memory, of_query], axis=1)
    assert_equals_reference(
        attention(),
        query,
        memory,
        lambda b, i, j, distance: keys[b, j] and of_pair[b, i, j],
        query_mask=of_query,
        memory_mask=of_memory,
        attention_mask=of_pair,
    )


def test_sees_no_positions():
    query, memory = segment_and_memory()
    layer = attention()
    order = np.array([3, 0, 4, 2, 1])
    np.testing.assert_allclose(
        layer(query, memory=memory[:, order]),
        layer(query, memory=memory),
        atol=1e-5,
    )


def test_compiled():
    query, memory = segment_and_memory()
    layer = attention(same_length="pytorch")
    compiled = tf.function(layer, jit_compile=True)
    np.testing.assert_allclose(
        compiled(query, memory=memory), layer(query, memory=memory), atol=1e-5
    )


def test_attention_scores_are_before_dropout():
    query, memory = segment_and_memory()
    layer = attention(dropout=0.5)
    seeds = tf.constant([4, 6], tf.uint32)
    call = {"memory": memory, "return_attention_scores": True}
    exact, scores = layer(query, **call)
    dropped, same = layer(query, training=True, dropout_seed=seeds, **call)
    np.testing.assert_array_equal(same, scores)
    assert np.abs(dropped - exact).max() > 1e-2
    again, _ = layer(query, training=True, dropout_seed=seeds, **call)
    np.testing.assert_array_equal(again, dropped)


@pytest.mark.parametrize("sizes", [(0, 3), (2, -1), (2, 2.0), (True, 3)])
def test_sizes_must_be_positive_integers(sizes):
    with pytest.raises(ValueError, match="must be an integer of at least 1"):
        CausalMultiHeadAttention(*sizes)
