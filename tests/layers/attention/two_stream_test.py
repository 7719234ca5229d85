"""Two streams against sections 2.3 to 2.5 of the paper, written as loops."""

import math

import numpy as np
import pytest
import tensorflow as tf
from attention_loops import by_name
from attention_loops import random
from attention_loops import sinusoid
from attention_loops import two_stream_inputs
from attention_loops import with_random_weights
from layer_checks import check_layer

from txl_keras.layers import TwoStreamRelativeAttention

B, T, D, N, H = 2, 4, 6, 7, 8


def attention(**config):
    layer = TwoStreamRelativeAttention(N, H, **config)
    return with_random_weights(layer, (B, T, D))


class Loops:
    """The definition, one query and one key at a time, in float64."""

    def __init__(self, layer, call):
        self.w = by_name(layer)
        self.clamp_length = layer.clamp_length
        self.call = call
        self.rows, self.length, _ = call["content"].shape
        memory = call.get("memory", np.zeros((self.rows, 0, D)))
        self.num_memory = memory.shape[1]
        self.context = np.concatenate([memory, call["content"]], axis=1)

    def sees(self, b, i, j, itself):
        call, of_segment = self.call, j - self.num_memory
        if of_segment < 0:
            return call["memory_mask"][b, j] if "memory_mask" in call else True
        if i == of_segment:
            return itself
        if "content_mask" in call and not call["content_mask"][b, of_segment]:
            return False
        if "permutation_mask" in call:
            return call["permutation_mask"][b, i, of_segment]
        return True

    def score(self, b, q, i, j, n):
        w = self.w
        key = self.context[b, j] @ w["key"][:, n]
        distance = self.num_memory + i - j
        r = sinusoid(distance, D, self.clamp_length) @ w["position"][:, n]
        score = (q + w["content_attention_bias"][n]) @ key
        score += (q + w["positional_attention_bias"][n]) @ r
        if "token_type_ids" in self.call:
            types = self.call["token_type_ids"][b]
            of_key = types[j - self.num_memory] if j >= self.num_memory else 0
            other = int(types[i] != of_key)
            segment = w["segment_embeddings"][other, n]
            score += (q + w["segment_attention_bias"][n]) @ segment
        return score / math.sqrt(H)

    def attend(self, b, state, i, itself):
        """The output of one query that stands at `i`."""
        output = np.zeros(D)
        seen = [
            j
            for j in range(self.context.shape[1])
            if self.sees(b, i, j, itself=itself)
        ]
        for n in range(N if seen else 0):
            q = state.astype("float64") @ self.w["query"][:, n]
            p = np.exp([self.score(b, q, i, j, n) for j in seen])
            values = self.context[b, seen] @ self.w["value"][:, n]
            output += self.w["output"][:, n] @ (p / p.sum() @ values)
        return output

    def content(self):
        return [
            [
                self.attend(b, self.call["content"][b, i], i, itself=True)
                for i in range(self.length)
            ]
            for b in range(self.rows)
        ]

    def query(self):
        queries = self.call["query"]
        outputs = np.zeros(queries.shape)
        for b, p in np.ndindex(queries.shape[:2]):
            place = p
            if "target_mapping" in self.call:
                mapping = self.call["target_mapping"][b, p]
                if not mapping.any():
                    continue
                place = mapping.argmax()
            outputs[b, p] = self.attend(b, queries[b, p], place, itself=False)
        return outputs


def assert_equals_loops(call, **config):
    layer = attention(**config)
    content, query = layer(**call)
    loops = Loops(layer, call)
    np.testing.assert_allclose(content, loops.content(), atol=5e-5)
    np.testing.assert_allclose(query, loops.query(), atol=5e-5)


def only(*names):
    return {name: x for name, x in two_stream_inputs().items() if name in names}


def test_keras_layer(tmp_path):
    check_layer(
        TwoStreamRelativeAttention,
        {
            "num_heads": N,
            "key_dim": H,
            "dropout": 0.25,
            "clamp_length": 3,
            "seed": 9,
        },
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
        ["content", "query", "target_mapping", "memory"],
        ["content", "query", "target_mapping", "content_mask"],
        # A target per token.
        ["content", "query_of_tokens", "memory", "permutation_mask"],
        ["content", "query_of_tokens"],
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
    seeds = tf.constant([4, 6], tf.uint32)
    one, other = directions(training=True, dropout_seed=seeds)
    assert np.abs(one - other).max() > 1e-2


def test_a_mapping_needs_a_query():
    call = two_stream_inputs()
    del call["query"]
    with pytest.raises(ValueError, match="Received: query=None"):
        attention()(**call)
