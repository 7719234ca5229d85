"""NaN and infinity where nothing may be read: masks, resets and episodes."""

import keras
import numpy as np
import pytest
from backends import gradients
from factories import assert_same
from factories import feature_backbone
from factories import small_backbone
from keras import ops

from txl_keras.models import SegmentReader
from txl_keras.models import XLNetBackbone

pytestmark = pytest.mark.every_backend

B, T, M, D = 3, 5, 6, 16
BROKEN = np.float32([np.nan, -3e38])
OPTIONS = {
    "relative": {},
    "pre-norm": {"normalize_first": True, "normalize_output": True},
    "shaw": {"attention_type": "shaw", "max_positions": M + T},
    "zeros": {
        "cold_start": "zeros",
        "same_length": True,
        "tie_attention_biases": False,
    },
    "look_ahead": {"look_ahead": 2},
}
EVERY = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def features(length, seed=0):
    generator = np.random.default_rng(seed)
    return generator.normal(size=(B, length, D)).astype("float32")


def bits_of(*tensors):
    return [np.asarray(x).tobytes() for x in keras.tree.flatten(tensors)]


@EVERY
def test_a_reset_equals_a_cold_start_in_every_bit(options):
    backbone = feature_backbone(**options)
    broken = features(T)
    broken[1:, 2] = BROKEN[:, None]
    _, memory = backbone(embeddings=broken)
    assert not np.isfinite(memory.states[-1][1:]).all((1, 2)).any()
    reset = np.array([False, True, True])
    expected = backbone(embeddings=features(T, 1))
    found = backbone(embeddings=features(T, 1), memory=memory, reset=reset)
    for of_all, cold in zip(
        keras.tree.flatten(found), keras.tree.flatten(expected), strict=True
    ):
        assert bits_of(of_all[1:]) == bits_of(cold[1:])
    assert np.isfinite(found[0]).all()


def test_a_stateful_backbone_forgets_nan():
    backbone = feature_backbone(stateful=True)
    broken = features(T)
    broken[0, 2] = np.nan
    backbone(embeddings=broken)
    hidden, _ = backbone(embeddings=features(T, 1), reset=np.ones(B, bool))
    expected, _ = feature_backbone()(embeddings=features(T, 1))
    assert bits_of(hidden) == bits_of(expected)


@EVERY
def test_padding_has_no_influence(options):
    """Neither on later segments nor on the gradient of any weight."""
    backbone = feature_backbone(**options)
    mask = np.ones((B, T), bool)
    mask[0, 1] = mask[1, [0, 4]] = False
    mask[2] = False
    results = []
    paddings = np.zeros(D), np.resize(BROKEN, D), np.full(D, BROKEN[1])
    for padding in paddings:
        x = np.where(mask[..., None], features(T), padding)

        def loss(x=x):
            hidden, memory = backbone(
                embeddings=x.astype("float32"), mask=mask, training=True
            )
            later, _ = backbone(embeddings=features(T, 1), memory=memory)
            outputs = [hidden[mask], later]
            total = sum(ops.sum(y**2) for y in outputs)
            return sum(backbone.losses, total), *outputs

        (_, *outputs), found = gradients(loss, backbone.trainable_weights)
        results.append([*outputs, *found])
    for expected, *found in zip(*results, strict=True):
        for other in found:
            np.testing.assert_allclose(other, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("value", BROKEN)
def test_an_episode_has_no_influence_on_the_next(value):
    backbone = feature_backbone(normalize_first=True)
    reset = np.zeros((B, T), bool)
    reset[0, 3] = reset[1, 0] = True
    x, spoiled = features(T), features(T)
    spoiled[0, 1] = spoiled[2, 2] = value
    _, memory = backbone(embeddings=features(T, 1))
    broken = [np.array(state) for state in memory.states]
    for state in broken:
        state[1, -2] = value  # before the reset of its first step
    expected, after = backbone(embeddings=x, memory=memory, reset=reset)
    found, spoiled_after = backbone(
        embeddings=spoiled, memory=memory._replace(states=broken), reset=reset
    )
    real = [(0, slice(3, T)), (1, slice(0, T))]
    for place in real:
        np.testing.assert_allclose(found[place], expected[place], atol=1e-5)
    if np.isnan(value):  # which a norm makes finite
        assert np.isnan(found[2, 2:]).all()  # it is seen where none begins
    later, _ = backbone(embeddings=features(T, 2), memory=after)
    found, _ = backbone(embeddings=features(T, 2), memory=spoiled_after)
    np.testing.assert_allclose(found[:2], later[:2], atol=1e-5)


def test_a_reader_of_segments_leaves_out_padding():
    backbone = feature_backbone()
    lengths = np.array([T, 2, 0], "int32")
    results = []
    for padding in (np.zeros(D), np.resize(BROKEN, D), np.full(D, BROKEN[1])):
        reader = SegmentReader(backbone, B, T)
        reader.begin()
        is_real = np.arange(T) < lengths[:, None]
        x = np.where(is_real[..., None], features(T), padding)
        hidden, entries = reader.read(ops.array(x, "float32"))
        reader.remember(entries, ops.array(lengths))
        later, _ = reader.read(ops.array(features(T, 1)))
        results.append([hidden[is_real], later])
    assert_same(results[1], results[0], atol=1e-5)
    assert_same(results[2], results[0], atol=1e-5)


@EVERY
def test_entries_that_are_not_valid_may_be_anything(options):
    """A client of a server may send what it did not initialize."""
    backbone = feature_backbone(**options)
    _, memory = backbone(embeddings=features(2))
    is_valid = memory.mask()[..., None]
    spoiled = memory._replace(
        states=tuple(ops.where(is_valid, x, np.nan) for x in memory.states)
    )
    x = features(T, 1)
    expected, _ = backbone(embeddings=x, memory=memory)
    found, _ = backbone(embeddings=x, memory=spoiled)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    if not backbone.look_ahead:
        positions = backbone.project_positions(backbone.past_length() + T)
        found, *_ = backbone.call_projected(
            ops.array(x), backbone.project_memory(spoiled), positions
        )
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_xlnet_forgets_nan():
    backbone = small_backbone(make=XLNetBackbone)
    ids = np.arange(B * T).reshape(B, T) % 11
    _, memory = backbone(ids)
    broken = memory._replace(
        states=tuple(np.full(x.shape, np.nan, "float32") for x in memory.states)
    )
    expected, _ = backbone(ids)
    found, _ = backbone(ids, memory=broken, reset=np.ones(B, bool))
    assert bits_of(found) == bits_of(expected)
