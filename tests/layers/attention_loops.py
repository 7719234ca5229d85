"""Attention as loops over rows, heads, queries and keys, in float64."""

import math

import numpy as np
from backends import gradients
from keras import ops


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def with_random_weights(layer, query_shape):
    """The layer, with weights that are large enough to tell terms apart."""
    layer.build(query_shape)
    layer.set_weights(
        [0.5 * random(*w.shape, seed=i) for i, w in enumerate(layer.weights)]
    )
    return layer


def by_name(layer):
    return {
        weight.path.split("/")[1]: weight.numpy().astype("float64")
        for weight in layer.weights
    }


def sinusoid(distance, dim, clamp_length=None):
    """Encoding of Vaswani et al. in the layout of Transformer-XL."""
    if clamp_length is not None:
        distance = max(-clamp_length, min(distance, clamp_length))
    angles = [distance * 10000 ** (-2 * i / dim) for i in range(dim // 2)]
    return np.array(
        [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
    )


def two_stream_inputs():
    """Arguments of a layer of two streams; row 1 has one target fewer."""
    B, T, M, P, D = 2, 4, 5, 3, 6
    rng = np.random.default_rng(3)
    places = [[2, 0, 3], [1, 3, None]]
    mapping = np.zeros((B, P, T), "float32")
    for b, row in enumerate(places):
        for p, place in enumerate(row):
            if place is not None:
                mapping[b, p, place] = 1
    return {
        "content": random(B, T, D, seed=1),
        "query": random(B, P, D, seed=2),
        "target_mapping": mapping,
        "memory": random(B, M, D, seed=3),
        "content_mask": np.array([[1, 1, 0, 1], [1, 1, 1, 0]], bool),
        "memory_mask": np.array([[0, 1, 1, 1, 1], [0, 0, 0, 1, 1]], bool),
        "permutation_mask": rng.random((B, T, T)) < 0.6,
        "token_type_ids": np.array([[0, 1, 1, 2], [1, 0, 0, 0]], "int32"),
    }


def everything(b, i, j, distance):
    return True


def attend(layer, query, memory, allowed, score, content=None, places=None):
    """Outputs and probabilities, one number at a time.

    Args:
        allowed: Function of row, query, key and distance: may it be seen?
        score: Function of projected query and key, head, distance, row, query
            and key.
        content: What the segment's keys are of, by default `query`.
        places: Lists of the places of queries, or `None`, if not their indices.
    """
    w = by_name(layer)
    content = query if content is None else content
    context = np.concatenate([memory, content], axis=1).astype("float64")
    num_memory, num_keys = memory.shape[1], context.shape[1]
    num_heads, key_dim = w["query"].shape[1:]
    to_output = w["output"]
    if to_output.shape[0] == query.shape[-1]:
        to_output = np.moveaxis(to_output, 0, -1)
    outputs = np.zeros(query.shape)
    scores = np.zeros((len(query), num_heads, query.shape[1], num_keys))
    for b, n, row in np.ndindex(*scores.shape[:3]):
        i = row if places is None else places[b][row]
        q = query[b, row].astype("float64") @ w["query"][:, n]
        logits = np.full(num_keys, -math.inf)
        for j in range(num_keys) if i is not None else ():
            distance = num_memory + i - j
            is_early = distance >= -getattr(layer, "look_ahead", math.inf)
            if is_early and allowed(b, i, j, distance):
                k = context[b, j] @ w["key"][:, n]
                logit = score(q, k, n, distance, b, i, j)
                logits[j] = logit / math.sqrt(key_dim)
        if np.isfinite(logits).any():  # otherwise zeros
            p = np.exp(logits - logits.max())
            scores[b, n, row] = p / p.sum()
            attended = scores[b, n, row] @ (context[b] @ w["value"][:, n])
            outputs[b, row] += attended @ to_output[n]
    return outputs, scores


def assert_equals_loops(layer, query, memory, allowed, score, **call):
    """Compares a layer with `attend`; `memory` may be `None`."""
    output, scores = layer(
        query, memory=memory, return_attention_scores=True, **call
    )
    computed = layer(query, memory=memory, **call)
    if memory is None:
        memory = np.zeros((len(query), 0, query.shape[-1]))
    expected, expected_scores = attend(layer, query, memory, allowed, score)
    np.testing.assert_allclose(scores, expected_scores, atol=2e-6)
    np.testing.assert_array_equal(np.array(scores)[expected_scores == 0], 0)
    np.testing.assert_allclose(output, expected, atol=2e-5)
    np.testing.assert_allclose(computed, expected, atol=2e-5)


def output_and_gradients(layer, query, memory, watched=(), **arguments):
    """Output in training, and gradients of all that it depends on."""

    def call(query, memory, *watched):
        output = layer(query, memory=memory, training=True, **arguments)
        upstream = random(*query.shape, seed=3)
        return ops.sum(
            ops.multiply(upstream, ops.cast(output, "float32"))
        ), output

    inputs = query, memory, *watched
    (_, output), found = gradients(call, layer.trainable_variables, *inputs)
    return [output, *found]


def assert_alike(found, expected, atol=1e-5):
    """Compares lists of tensors, to a tolerance relative to the largest."""
    for one, other in zip(found, expected, strict=True):
        one, other = (np.array(ops.cast(x, "float32")) for x in (one, other))
        assert np.abs(other).max() > 0.01
        np.testing.assert_allclose(
            one, other, rtol=0, atol=atol * max(1, np.abs(other).max())
        )
