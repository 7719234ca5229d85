"""Two streams against sections 2.3 to 2.5 of the paper, written as loops."""

import math
import warnings

import keras
import numpy as np
import pytest
from attention_loops import attend
from attention_loops import by_name
from attention_loops import random
from attention_loops import sinusoid
from attention_loops import two_stream_inputs
from attention_loops import with_random_weights
from keras import ops
from layer_checks import check_layer

from txl_keras.layers import TwoStreamBlock
from txl_keras.layers import TwoStreamRelativeAttention

pytestmark = pytest.mark.every_backend

B, T, D, N, H, F = 2, 4, 6, 7, 8, 9


def attention(**config):
    layer = TwoStreamRelativeAttention(N, H, **config)
    return with_random_weights(layer, (B, T, D))


def test_the_mask_of_an_embedding_reaches_a_second_block():
    ids = np.array([[3, 5, 0, 0]])
    first, second = (TwoStreamBlock(N, H, F) for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = keras.layers.Embedding(9, D, mask_zero=True)(ids)
        found = second(first(x))
    expected = second(first(x, content_mask=ids > 0), content_mask=ids > 0)
    np.testing.assert_allclose(found[:, :2], expected[:, :2], atol=1e-6)


def test_no_tokens_are_read_beside_memory():
    output = attention()(np.ones((B, 0, D)), memory=np.ones((B, 3, D)))
    assert np.shape(output) == (B, 0, D)


def assert_equals_loops(call, **config):
    """The definition, one query and one key at a time, in float64."""
    layer = attention(**config)
    w, content = by_name(layer), call["content"]
    memory = call.get("memory", np.zeros((B, 0, D)))
    M = memory.shape[1]
    masks = {
        "memory_mask": np.ones((B, M), bool),
        "content_mask": np.ones((B, T), bool),
        "permutation_mask": np.ones((B, T, T), bool),
        **call,
    }

    def allowed(b, i, j, distance):
        if j < M:
            return masks["memory_mask"][b, j]
        is_real = masks["content_mask"][b, j - M]
        return distance and is_real and masks["permutation_mask"][b, i, j - M]

    def allowed_or_itself(b, i, j, distance):
        return distance == 0 or allowed(b, i, j, distance)

    def score(q, k, n, distance, b, i, j):
        r = sinusoid(distance, D, layer.clamp_length) @ w["position"][:, n]
        score = (q + w["content_attention_bias"][n]) @ k
        score += (q + w["positional_attention_bias"][n]) @ r
        if "token_type_ids" in call:
            types = call["token_type_ids"][b]
            other = int(types[i] != (types[j - M] if j >= M else 0))
            segment = w["segment_embeddings"][other, n]
            score += (q + w["segment_attention_bias"][n]) @ segment
        return score

    mapping = call.get("target_mapping", np.stack([np.eye(T)] * B))
    places = [
        [row.argmax() if row.any() else None for row in rows]
        for rows in mapping
    ]
    found = layer(**call)
    expected = [
        attend(layer, content, memory, allowed_or_itself, score),
        attend(layer, call["query"], memory, allowed, score, content, places),
    ]
    for output, (of_loops, _) in zip(found, expected, strict=True):
        np.testing.assert_allclose(output, of_loops, atol=5e-5)


def only(*names):
    return {name: x for name, x in two_stream_inputs().items() if name in names}


def test_keras_layer(tmp_path):
    sizes = {"num_heads": N, "key_dim": H, "clamp_length": 3}
    check_layer(
        TwoStreamRelativeAttention,
        {**sizes, "dropout": 0.25, "seed": 9},
        two_stream_inputs(),
        num_weights=9,
        folder=tmp_path,
    )


@pytest.mark.parametrize("clamp_length", [None, 2])
def test_equals_the_paper_with_everything(clamp_length):
    assert_equals_loops(two_stream_inputs(), clamp_length=clamp_length)


@pytest.mark.parametrize(
    "names",
    [
        ["content", "query", "target_mapping", "content_mask"],
        # A target per token.
        ["content", "query_of_tokens", "memory", "permutation_mask"],
    ],
)
def test_equals_the_paper_with_some_arguments(names):
    every = {**two_stream_inputs(), "query_of_tokens": random(B, T, D, seed=5)}
    call = {name.removesuffix("_of_tokens"): every[name] for name in names}
    assert_equals_loops(call)


def test_a_target_that_may_see_no_key_gets_zeros():
    call = only("content", "query", "target_mapping", "permutation_mask")
    call["permutation_mask"][0, 2] = False
    _, query = attention()(**call)
    np.testing.assert_array_equal(query[0, 0], np.zeros(D))
    assert np.abs(query[0, 1:]).max() > 1e-2
    assert_equals_loops(call)


def test_the_streams_drop_other_keys():
    layer = TwoStreamRelativeAttention(1, H, dropout=0.5)
    layer = with_random_weights(layer, (B, 1, D))
    # A token of zeros has no value: what it adds to the content stream is a
    # share of the softmax, so both streams have one direction. Memory is long
    # enough that not all of it is dropped.
    token, memory = np.zeros((B, 1, D), "float32"), random(B, 30, D)

    def directions(**call):
        return [
            np.array(x) / np.linalg.norm(x, axis=-1, keepdims=True)
            for x in layer(token, token, memory=memory, **call)
        ]

    np.testing.assert_allclose(*directions(), atol=1e-5)
    seeds = ops.array([4, 6], "uint32")
    one, other = directions(training=True, dropout_seed=seeds)
    assert np.abs(one - other).max() > 1e-2


def test_a_mapping_needs_a_query():
    call = two_stream_inputs()
    del call["query"]
    with pytest.raises(ValueError, match="Received: query=None"):
        attention()(**call)


# --- The block


BLOCK_INPUTS = only(
    "content", "query", "target_mapping", "memory", "token_type_ids"
)


def test_block_is_a_keras_layer(tmp_path):
    check_layer(
        TwoStreamBlock,
        {
            "num_heads": N,
            "head_dim": H,
            "intermediate_dim": F,
            "dropout": 0.1,
            "attention_dropout": 0.2,
            "layer_norm_epsilon": 1e-5,
            "clamp_length": 3,
        },
        BLOCK_INPUTS,
        num_weights=17,
        folder=tmp_path,
    )


def normalized(x, weights, name):
    x = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
    return x * weights[f"{name}/gamma"] + weights[f"{name}/beta"]


def gelu(x):
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def test_both_streams_of_a_block_equal_the_equations():
    call = BLOCK_INPUTS
    block = with_random_weights(TwoStreamBlock(N, H, F), (B, T, D))
    w = {
        weight.path.split("/", 1)[1]: weight.numpy().astype("float64")
        for weight in block.weights
    }
    streams = [call["content"], call["query"]]
    attended = block.attention(**call)
    for x, a, y in zip(streams, attended, block(**call), strict=True):
        x = normalized(x + np.array(a), w, "attention_norm")
        inner = x @ w["feed_forward_intermediate/kernel"]
        inner = gelu(inner + w["feed_forward_intermediate/bias"])
        inner = inner @ w["feed_forward_output/kernel"]
        x = x + inner + w["feed_forward_output/bias"]
        expected = normalized(x, w, "feed_forward_norm")
        np.testing.assert_allclose(y, expected, atol=2e-5)


def test_the_streams_of_a_block_drop_other_units():
    block = with_random_weights(TwoStreamBlock(N, H, F, dropout=0.5), (B, T, D))
    # Without attention, both do the same.
    block.attention._output_dense.kernel.assign(np.zeros((D, N, H)))
    x = random(B, T, D)
    seeds = ops.array([4, 6], "uint32")
    np.testing.assert_array_equal(*block(x, x))
    one, other = block(x, x, training=True, dropout_seed=seeds)
    assert np.abs(one - other).max() > 1e-2
    again = block(x, x, training=True, dropout_seed=seeds)
    np.testing.assert_array_equal([one, other], again)
