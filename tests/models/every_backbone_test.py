"""Tests what all backbones share: memory, resets, dropout, precision."""

import functools

import numpy as np
import pytest
from backends import gradients
from factories import D
from factories import V
from factories import assert_same
from factories import random_ids
from factories import read_in_parts
from factories import rows_of
from factories import small_backbone
from keras import ops

from txl_keras.models import LSTMBackbone
from txl_keras.models import TransformerXLBackbone
from txl_keras.models import XLNetBackbone

pytestmark = pytest.mark.every_backend

B, T = 4, 5
REMEMBERING = {
    "relative": {},
    "pre-norm": {"normalize_first": True, "normalize_output": True},
    "shaw": {"attention_type": "shaw", "max_positions": 13},
    "shaw, few positions": {"attention_type": "shaw", "max_positions": 2},
    "embeddings": {"vocabulary_size": None},
    "lstm": {"make": LSTMBackbone, "initializer_stddev": 0.5},
    "xlnet": {"make": XLNetBackbone, "attention_type": "uni"},
}
ABSOLUTE = {
    "vaswani": {"attention_type": "vaswani", "memory_length": 0},
    "al_rfou": {
        "attention_type": "al_rfou",
        "memory_length": 0,
        "max_positions": 13,
    },
}
ALL = {**REMEMBERING, **ABSOLUTE, "zeros": {"cold_start": "zeros"}}
KINDS = ("relative", "shaw", "lstm", "xlnet")
EMBEDDINGS = np.random.default_rng(1).normal(size=(V, D)).astype("float32")


def backbone_of(name, dropout=0.0, **config):
    """With one block: each call of a block takes 20 ms."""
    config = {"num_layers": 1, "dropout": dropout, **ALL[name], **config}
    if dropout and name != "lstm":
        config["attention_dropout"] = dropout
    return small_backbone(**config)


def read(backbone, ids, lengths=None, memory=None, **call):
    """Reads segments of these lengths; returns states and the last memory."""
    inputs = {"token_ids": ids}
    if backbone.vocabulary_size is None:
        inputs = {"embeddings": EMBEDDINGS[ids]}
    function = functools.partial(backbone, **call)
    return read_in_parts(function, lengths or [ids.shape[1]], memory, **inputs)


def differ(one, other):
    """Returns whether each row has a number that is another."""
    return np.abs(one - other).max(axis=(1, 2)).min() > 1e-4


@pytest.mark.parametrize("name", ALL)
def test_a_later_token_changes_nothing_before_it(name):
    backbone = backbone_of(name)
    ids = random_ids(B, T)
    before, _ = read(backbone, ids)
    for t in range(T):
        changed = ids.copy()
        changed[:, t] = (changed[:, t] + 1) % V
        difference = np.abs(read(backbone, changed)[0] - before).max(-1)
        np.testing.assert_array_equal(difference[:, :t], 0)
        assert (difference[:, t:] > 1e-4).all()


@pytest.mark.parametrize("name", REMEMBERING)
def test_a_text_may_be_cut_anywhere(name):
    backbone = backbone_of(name, num_layers=2)
    ids = random_ids(B, 7)  # the last token sees the 6 before it
    expected, end = read(backbone, ids)
    for lengths in ([3, 4], [1] * 7):
        found, memory = read(backbone, ids, lengths)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        np.testing.assert_array_equal(memory.valid_length, end.valid_length)
        assert_same(memory.states, end.states, atol=1e-5)
    assert differ(read(backbone, ids[:, 3:])[0], expected[:, 3:])


@pytest.mark.parametrize("memory_length", [0, 3])
@pytest.mark.parametrize(
    ("name", "config"),
    [("relative", {}), ("relative", {"look_ahead": 2}), ("shaw", {})],
)
def test_nothing_is_read_of_no_rows_and_no_tokens(name, config, memory_length):
    backbone = backbone_of(name, memory_length=memory_length, **config)
    ids = random_ids(B, T)
    _, memory = read(backbone, ids)
    nothing, same = backbone(ids[:, :0], memory=memory)[:2]
    assert np.shape(nothing) == (B, 0, D)
    assert_same(same.states, memory.states, atol=0)
    assert np.shape(backbone(ids[:0])[0]) == (0, T, D)


@pytest.mark.parametrize("name", [*KINDS, "embeddings", "zeros"])
def test_a_row_that_is_reset_is_as_fresh_and_leaves_the_others(name):
    backbone = backbone_of(name)
    ids = random_ids(B, 2 * T)
    _, memory = read(backbone, ids[:, :T])
    reset = np.array([False, True, True, False])
    found = read(backbone, ids[:, T:], memory=memory, reset=reset)
    going_on = read(backbone, ids[:, T:], memory=memory)
    fresh = read(backbone, ids[:, T:])
    assert differ(fresh[0], going_on[0])
    for rows, expected in ((reset, fresh), (~reset, going_on)):
        np.testing.assert_allclose(found[0][rows], expected[0][rows], atol=1e-5)
        np.testing.assert_array_equal(
            found[1].valid_length[rows], expected[1].valid_length[rows]
        )


@pytest.mark.parametrize("name", KINDS)
def test_no_gradient_flows_through_memory(name):
    backbone = backbone_of(name)

    def loss():
        _, memory = backbone(random_ids(B, T))
        return sum(ops.sum(state) for state in memory.states)

    _, found = gradients(loss, backbone.trainable_variables)
    assert not any(np.any(np.array(gradient)) for gradient in found)


@pytest.mark.parametrize("name", [*KINDS, *ABSOLUTE])
def test_dropout_is_a_function_of_seed_and_row(name):
    backbone = backbone_of(name, dropout=0.3)
    ids = np.tile(random_ids(1, T), (B, 1))
    memory = None
    if name in REMEMBERING:
        _, memory = read(backbone, ids)

    def run(rows=slice(None), first_row=0, seed=7, training=True):
        return read(
            backbone,
            ids[rows],
            memory=rows_of(memory, rows),
            training=training,
            dropout_seed=None if seed is None else ops.array(seed, "uint32"),
            first_row=first_row,
        )[0]

    dropped = run()
    assert differ(dropped[1:], dropped[:-1])  # rows of equal tokens
    np.testing.assert_array_equal(run(), dropped)
    some = slice(1, 3)
    np.testing.assert_allclose(run(some, 1), dropped[some], atol=1e-5)
    assert differ(run(some, 0), dropped[some])
    assert differ(run(seed=8), dropped)
    assert differ(run(seed=None), run(seed=None))
    exact = run(training=False)
    assert differ(exact, dropped)
    np.testing.assert_array_equal(run(seed=None, training=False), exact)


SIZES = {
    "vocabulary_size": 13,
    "num_layers": 2,
    "hidden_dim": 10,
    "dropout": 0.1,
    "initializer_stddev": 0.5,
}
OF_ATTENTION = {
    **SIZES,
    "num_heads": 3,
    "intermediate_dim": 7,
    "head_dim": 4,
    "memory_length": 5,
    "attention_dropout": 0.2,
    "clamp_length": 6,
    "layer_norm_epsilon": 1e-6,
}


@pytest.mark.parametrize(
    ("make", "config"),
    [
        (LSTMBackbone, {**SIZES, "cutoffs": [4, 9], "div_val": 2}),
        (
            TransformerXLBackbone,
            {
                **OF_ATTENTION,
                "same_length": True,
                "tie_attention_biases": False,
                "normalize_first": True,
                "normalize_output": True,
                "cold_start": "zeros",
                "look_ahead": 2,
                "stateful": True,
            },
        ),
        (
            XLNetBackbone,
            {**OF_ATTENTION, "reuse_length": 3, "attention_type": "uni"},
        ),
    ],
)
def test_every_setting_is_saved(make, config):
    stored = make(**config).get_config()
    assert {name: stored[name] for name in config} == config
    assert make.from_config(stored).get_config() == stored
