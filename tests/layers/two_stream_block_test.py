import math

import numpy as np
import tensorflow as tf
from attention_loops import random
from attention_loops import two_stream_inputs
from attention_loops import with_random_weights
from layer_checks import check_layer

from txl_keras.layers import TwoStreamBlock

B, T, D, N, H, F = 2, 4, 6, 7, 8, 9


def inputs():
    masks = ("content_mask", "memory_mask", "permutation_mask")
    every = two_stream_inputs()
    return {name: x for name, x in every.items() if name not in masks}


def test_keras_layer(tmp_path):
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
        inputs(),
        num_weights=17,
        folder=tmp_path,
    )


def normalized(x, weights, name):
    x = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
    return x * weights[f"{name}/gamma"] + weights[f"{name}/beta"]


def gelu(x):
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def test_both_streams_equal_the_equations():
    call = inputs()
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


def test_the_streams_drop_other_units():
    block = with_random_weights(TwoStreamBlock(N, H, F, dropout=0.5), (B, T, D))
    # Without attention, both do the same.
    block.attention._output_dense.kernel.assign(np.zeros((D, N, H)))
    x = random(B, T, D)
    seeds = tf.constant([4, 6], tf.uint32)
    one, other = block(x, x)
    np.testing.assert_array_equal(one, other)
    one, other = block(x, x, training=True, dropout_seed=seeds)
    assert np.abs(one - other).max() > 1e-2
    again = block(x, x, training=True, dropout_seed=seeds)
    np.testing.assert_array_equal([one, other], again)
