"""Relative keys and biases, against loops over queries and keys."""

import numpy as np
import pytest
import tensorflow as tf
from attention_loops import assert_equals_loops
from attention_loops import by_name
from attention_loops import everything
from attention_loops import random
from attention_loops import with_random_weights
from layer_checks import check_layer

from txl_keras.layers import ShawMultiHeadAttention

# P, rows of the tables: more than the M + T = 9 distances.
B, T, M, D, N, H, P = 2, 3, 6, 8, 4, 7, 11


def segment_and_memory(memory_length=M):
    return random(B, T, D, seed=1), random(B, memory_length, D, seed=2)


def attention(max_positions=P, **config):
    layer = ShawMultiHeadAttention(N, H, max_positions, **config)
    return with_random_weights(layer, (B, T, D))


def assert_equals_reference(
    layer, query, memory, allowed=everything, num_rows=P, **call
):
    w = by_name(layer)
    u = w["content_attention_bias"]

    def score(q, k, n, distance):
        row = min(distance, num_rows - 1)
        if distance < 0:
            row = P - 1 - distance
        a = w["position_keys"][row, n]
        return q @ k + u[n] @ k + q @ a + w["position_biases"][row, n]

    assert_equals_loops(layer, query, memory, allowed, score, **call)


@pytest.mark.parametrize("with_memory", [True, False])
def test_keras_layer(tmp_path, with_memory):
    query, memory = segment_and_memory()
    inputs, config = {"query": query}, {"max_positions": T}
    if with_memory:
        inputs["memory"] = memory
        config = {"max_positions": 9, "clamp_length": 9, "same_length": True}
        config["look_ahead"] = T - 1
    check_layer(
        ShawMultiHeadAttention,
        {"num_heads": N, "key_dim": H, "dropout": 0.25, "seed": 9, **config},
        inputs,
        num_weights=7,
        folder=tmp_path,
    )


def test_weights_have_these_shapes():
    assert {name: w.shape for name, w in by_name(attention()).items()} == {
        "query": (D, N, H),
        "key": (D, N, H),
        "value": (D, N, H),
        "output": (N, H, D),
        "content_attention_bias": (N, H),
        "position_keys": (P, N, H),
        "position_biases": (P, N),
    }


@pytest.mark.parametrize("memory_length", [6, 2, 1, 0, None])
def test_equals_loops(memory_length):
    query, memory = segment_and_memory(memory_length or 0)
    if memory_length is None:
        memory = None
    assert_equals_reference(attention(), query, memory)


@pytest.mark.parametrize("look_ahead", [1, T + 2])
@pytest.mark.parametrize("clamp_length", [None, 4])
def test_keys_after_a_query_have_their_own_rows(look_ahead, clamp_length):
    query, memory = segment_and_memory()
    layer = attention(look_ahead=look_ahead, clamp_length=clamp_length)
    assert by_name(layer)["position_biases"].shape == (P + look_ahead, N)
    assert_equals_reference(layer, query, memory, num_rows=clamp_length or P)


@pytest.mark.parametrize("max_positions", [1, 2, 5, 8, 9])
def test_distances_beyond_the_tables_use_their_last_row(max_positions):
    query, memory = segment_and_memory()
    assert_equals_reference(
        attention(max_positions), query, memory, num_rows=max_positions
    )


@pytest.mark.parametrize(
    "clamp_length,max_positions,num_rows", [(1, P, 1), (4, P, 4), (7, 5, 5)]
)
def test_clamp_length_uses_the_first_rows(
    clamp_length, max_positions, num_rows
):
    query, memory = segment_and_memory()
    layer = attention(max_positions, clamp_length=clamp_length)
    assert_equals_reference(layer, query, memory, num_rows=num_rows)


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


def test_all_masks_together():
    query, memory = segment_and_memory()
    of_query = np.array([[1, 0, 1], [1, 1, 0]], bool)
    of_memory = np.array([[0, 1, 0, 1, 1, 1], [1, 0, 0, 1, 0, 1]], bool)
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


def test_compiled_with_gradients():
    query, memory = (tf.constant(x) for x in segment_and_memory())
    layer = attention(5)

    def run(query, memory):
        with tf.GradientTape() as tape:
            tape.watch([query, memory])
            output = layer(query, memory=memory)
            loss = tf.reduce_sum(output**2)
        weights = [w.value for w in layer.trainable_weights]
        gradients = tape.gradient(loss, [query, memory, *weights])
        return [output, *(tf.convert_to_tensor(g) for g in gradients)]

    results = run(query, memory)
    for result in results:
        assert np.abs(result).max() > 1e-3
    compiled = tf.function(run, jit_compile=True)
    for result, expected in zip(compiled(query, memory), results, strict=True):
        np.testing.assert_allclose(result, expected, atol=1e-3, rtol=1e-4)


def test_gradient_reaches_the_rows_of_distances_that_were_seen():
    layer = attention()
    query, memory = segment_and_memory(4)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(query, memory=memory) ** 2)
    tables = [layer.position_keys.value, layer.position_biases.value]
    for gradient in tape.gradient(loss, tables):
        gradient = np.abs(tf.convert_to_tensor(gradient).numpy())
        gradient = gradient.reshape(P, -1).max(-1)
        assert (gradient[: 4 + T] > 1e-5).all()
        np.testing.assert_array_equal(gradient[4 + T :], 0)


@pytest.mark.parametrize("name", ["max_positions", "clamp_length"])
@pytest.mark.parametrize("bad", [0, -2, 3.0, True])
def test_lengths_must_be_positive_integers(name, bad):
    with pytest.raises(ValueError, match=f"`{name}` must be an integer of at"):
        ShawMultiHeadAttention(N, H, **{"max_positions": P, name: bad})
