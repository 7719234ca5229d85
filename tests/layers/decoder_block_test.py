"""A block is checked against its equations, with attention as given."""

import functools

import numpy as np
import pytest
from attention_loops import output_and_gradients
from attention_loops import random
from attention_loops import with_random_weights
from backends import gradients
from keras import ops
from layer_checks import check_layer

from txl_keras.layers import DecoderBlock
from txl_keras.layers.compute.target import Target
from txl_keras.layers.compute.target import compile_for

pytestmark = pytest.mark.every_backend

B, T, M, D, N, H, F = 2, 3, 5, 8, 4, 7, 6


def block(**config):
    return with_random_weights(DecoderBlock(N, H, F, **config), (B, T, D))


def weight(layer, path):
    (found,) = [w for w in layer.weights if w.path.endswith(path)]
    return found.numpy()


def layer_norm(layer, name, x):
    deviation = np.sqrt(x.var(-1, keepdims=True) + layer.layer_norm_epsilon)
    normed = (x - x.mean(-1, keepdims=True)) / deviation
    gamma, beta = weight(layer, f"{name}/gamma"), weight(layer, f"{name}/beta")
    return normed * gamma + beta


def feed_forward(layer, x):
    prefix = "feed_forward_"
    inner = x @ weight(layer, f"{prefix}intermediate/kernel")
    inner = np.maximum(inner + weight(layer, f"{prefix}intermediate/bias"), 0)
    outer = inner @ weight(layer, f"{prefix}output/kernel")
    return outer + weight(layer, f"{prefix}output/bias")


def test_keras_layer(tmp_path):
    check_layer(
        DecoderBlock,
        {
            "num_heads": N,
            "head_dim": H,
            "intermediate_dim": F,
            "dropout": 0.1,
            "attention_dropout": 0.2,
            "normalize_first": True,
            "layer_norm_epsilon": 1e-4,
            "clamp_length": 4,
            "same_length": True,
        },
        {"inputs": random(B, T, D), "memory": random(B, M, D, seed=1)},
        num_weights=7 + 4 + 4,
        folder=tmp_path,
    )


@pytest.mark.parametrize("normalize_first", [True, False])
def test_equals_its_equations_with_the_scores_that_it_returns(normalize_first):
    layer = block(normalize_first=normalize_first, layer_norm_epsilon=0.01)
    x, memory = random(B, T, D), random(B, M, D, seed=1)

    def before(name, states):
        return layer_norm(layer, name, states) if normalize_first else states

    def after(name, states):
        return states if normalize_first else layer_norm(layer, name, states)

    y, scores = layer(x, memory=memory, return_attention_scores=True)
    states = np.concatenate([memory, x], axis=1)
    states = before("attention_norm", states)
    values = np.einsum("bsd,dnh->bsnh", states, weight(layer, "value/kernel"))
    output = weight(layer, "attention/output/kernel")
    a = x + np.einsum("bnts,bsnh,nhd->btd", scores, values, output)
    a = after("attention_norm", a)
    expected = a + feed_forward(layer, before("feed_forward_norm", a))
    expected = after("feed_forward_norm", expected)
    np.testing.assert_allclose(y, expected, atol=1e-4)
    np.testing.assert_allclose(layer(x, memory=memory), expected, atol=1e-4)


def test_the_places_of_dropout_have_masks_of_their_own():
    # Only the dropout after the attention and the one after the feed-forward
    # network act on a tensor of this size; alike masks would drop alike units.
    layer = block(normalize_first=True, dropout=0.5)
    zeros = [0 * w.numpy() for w in layer.weights]
    layer.set_weights(zeros)
    ones = np.ones(D, "float32")
    x = np.zeros((40, T, D), "float32")
    seeds = ops.array(range(40), "uint32")
    layer._output_dense.bias.assign(ones)
    fed_forward = np.array(layer(x, training=True, dropout_seed=seeds)) > 0
    layer.set_weights(zeros)
    layer._attention_norm.beta.assign(ones)
    layer.attention._value_dense.kernel.assign(np.ones((D, N, H), "float32"))
    layer.attention._output_dense.kernel.assign(np.ones((N, H, D), "float32"))
    attended = np.array(layer(x, training=True, dropout_seed=seeds)) > 0
    assert abs(fed_forward.mean() - 0.5) < 0.06
    assert abs(attended.mean() - 0.5) < 0.06
    assert abs((fed_forward == attended).mean() - 0.5) < 0.06


# In JAX they are summed up in bfloat16.
@pytest.mark.tensorflow
def test_biases_have_exact_gradients_in_bfloat16():
    rows, length = 32, 61
    x = random(rows, length, D)
    upstream = random(rows, length, D, seed=1)
    by_bias = {}
    for dtype in ("float32", "mixed_bfloat16"):
        layer = block(dtype=dtype, normalize_first=True)
        output_bias = layer.trainable_variables[-1]
        assert output_bias.path.endswith("feed_forward_output/bias")
        _, (found,) = gradients(
            lambda layer=layer: ops.sum(
                ops.multiply(ops.cast(layer(x), "float32"), upstream)
            ),
            [output_bias],
        )
        by_bias[dtype] = np.array(found)
    # Each rounds `upstream` only.
    error = by_bias["mixed_bfloat16"] - by_bias["float32"]
    assert np.linalg.norm(error) < 0.005 * np.linalg.norm(by_bias["float32"])


def gradients_of(layer):
    query, memory = (
        ops.cast(random(B, length, D, seed=length), layer.compute_dtype)
        for length in (T, M)
    )
    return output_and_gradients(layer, query, memory)[1:]


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-5), ("mixed_bfloat16", 0.06)]
)
def test_a_block_in_parts_has_the_gradients_of_one_at_once(dtype, tolerance):
    """Its graph is compiled in parts, with matmuls by TensorFlow."""
    expected = gradients_of(block())
    layer = block(dtype=dtype)
    in_parts = Target("cpu", in_parts=True)
    found = compile_for(in_parts, functools.partial(gradients_of, layer))()
    names = ["query", "memory", *(w.path for w in layer.trainable_variables)]
    for name, x, y in zip(names, found, expected, strict=True):
        difference = np.linalg.norm(ops.cast(x, "float32") - y)
        assert difference < tolerance * np.linalg.norm(y), name
