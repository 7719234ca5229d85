"""Scores, memory and dropout; for `fit` see `keras_workflow_test.py`."""

import numpy as np
import pytest
from backends import dtype_of
from factories import D
from factories import V
from factories import assert_same
from factories import random_ids
from factories import read_in_parts
from factories import small_model as model_of
from keras import ops

from txl_keras.models import LSTMBackbone
from txl_keras.models import TransformerXLBackbone

pytestmark = pytest.mark.every_backend

B, T, L = 5, 4, 2


def small_model(dtype=None, **config):
    return model_of(dtype, **{"num_layers": L, **config})


def text(length, rows=B):
    ids = random_ids(rows, length + 1, seed=8)
    return ids[:, :-1], ids[:, 1:]


@pytest.mark.parametrize(
    ("make", "dtype"),
    [(TransformerXLBackbone, "mixed_bfloat16"), (LSTMBackbone, None)],
)
def test_scores_are_those_of_the_states_of_the_backbone(make, dtype):
    model = small_model(dtype, make=make, dropout=0.2, cutoffs=(4, 7))
    inputs, targets = text(2 * T)
    inputs, first = inputs[:, T:], inputs[:, :T]
    targets = targets[:, T:]
    call = {
        "memory": model.backbone(first)[1],
        "reset": np.array([True, False, False, True, False]),
    }
    of_training = {
        **call,
        "training": True,
        "dropout_seed": ops.array(17, "uint32"),
        "first_row": 2,
    }
    for arguments in ({}, call, of_training):
        hidden, expected_memory = model.backbone(inputs, **arguments)
        nll, memory = model.score(inputs, targets, **arguments)
        assert dtype_of(nll) == "float32"
        np.testing.assert_array_equal(nll, model.softmax(hidden, targets))
        assert_same(memory.states, expected_memory.states)
    hidden, _ = model.backbone(inputs, **call)
    log_probs, _ = model.log_probs(inputs, **call)
    assert dtype_of(log_probs) == "float32"
    np.testing.assert_array_equal(log_probs, model.softmax.log_probs(hidden))


def test_memory_may_be_longer_than_in_training_or_empty():
    model = small_model(memory_length=2)
    inputs, targets = text(3 * T)
    expected, _ = model.score(inputs, targets)
    found, memory = read_in_parts(
        model.score, [T] * 3, model.initial_memory(B, 20),
        inputs=inputs, targets=targets,
    )  # fmt: skip
    assert memory.states[0].shape == (B, 20, D)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    second = inputs[:, T:], targets[:, T:]
    _, memory = model.score(*second, model.initial_memory(B, 0))
    again, _ = model.score(*second, memory)
    np.testing.assert_allclose(again, model.score(*second)[0], atol=1e-6)


def test_calls_go_on_where_the_last_one_ended():
    model = small_model()
    inputs, _ = text(3 * T)
    memory = None
    for start in range(0, 3 * T, T):
        part = inputs[:, start : start + T]
        # Functional calls leave the memory of the model alone.
        log_probs, memory = model.log_probs(part, memory)
        model.score(part, part)
        logits = model(part)
        assert logits.shape == (B, T, V)
        np.testing.assert_allclose(
            ops.log_softmax(logits), log_probs, atol=1e-5
        )
    model.reset_memory()
    fresh, _ = model.log_probs(part)
    np.testing.assert_allclose(ops.log_softmax(model(part)), fresh, atol=1e-5)


def test_training_and_inference_have_memories_of_their_own():
    model = small_model()
    inputs, _ = text(3 * T)
    first, second, third = (
        inputs[:, start : start + T] for start in range(0, 3 * T, T)
    )
    model(first)
    model(second, training=True)
    after_first, _ = model.log_probs(third, model.log_probs(first)[1])
    after_second, _ = model.log_probs(third, model.log_probs(second)[1])
    got = ops.log_softmax(model(third))
    np.testing.assert_allclose(got, after_first, atol=1e-5)
    got = ops.log_softmax(model(third, training=True))
    np.testing.assert_allclose(got, after_second, atol=1e-5)
