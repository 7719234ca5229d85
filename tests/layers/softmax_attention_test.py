"""Attention to parts, and its gradient, against the definition."""

import numpy as np
import pytest
import tensorflow as tf
from attention_loops import random

from txl_keras.layers.softmax_attention import attend
from txl_keras.layers.softmax_attention import masked_softmax

B, T, N, H = 2, 3, 4, 5
LENGTHS = (6, 1, 3)
RATE = 0.25


def parts(dtype="float32", scale=1.0):
    scores = [
        tf.constant(scale * random(N, B, T, length, seed=i), dtype)
        for i, length in enumerate(LENGTHS)
    ]
    values = [
        tf.constant(random(B, length, N, H, seed=9 + i), dtype)
        for i, length in enumerate(LENGTHS)
    ]
    return scores, values


def masks():
    """A row's padding, nothing, and the future."""
    is_real = np.arange(6) >= np.array([4, 0])[:, None]
    causal = np.arange(T)[:, None] >= np.arange(T)
    return [tf.constant(is_real[None, :, None]), True, tf.constant(causal)]


def keep():
    return [
        tf.constant(random(N, B, T, length, seed=20 + i) > -0.5)
        for i, length in enumerate(LENGTHS)
    ]


def definition(scores, masks, values, keep=None, rate=0.0):
    """As TensorFlow computes it and its gradient: in one piece."""
    weights = masked_softmax(scores, masks)
    if keep is not None:
        weights = tf.where(tf.concat(keep(), -1), weights / (1 - rate), 0.0)
    return tf.einsum("nbts,bsnh->nbth", weights, tf.concat(values, 1))


def output_and_gradients(function, scores, values, *args):
    with tf.GradientTape() as tape:
        tape.watch([scores, values])
        output = function(scores, masks(), values, *args)
        total = tf.reduce_sum(
            tf.cast(output, tf.float32) * random(N, B, T, H, seed=30)
        )
    return output, tape.gradient(total, [*scores, *values])


@pytest.mark.parametrize("dropout", [(), (keep, RATE)])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_equals_the_definition_and_its_gradient(dropout, jit_compile):
    scores, values = parts()
    expected, gradients = output_and_gradients(
        definition, scores, values, *dropout
    )
    compiled = tf.function(
        lambda *args: output_and_gradients(attend, *args, *dropout),
        jit_compile=jit_compile,
    )
    output, found = compiled(scores, values)
    assert output.shape == (N, B, T, H)
    np.testing.assert_allclose(output, expected, atol=1e-5)
    for one, other in zip(found, gradients, strict=True):
        assert np.abs(other).max() > 0.05
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_probabilities_of_parts_sum_to_one_and_are_zero_where_masked():
    scores, _ = parts()
    probabilities = masked_softmax(scores, masks()).numpy()
    assert probabilities.shape == (N, B, T, sum(LENGTHS))
    np.testing.assert_allclose(probabilities.sum(-1), 1, atol=1e-6)
    assert not probabilities[:, 0, :, :4].any()
    assert not probabilities[:, :, 0, 8:].any()
    assert (probabilities[:, 1, 2] > 0).all()


def test_a_query_that_may_see_nothing_gets_the_mean_and_gives_no_gradient():
    scores, values = parts()
    closed = [tf.zeros((1, 1, 1, 1), tf.bool)] * len(scores)
    with tf.GradientTape() as tape:
        tape.watch([scores, values])
        output = attend(scores, closed, values)
    mean = tf.reduce_mean(tf.concat(values, 1), axis=1)  # [B, N, H]
    expected = np.broadcast_to(
        np.swapaxes(mean, 0, 1)[:, :, None], (N, B, T, H)
    )
    np.testing.assert_allclose(output, expected, atol=1e-5)
    gradients = tape.gradient(output, [*scores, *values])
    for gradient in gradients[: len(scores)]:
        assert not gradient.numpy().any()
    for gradient in gradients[len(scores) :]:
        np.testing.assert_allclose(gradient, T / sum(LENGTHS), atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_keep_their_dtype_and_are_near(dtype):
    exact = output_and_gradients(definition, *parts())
    output, gradients = output_and_gradients(attend, *parts(dtype))
    for one, other in zip(
        [output, *gradients], [exact[0], *exact[1]], strict=True
    ):
        assert one.dtype == dtype
        error = tf.cast(one, tf.float32) - other
        assert np.abs(error).max() < 0.03 * np.abs(other).max()


def test_large_scores_stay_finite():
    scores, values = parts(scale=1e4)
    expected, _ = output_and_gradients(definition, scores, values)
    output, gradients = output_and_gradients(attend, scores, values)
    np.testing.assert_allclose(output, expected, atol=1e-5)
    for gradient in gradients:
        assert np.isfinite(gradient).all()
