"""Attention against section 3.3 of the paper, written as loops."""

import itertools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from attention_loops import assert_equals_loops
from attention_loops import attend
from attention_loops import by_name
from attention_loops import everything
from attention_loops import random
from attention_loops import sinusoid
from attention_loops import with_random_weights
from layer_checks import check_layer

from txl_keras.layers import RelativeMultiHeadAttention
from txl_keras.layers import RelativePositionEncoding

B, T, M, D, N, H = 2, 3, 5, 8, 4, 7


def segment_and_memory(memory_length=M):
    return random(B, T, D, seed=1), random(B, memory_length, D, seed=2)


def attention(**config):
    layer = RelativeMultiHeadAttention(N, H, **config)
    return with_random_weights(layer, (B, T, D))


def paper(layer, clamp_length=None, biases=None):
    """The score of section 3.3, before the scale."""
    w = by_name(layer)
    u, v = biases or (
        w["content_attention_bias"],
        w["positional_attention_bias"],
    )

    def score(q, k, n, distance):
        r = sinusoid(distance, D, clamp_length) @ w["position"][:, n]
        # (a) + (b) + (c) + (d)
        return q @ k + q @ r + u[n] @ k + v[n] @ r

    return score


def assert_equals_paper(layer, query, memory, allowed, call=None, **paper_args):
    score = paper(layer, **paper_args)
    assert_equals_loops(layer, query, memory, allowed, score, **(call or {}))


@pytest.mark.parametrize("with_memory", [True, False])
def test_keras_layer(tmp_path, with_memory):
    query, memory = segment_and_memory()
    inputs = {"query": query}
    config = {"tie_attention_biases": False}
    if with_memory:
        inputs["memory"] = memory
        config = {"same_length": True, "clamp_length": 4, "look_ahead": 1}
    check_layer(
        RelativeMultiHeadAttention,
        {"num_heads": N, "key_dim": H, "dropout": 0.25, "seed": 9, **config},
        inputs,
        num_weights=7,
        folder=tmp_path,
    )


def test_weights_have_these_shapes():
    assert {name: w.shape for name, w in by_name(attention()).items()} == {
        "content_attention_bias": (N, H),
        "positional_attention_bias": (N, H),
        "query": (D, N, H),
        "key": (D, N, H),
        "value": (D, N, H),
        "position": (D, N, H),
        "output": (N, H, D),
    }


def test_equals_the_four_terms_of_the_paper():
    query, memory = segment_and_memory()
    assert_equals_paper(attention(), query, memory, everything)


def test_equals_the_paper_without_memory():
    assert_equals_paper(attention(), random(B, T, D), None, everything)


def test_memory_of_no_entries_is_no_memory():
    query, memory = segment_and_memory(0)
    layer = attention()
    np.testing.assert_array_equal(layer(query, memory=memory), layer(query))


@pytest.mark.parametrize("look_ahead", [1, T - 1, T + 2])
@pytest.mark.parametrize("clamp_length", [None, 1])
def test_keys_after_a_query_have_negative_distances(look_ahead, clamp_length):
    query, memory = segment_and_memory()
    layer = attention(look_ahead=look_ahead, clamp_length=clamp_length)
    assert_equals_paper(
        layer, query, memory, everything, clamp_length=clamp_length
    )
    encoding = RelativePositionEncoding(clamp_length, look_ahead=look_ahead)
    np.testing.assert_array_equal(
        layer(query, memory, position_encoding=encoding(query, memory)),
        layer(query, memory),
    )
    causal = RelativePositionEncoding(clamp_length)(query, memory)
    with pytest.raises(ValueError, match="`position_encoding` must have"):
        layer(query, memory, position_encoding=causal)


@pytest.mark.parametrize("memory_length", [1, 2])
def test_memory_shorter_than_the_segment(memory_length):
    query, memory = segment_and_memory(memory_length)
    assert_equals_paper(attention(), query, memory, everything)


def test_clamp_length_encodes_far_distances_as_it():
    query, memory = segment_and_memory()
    assert_equals_paper(
        attention(clamp_length=2), query, memory, everything, clamp_length=2
    )


@pytest.mark.parametrize("memory_length", [5, 2])
def test_same_length_sees_m_keys_back_and_the_token_itself(memory_length):
    query, memory = segment_and_memory(memory_length)
    layer = attention(same_length=True)

    def allowed(b, i, j, distance):
        return distance <= memory_length

    assert_equals_paper(layer, query, memory, allowed)
    _, scores = layer(query, memory=memory, return_attention_scores=True)
    seen = np.count_nonzero(np.array(scores), axis=-1)
    np.testing.assert_array_equal(seen, np.full((B, N, T), memory_length + 1))


@pytest.mark.parametrize("memory_length", [5, 2, 1])
def test_same_length_of_pytorch_sees_one_key_fewer(memory_length):
    query, memory = segment_and_memory(memory_length)
    layer = attention(same_length="pytorch")
    assert_equals_paper(
        layer,
        query,
        memory,
        lambda b, i, j, distance: distance < memory_length,
    )
    _, scores = layer(query, memory=memory, return_attention_scores=True)
    seen = np.count_nonzero(np.array(scores), axis=-1)
    np.testing.assert_array_equal(seen, np.full((B, N, T), memory_length))


@pytest.mark.parametrize("same_length", [True, "pytorch"])
def test_same_length_of_an_empty_memory_leaves_a_token_itself(same_length):
    query, memory = segment_and_memory(0)
    assert_equals_paper(
        attention(same_length=same_length),
        query,
        memory,
        lambda b, i, j, distance: distance == 0,
    )


@pytest.mark.parametrize("bad", ["tensorflow", "", None, 2])
def test_same_length_must_be_known(bad):
    with pytest.raises(ValueError, match=f"Received: same_length={bad!r}"):
        RelativeMultiHeadAttention(N, H, same_length=bad)


def test_memory_mask_shuts_its_entries():
    query, memory = segment_and_memory()
    mask = np.array([[0, 0, 1, 1, 1], [0, 0, 0, 0, 1]], bool)
    assert_equals_paper(
        attention(),
        query,
        memory,
        lambda b, i, j, distance: j >= M or mask[b, j],
        call={"memory_mask": mask},
    )


def test_query_mask_shuts_padding():
    query, memory = segment_and_memory()
    mask = np.array([[1, 0, 1], [1, 1, 0]], bool)
    for given in (memory, None):
        num_memory = 0 if given is None else M
        assert_equals_paper(
            attention(),
            query,
            given,
            lambda b, i, j, distance, m=num_memory: j < m or mask[b, j - m],
            call={"query_mask": mask},
        )


@pytest.mark.parametrize("shape", [(B, T, M + T), (1, T, M + T), (T, M + T)])
def test_attention_mask_adds_to_the_causal_mask(shape):
    query, memory = segment_and_memory()
    mask = np.random.default_rng(5).random(shape) < 0.6
    mask[..., 0] = True
    full = np.broadcast_to(mask, (B, T, M + T))
    assert_equals_paper(
        attention(),
        query,
        memory,
        lambda b, i, j, distance: full[b, i, j],
        call={"attention_mask": mask},
    )


def test_all_masks_together():
    query, memory = segment_and_memory()
    rng = np.random.default_rng(6)
    of_query = rng.random((B, T)) < 0.5
    of_memory = rng.random((B, M)) < 0.5
    of_memory[:, -1] = True
    of_pair = rng.random((B, T, M + T)) < 0.7
    of_pair[:, :, M - 1] = True
    keys = np.concatenate([of_memory, of_query], axis=1)
    assert_equals_paper(
        attention(),
        query,
        memory,
        lambda b, i, j, distance: keys[b, j] and of_pair[b, i, j],
        call={
            "query_mask": of_query,
            "memory_mask": of_memory,
            "attention_mask": of_pair,
        },
    )


def test_biases_from_outside_take_the_place_of_u_and_v():
    query, memory = segment_and_memory()
    layer = attention(tie_attention_biases=True)
    assert len(layer.weights) == 5
    u, v = random(N, H, seed=7), random(N, H, seed=8)
    assert_equals_paper(
        layer,
        query,
        memory,
        everything,
        call={"attention_biases": (u, v)},
        biases=(u, v),
    )


def test_positions_may_be_computed_once_for_many_layers():
    query, memory = segment_and_memory()
    encoding = np.stack([sinusoid(M + T - 1 - j, D) for j in range(M + T)])
    layer = attention()
    np.testing.assert_allclose(
        layer(query, memory=memory, position_encoding=encoding),
        layer(query, memory=memory),
        atol=1e-5,
    )


def test_attention_scores_sum_to_one_and_are_zero_where_masked():
    query, memory = segment_and_memory()
    mask = np.array([[0, 1, 1, 0, 1], [0, 0, 0, 0, 0]], bool)
    _, scores = attention()(
        query, memory=memory, memory_mask=mask, return_attention_scores=True
    )
    scores = np.array(scores)
    np.testing.assert_allclose(scores.sum(-1), np.ones((B, N, T)), rtol=1e-6)
    np.testing.assert_array_equal(scores[:, :, :, :M][0][..., ~mask[0]], 0)
    np.testing.assert_array_equal(scores[1, :, :, :M], 0)
    for i in range(T):
        np.testing.assert_array_equal(scores[:, :, i, M + i + 1 :], 0)


def test_attention_scores_have_a_symbolic_shape_and_dtype():
    layer = attention(dtype="mixed_bfloat16")
    query, memory = keras.Input((T, D)), keras.Input((M, D))
    output, scores = layer(query, memory=memory, return_attention_scores=True)
    assert (output.shape, output.dtype) == ((None, T, D), "bfloat16")
    assert (scores.shape, scores.dtype) == ((None, N, T, M + T), "float32")
    _, scores = layer(
        keras.Input((None, D)), memory=memory, return_attention_scores=True
    )
    assert scores.shape == (None, N, None, None)


def test_no_token_sees_the_future():
    query, memory = segment_and_memory()
    layer = attention()
    before = np.array(layer(query, memory=memory))
    for t in range(T):
        changed = query.copy()
        changed[:, t] += 1
        after = np.array(layer(changed, memory=memory))
        np.testing.assert_array_equal(after[:, :t], before[:, :t])
        assert (np.abs(after[:, t:] - before[:, t:]).max(-1) > 1e-3).all()


def test_rows_do_not_see_each_other():
    query, memory = segment_and_memory()
    layer = attention()
    before = np.array(layer(query, memory=memory))
    query[0] += 1
    memory[0] -= 1
    after = np.array(layer(query, memory=memory))
    np.testing.assert_allclose(after[1], before[1], atol=1e-6)
    assert np.abs(after[0] - before[0]).max() > 1e-3


def test_gradient_reaches_every_weight_and_the_memory():
    query, memory = (tf.constant(x) for x in segment_and_memory())
    layer = attention()
    with tf.GradientTape() as tape:
        tape.watch([query, memory])
        loss = tf.reduce_sum(layer(query, memory=memory) ** 2)
    sources = [*layer.trainable_variables, query, memory]
    for gradient in tape.gradient(
        loss, [getattr(s, "value", s) for s in sources]
    ):
        assert np.isfinite(gradient).all()
        assert np.abs(gradient).max() > 1e-3


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_query_that_may_see_nothing_stays_finite(policy):
    query = tf.constant(random(B, T, D))
    mask = np.array([[False] * T, [True] * T])
    layer = attention(dtype=policy)
    with tf.GradientTape() as tape:
        tape.watch(query)
        output, scores = layer(
            query, query_mask=mask, return_attention_scores=True
        )
        loss = tf.reduce_sum(tf.cast(output, "float32"))
    assert np.isfinite(np.array(output, "float32")).all()
    np.testing.assert_allclose(
        np.array(scores).sum(-1), np.ones((B, N, T)), rtol=1e-5
    )
    assert np.isfinite(tape.gradient(loss, query)).all()


@pytest.mark.parametrize("with_memory", [True, False])
def test_mask_of_an_embedding_is_passed_by_keras(with_memory):
    ids = keras.Input((4,), dtype="int32")
    memory = keras.Input((M, D))
    embedded = keras.layers.Embedding(9, D, mask_zero=True)(ids)
    layer = attention()
    call = {"memory": memory} if with_memory else {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        output, scores = layer(embedded, return_attention_scores=True, **call)
        model = keras.Model([ids, memory], [output, scores])
        output, scores = model(
            [np.array([[5, 0, 3, 8], [2, 4, 0, 0]]), random(2, M, D)]
        )
    start = M if with_memory else 0
    seen = (np.array(scores)[:, :, -1, start:] > 0).astype(int)
    np.testing.assert_array_equal(seen[0], [[1, 0, 1, 1]] * N)
    np.testing.assert_array_equal(seen[1], [[1, 1, 0, 0]] * N)
    # And it goes on to the next layer.
    np.testing.assert_array_equal(
        output._keras_mask, [[1, 0, 1, 1], [1, 1, 0, 0]]
    )


def test_a_mask_survives_for_other_users_of_the_query():
    query = keras.layers.Embedding(9, D, mask_zero=True)(np.array([[3, 0, 2]]))
    attention()(query)
    np.testing.assert_array_equal(query._keras_mask, [[True, False, True]])


def test_bfloat16_tells_distances_of_a_long_memory_apart():
    query, memory = random(1, T, D, seed=1), random(1, 2000, D, seed=2)
    layer = attention(dtype="mixed_bfloat16")
    # Terms (b) and (d) alone.
    layer._key_dense.kernel.assign(np.zeros((D, N, H)))
    _, scores = layer(query, memory=memory, return_attention_scores=True)
    _, expected = attend(layer, query, memory, everything, paper(layer))
    # Positions in bfloat16 would be off by up to 4 of 2000: a sine at random.
    assert np.abs(scores - expected).max() < 0.05 * expected.max()


def test_dropout_only_in_training_and_rows_seeded_alone():
    query, memory = segment_and_memory()
    layer = attention(dropout=0.5)
    seeds = tf.constant([4, 6], tf.uint32)
    exact = np.array(layer(query, memory=memory))
    np.testing.assert_array_equal(
        exact, layer(query, memory=memory, training=False, dropout_seed=seeds)
    )
    dropped = layer(query, memory=memory, training=True, dropout_seed=seeds)
    assert np.abs(dropped - exact).max() > 1e-2
    alone = layer(
        query[1:], memory=memory[1:], training=True, dropout_seed=seeds[1:]
    )
    np.testing.assert_allclose(alone, dropped[1:], atol=1e-5)


@pytest.mark.parametrize(
    "sizes", [(0, 3), (2, 0), (-1, 3), (2, 2.0), ("2", 3), (2, None)]
)
def test_sizes_must_be_positive_integers(sizes):
    with pytest.raises(ValueError, match="must be an integer of at least 1"):
        RelativeMultiHeadAttention(*sizes)


def test_same_length_needs_a_memory():
    with pytest.raises(ValueError, match="needs a memory"):
        attention(same_length=True)(random(B, T, D))


def test_biases_come_from_one_place():
    query, biases = random(B, T, D), (random(N, H), random(N, H))
    with pytest.raises(ValueError, match="tie_attention_biases=False"):
        attention()(query, attention_biases=biases)
    with pytest.raises(ValueError, match="attention_biases=None"):
        attention(tie_attention_biases=True)(query)


def test_one_initializer_object_does_not_make_all_kernels_alike():
    layer = RelativeMultiHeadAttention(
        N, H, kernel_initializer=keras.initializers.RandomNormal()
    )
    layer.build((B, T, D))
    weights = by_name(layer)
    kernels = ("query", "key", "value", "position")
    for one, other in itertools.combinations(kernels, 2):
        assert np.abs(weights[one] - weights[other]).max() > 1e-2
