"""Attention layers of one stream, against loops over queries and keys."""

import itertools
import warnings

import keras
import numpy as np
import pytest
from attention_loops import assert_equals_loops
from attention_loops import attend
from attention_loops import by_name
from attention_loops import everything
from attention_loops import random
from attention_loops import sinusoid
from attention_loops import with_random_weights
from keras import ops
from layer_checks import check_layer

from txl_keras.layers import CausalMultiHeadAttention
from txl_keras.layers import DecoderBlock
from txl_keras.layers import RelativeMultiHeadAttention
from txl_keras.layers import RelativePositionEncoding
from txl_keras.layers import ShawMultiHeadAttention

pytestmark = pytest.mark.every_backend

# P, rows of Shaw's tables: more than the M + T = 8 distances.
B, T, M, D, N, H, P = 2, 3, 5, 8, 4, 7, 11
LAYERS = {
    "causal": CausalMultiHeadAttention,
    "relative": RelativeMultiHeadAttention,
    "shaw": ShawMultiHeadAttention,
}
every_kind = pytest.mark.parametrize("kind", LAYERS)


def segment_and_memory(memory_length=M):
    """The second is `None` if there is no memory at all."""
    if memory_length is None:
        return random(B, T, D, seed=1), None
    return random(B, T, D, seed=1), random(B, memory_length, D, seed=2)


def attention(kind="relative", **config):
    if kind == "shaw":
        config = {"max_positions": P, **config}
    return with_random_weights(LAYERS[kind](N, H, **config), (B, T, D))


def score_of(layer, biases=None):
    """The definition of a score, before the scale."""
    w = by_name(layer)

    def causal(q, k, n, distance, *_):
        return q @ k

    def relative(q, k, n, distance, *_):
        """Section 3.3 of Dai et al. 2019: (a) + (b) + (c) + (d)."""
        u, v = biases or (
            w["content_attention_bias"],
            w["positional_attention_bias"],
        )
        r = sinusoid(distance, D, layer.clamp_length) @ w["position"][:, n]
        return q @ k + q @ r + u[n] @ k + v[n] @ r

    def shaw(q, k, n, distance, *_):
        """A key and a bias per distance; keys ahead have rows of their own."""
        last = min(layer.max_positions, layer.clamp_length or P) - 1
        row = min(distance, last)
        if distance < 0:
            row = layer.max_positions - 1 - distance
        a = w["position_keys"][row, n]
        u = w["content_attention_bias"]
        return q @ k + u[n] @ k + q @ a + w["position_biases"][row, n]

    kinds = {
        CausalMultiHeadAttention: causal,
        RelativeMultiHeadAttention: relative,
        ShawMultiHeadAttention: shaw,
    }
    return kinds[type(layer)]


def assert_equals(layer, query, memory, allowed=everything, **call):
    score = score_of(layer, call.get("attention_biases"))
    assert_equals_loops(layer, query, memory, allowed, score, **call)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("causal", {}),
        ("relative", {"same_length": True, "tie_attention_biases": False}),
        ("shaw", {"same_length": "pytorch", "max_positions": 9}),
    ],
)
def test_keras_layer(tmp_path, kind, config):
    inputs = dict(zip(("query", "memory"), segment_and_memory(), strict=True))
    if kind == "causal":
        del inputs["memory"]
    else:
        config = {"clamp_length": 4, "look_ahead": 1, **config}
    check_layer(
        LAYERS[kind],
        {"num_heads": N, "key_dim": H, "dropout": 0.25, "seed": 9, **config},
        inputs,
        num_weights=4 if kind == "causal" else 7,
        folder=tmp_path,
    )


@every_kind
@pytest.mark.parametrize("memory_length", [M, 1, None])
def test_equals_the_definition(kind, memory_length):
    assert_equals(attention(kind), *segment_and_memory(memory_length))


@pytest.mark.parametrize(
    "config",
    [
        {"clamp_length": 1},
        {"clamp_length": 7, "max_positions": 5},
        *({"max_positions": n} for n in (1, 2, 7, 8)),
        {"look_ahead": 1},
        {"look_ahead": T - 1, "clamp_length": 4},
        {"look_ahead": T + 2, "clamp_length": 1},
    ],
    ids=str,
)
def test_distances_of_shaw_are_bounded_and_may_be_negative(config):
    layer = attention("shaw", **config)
    assert_equals(layer, *segment_and_memory())
    rows = config.get("max_positions", P) + config.get("look_ahead", 0)
    assert layer.position_biases.shape == (rows, N)


@pytest.mark.parametrize(
    "look_ahead, clamp_length", [(0, 2), (1, None), (T - 1, 4), (T + 2, 1)]
)
def test_positions_may_be_negative_and_computed_once_for_many_layers(
    look_ahead, clamp_length
):
    query, memory = segment_and_memory()
    config = {"look_ahead": look_ahead, "clamp_length": clamp_length}
    layer = attention(**config)
    assert_equals(layer, query, memory)
    encoding = RelativePositionEncoding(**config)
    np.testing.assert_array_equal(
        layer(query, memory, position_encoding=encoding(query, memory)),
        layer(query, memory),
    )


@pytest.mark.parametrize(
    "kind, memory_length",
    [("causal", M), ("shaw", 2), ("relative", 1), ("relative", 0)],
)
@pytest.mark.parametrize("same_length", [True, "pytorch"])
def test_same_length_sees_as_many_keys_from_every_query(
    kind, same_length, memory_length
):
    """Memory and the token itself; in PyTorch's code one key fewer."""
    keys_back = memory_length - (same_length == "pytorch" and memory_length > 0)
    assert_equals(
        attention(kind, same_length=same_length),
        *segment_and_memory(memory_length),
        lambda b, i, j, distance: distance <= keys_back,
    )


def test_same_length_needs_a_memory():
    for same_length in (True, "pytorch"):
        with pytest.raises(ValueError, match="needs a memory"):
            attention(same_length=same_length)(random(B, T, D))


MASKS = ["query_mask", "memory_mask", "attention_mask"]


@pytest.mark.parametrize(
    "kind, names",
    [
        *(("relative", [name]) for name in MASKS),
        *((kind, MASKS) for kind in LAYERS),
    ],
)
def test_masks_hide_keys(kind, names):
    rng = np.random.default_rng(6)
    masks = {
        "query_mask": rng.random((B, T)) < 0.5,
        "memory_mask": np.array([[0, 1, 0, 1, 1], [0, 0, 0, 0, 1]], bool),
        "attention_mask": rng.random((B, T, M + T)) < 0.7,
    }
    # So that every query sees a key.
    masks["attention_mask"][..., M - 1] = True
    call = {name: masks[name] for name in names}
    seen = np.ones((B, T, M + T), bool)
    seen &= call.get("attention_mask", True)
    seen[..., :M] &= call.get("memory_mask", np.ones((B, 1), bool))[:, None]
    seen[..., M:] &= call.get("query_mask", np.ones((B, 1), bool))[:, None]
    assert_equals(
        attention(kind),
        *segment_and_memory(),
        lambda b, i, j, distance: seen[b, i, j],
        **call,
    )


def test_biases_from_outside_take_the_place_of_u_and_v():
    layer = attention(tie_attention_biases=True)
    assert len(layer.weights) == 5
    biases = random(N, H, seed=7), random(N, H, seed=8)
    assert_equals(layer, *segment_and_memory(), attention_biases=biases)
    query, _ = segment_and_memory()
    for other, wrong in (
        (layer, None),
        (layer, (biases[0], biases[1][:1])),
        (attention(), biases),
    ):
        with pytest.raises(ValueError, match="`attention_biases` must"):
            other(query, attention_biases=wrong)
    block = DecoderBlock(N, H, D, tie_attention_biases=True)
    _, scores = block(
        keras.Input((T, D)),
        attention_biases=biases,
        return_attention_scores=True,
    )
    assert scores.shape == (None, N, T, T)


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


@pytest.mark.parametrize(
    "make", [attention, lambda: DecoderBlock(N, H, D)], ids=("layer", "block")
)
def test_masks_may_be_passed_by_position(make):
    layer, arrays = make(), [random(2, T, D), random(2, M, D)]
    arrays += np.arange(2 * T).reshape(2, T) % 3 > 0, np.ones((2, M), "bool")
    inputs = [keras.Input(x.shape[1:], dtype=x.dtype.name) for x in arrays]
    model = keras.Model(inputs, layer(*inputs))
    np.testing.assert_allclose(
        ops.convert_to_numpy(model(arrays)),
        ops.convert_to_numpy(layer(*arrays)),
        atol=1e-6,
    )
    _, scores = layer(*inputs, return_attention_scores=True)
    assert scores.shape == (None, N, T, M + T)


@pytest.mark.parametrize(
    "make, with_memory",
    [
        (attention, True),
        (lambda: DecoderBlock(N, H, D), False),
        (lambda: DecoderBlock(N, H, D, normalize_first=True), True),
    ],
    ids=("attention", "block", "normalize_first"),
)
def test_mask_of_an_embedding_is_passed_by_keras(make, with_memory):
    ids = keras.Input((4,), dtype="int32")
    memory = keras.Input((M, D))
    embedded = keras.layers.Embedding(9, D, mask_zero=True)(ids)
    layer = make()
    call = {"memory": memory} if with_memory else {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        output, scores = layer(embedded, return_attention_scores=True, **call)
        model = keras.Model([ids, memory], [embedded, output, scores])
        embedded, output, scores = model(
            [np.array([[5, 0, 3, 8], [2, 4, 0, 0]]), random(2, M, D)]
        )
    mask = [[1, 0, 1, 1], [1, 1, 0, 0]]
    start = M if with_memory else 0
    seen = (np.array(scores)[:, :, -1, start:] > 0).astype(int)
    np.testing.assert_array_equal(seen[:, 0], mask)
    assert (seen == seen[:, :1]).all()
    # And it goes on to the next layer, and to other users of the query.
    np.testing.assert_array_equal(output._keras_mask, mask)
    np.testing.assert_array_equal(embedded._keras_mask, mask)


@pytest.mark.parametrize("make", [attention, lambda: DecoderBlock(N, H, D)])
def test_a_compiled_step_knows_the_mask_of_an_embedding(make):
    embedding = keras.layers.Embedding(9, D, mask_zero=True)
    model = keras.Sequential([embedding, make()])
    ids = np.array([[0, 0, 3, 5]])
    found, expected = model.predict(ids, verbose=0), np.array(model(ids))
    np.testing.assert_allclose(found[:, 2:], expected[:, 2:], atol=1e-5)


def test_bfloat16_tells_distances_of_a_long_memory_apart():
    query, memory = random(1, T, D, seed=1), random(1, 2000, D, seed=2)
    layer = attention(dtype="mixed_bfloat16")
    # Terms (b) and (d) alone.
    layer._key_dense.kernel.assign(np.zeros((D, N, H)))
    _, scores = layer(query, memory=memory, return_attention_scores=True)
    _, expected = attend(layer, query, memory, everything, score_of(layer))
    # Positions in bfloat16 would be off by up to 4 of 2000: a sine at random.
    assert np.abs(scores - expected).max() < 0.05 * expected.max()


def test_one_initializer_object_does_not_make_all_kernels_alike():
    layer = RelativeMultiHeadAttention(
        N, H, kernel_initializer=keras.initializers.RandomNormal()
    )
    layer.build((B, T, D))
    weights = by_name(layer)
    kernels = ("query", "key", "value", "position")
    for one, other in itertools.combinations(kernels, 2):
        assert np.abs(weights[one] - weights[other]).max() > 1e-2
