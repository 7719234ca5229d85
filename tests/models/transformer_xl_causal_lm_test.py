"""Scores, memory and dropout; for `fit` see `keras_workflow_test.py`."""

import numpy as np
import pytest
import tensorflow as tf
from factories import D
from factories import V
from factories import random_ids
from factories import small_model as model_of

B, T, L = 5, 4, 2


def small_model(dtype=None, **config):
    return model_of(dtype, **{"num_layers": L, **config})


def text(length, rows=B):
    ids = random_ids(rows, length + 1, seed=8)
    return ids[:, :-1], ids[:, 1:]


def log_softmax(logits):
    logits = np.array(logits, "float64")
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_nll_is_the_log_softmax_of_tied_embeddings():
    model = small_model()
    inputs, targets = text(T)
    hidden, _ = model.backbone(inputs)
    table = model.backbone.token_embedding.embeddings[0].numpy()
    logits = np.array(hidden) @ table.T + model.softmax.biases[0].numpy()
    expected = log_softmax(logits)
    log_probs, _ = model.log_probs(inputs)
    np.testing.assert_allclose(log_probs, expected, atol=1e-5)
    nll, memory = model.score(inputs, targets)
    picked = [
        [-expected[b, t, targets[b, t]] for t in range(T)] for b in range(B)
    ]
    np.testing.assert_allclose(nll, picked, atol=1e-5)
    assert nll.dtype == "float32"
    assert [s.shape for s in memory.states] == [(B, 6, D)] * L


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"clamp_length": 2},
        {"normalize_first": True},
    ],
)
def test_two_segments_match_one_long_segment(config):
    model = small_model(memory_length=2 * T, **config)
    inputs, targets = text(2 * T)
    first, memory = model.score(inputs[:, :T], targets[:, :T])
    second, memory = model.score(inputs[:, T:], targets[:, T:], memory)
    halves = np.concatenate([first, second], axis=1)
    long, long_memory = model.score(inputs, targets)
    np.testing.assert_allclose(halves, long, atol=1e-5)
    for state, expected in zip(memory.states, long_memory.states, strict=True):
        np.testing.assert_allclose(state, expected, atol=1e-5)


def test_same_length_makes_segments_meaningless():
    # Every token sees M before it, however the text was cut.
    model = small_model(memory_length=3, same_length=True, num_layers=1)
    inputs, targets = text(12)
    long, _ = model.score(inputs, targets)
    parts, memory = [], None
    for start, end in ((0, 2), (2, 7), (7, 8), (8, 12)):
        nll, memory = model.score(
            inputs[:, start:end], targets[:, start:end], memory
        )
        parts.append(nll)
    np.testing.assert_allclose(np.concatenate(parts, 1), long, atol=1e-5)


def test_one_token_at_a_time_equals_a_segment():
    model = small_model(memory_length=9)
    inputs, targets = text(7)
    expected, expected_memory = model.score(inputs, targets)
    memory, columns = model.initial_memory(B), []
    for t in range(7):
        nll, memory = model.score(
            inputs[:, t : t + 1], targets[:, t : t + 1], memory
        )
        columns.append(nll)
    np.testing.assert_allclose(np.concatenate(columns, 1), expected, atol=1e-5)
    for state, wanted in zip(
        memory.states, expected_memory.states, strict=True
    ):
        np.testing.assert_allclose(state, wanted, atol=1e-5)
    assert memory.valid_length.numpy().tolist() == [7] * B


def test_memory_carries_what_was_read():
    model = small_model()
    inputs, targets = text(2 * T)
    _, memory = model.score(inputs[:, :T], targets[:, :T])
    warm, _ = model.score(inputs[:, T:], targets[:, T:], memory)
    cold, _ = model.score(inputs[:, T:], targets[:, T:])
    assert np.abs(warm - cold).min(1).max() > 1e-4


def test_memory_may_be_longer_than_in_training():
    model = small_model(memory_length=2)
    inputs, targets = text(3 * T)
    expected, _ = model.score(inputs, targets)
    memory, parts = model.initial_memory(B, 20), []
    for start in range(0, 3 * T, T):
        nll, memory = model.score(
            inputs[:, start : start + T], targets[:, start : start + T], memory
        )
        parts.append(nll)
    assert memory.states[0].shape == (B, 20, D)
    np.testing.assert_allclose(np.concatenate(parts, 1), expected, atol=1e-5)


def test_memory_of_length_zero_forgets():
    model = small_model(memory_length=0)
    inputs, targets = text(2 * T)
    _, memory = model.score(inputs[:, :T], targets[:, :T])
    again, _ = model.score(inputs[:, T:], targets[:, T:], memory)
    cold, _ = model.score(inputs[:, T:], targets[:, T:])
    np.testing.assert_allclose(again, cold, atol=1e-6)


def test_reset_starts_rows_afresh():
    model = small_model()
    inputs, targets = text(2 * T)
    _, memory = model.score(inputs[:, :T], targets[:, :T])
    reset = np.array([True, False, False, True, False])
    second = inputs[:, T:], targets[:, T:]
    got, _ = model.score(*second, memory, reset=reset)
    warm, _ = model.score(*second, memory)
    cold, _ = model.score(*second)
    np.testing.assert_allclose(got[reset], cold[reset], atol=1e-5)
    np.testing.assert_allclose(got[~reset], warm[~reset], atol=1e-5)
    log_probs, _ = model.log_probs(second[0], memory, reset=reset)
    picked = np.take_along_axis(
        np.array(log_probs), second[1][:, :, None], axis=-1
    )[:, :, 0]
    np.testing.assert_allclose(-picked, got, atol=1e-5)


_DROPOUT = {"dropout": 0.2, "attention_dropout": 0.3}


def test_dropout_is_a_function_of_seed_and_row():
    model = small_model(**_DROPOUT)
    inputs, targets = text(2 * T)
    seed = tf.constant(17, tf.uint32)

    def score(rows, first_row, memory=None, part=slice(0, T), seed=seed):
        return model.score(
            inputs[rows, part],
            targets[rows, part],
            memory,
            training=True,
            dropout_seed=seed,
            first_row=first_row,
        )

    whole, memory = score(slice(None), 0)
    again, _ = score(slice(None), 0)
    np.testing.assert_array_equal(whole, again)
    second, _ = score(slice(None), 0, memory, slice(T, None))
    for rows in (slice(0, 2), slice(2, None)):
        part, its_memory = score(rows, rows.start)
        np.testing.assert_allclose(part, whole[rows], atol=1e-6)
        part, _ = score(rows, rows.start, its_memory, slice(T, None))
        np.testing.assert_allclose(part, second[rows], atol=1e-6)
    shifted, _ = score(slice(2, None), 0)
    assert np.abs(shifted - whole[2:]).max(1).min() > 1e-3
    other, _ = score(slice(None), 0, seed=tf.constant(18, tf.uint32))
    assert np.abs(other - whole).max(1).min() > 1e-3
    exact, _ = model.score(inputs[:, :T], targets[:, :T], dropout_seed=seed)
    assert np.abs(exact - whole).max(1).min() > 1e-3


def test_equal_rows_are_dropped_differently():
    model = small_model(**_DROPOUT)
    inputs, targets = (np.repeat(x[:1], 3, axis=0) for x in text(T))
    nll, _ = model.score(
        inputs, targets, training=True, dropout_seed=tf.constant(2, tf.uint32)
    )
    assert np.abs(nll[0] - nll[1]).max() > 1e-3
    assert np.abs(nll[1] - nll[2]).max() > 1e-3


def test_dropout_without_a_seed_is_drawn_anew():
    model = small_model(**_DROPOUT)
    inputs, targets = text(T)
    first, _ = model.score(inputs, targets, training=True)
    second, _ = model.score(inputs, targets, training=True)
    assert np.abs(first - second).max(1).min() > 1e-3


def test_xla_scores_and_drops_alike():
    model = small_model(num_layers=1, **_DROPOUT)
    inputs, targets = text(T)

    def score(inputs, targets, memory, seed):
        return model.score(
            inputs, targets, memory, training=True, dropout_seed=seed
        )

    memory, seed = model.initial_memory(B), tf.constant(5, tf.uint32)
    expected, _ = score(inputs, targets, memory, seed)
    compiled = tf.function(score, jit_compile=True)
    nll, new_memory = compiled(inputs, targets, memory, seed)
    np.testing.assert_allclose(nll, expected, atol=1e-5)
    assert new_memory.valid_length.numpy().tolist() == [T] * B


def test_calls_go_on_where_the_last_one_ended():
    model = small_model()
    inputs, _ = text(3 * T)
    memory = None
    for start in range(0, 3 * T, T):
        part = inputs[:, start : start + T]
        log_probs, memory = model.log_probs(part, memory)
        logits = model(part)
        assert logits.shape == (B, T, V)
        np.testing.assert_allclose(log_softmax(logits), log_probs, atol=1e-5)
    model.reset_memory()
    fresh, _ = model.log_probs(part)
    np.testing.assert_allclose(log_softmax(model(part)), fresh, atol=1e-5)


def test_scores_leave_the_models_own_memory_alone():
    model = small_model()
    inputs, targets = text(2 * T)
    model(inputs[:, :T])
    model.score(inputs[:, T:], targets[:, T:])
    model.log_probs(inputs[:, T:])
    logits = model(inputs[:, T:])
    _, memory = model.log_probs(inputs[:, :T])
    expected, _ = model.log_probs(inputs[:, T:], memory)
    np.testing.assert_allclose(log_softmax(logits), expected, atol=1e-5)


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
    got = log_softmax(model(third))
    np.testing.assert_allclose(got, after_first, atol=1e-5)
    got = log_softmax(model(third, training=True))
    np.testing.assert_allclose(got, after_second, atol=1e-5)


def test_calls_work_with_fewer_and_with_more_rows():
    model = small_model()
    inputs, _ = text(3 * T)
    model(inputs[:3, :T])
    _, memory = model.log_probs(inputs[:3, :T])
    few, its_memory = model.log_probs(
        inputs[:2, T : 2 * T],
        memory._replace(
            states=tuple(s[:2] for s in memory.states),
            valid_length=memory.valid_length[:2],
        ),
    )
    np.testing.assert_allclose(
        log_softmax(model(inputs[:2, T : 2 * T])), few, atol=1e-5
    )
    many = log_softmax(model(inputs[:, 2 * T :]))
    went_on, _ = model.log_probs(inputs[:2, 2 * T :], its_memory)
    waited, _ = model.log_probs(
        inputs[2:3, 2 * T :],
        memory._replace(
            states=tuple(s[2:] for s in memory.states),
            valid_length=memory.valid_length[2:],
        ),
    )
    fresh, _ = model.log_probs(inputs[3:, 2 * T :])
    expected = np.concatenate([went_on, waited, fresh])
    np.testing.assert_allclose(many, expected, atol=1e-5)


def test_logits_and_nll_are_float32_in_low_precision():
    exact, low = small_model(), small_model("mixed_bfloat16")
    low.set_weights(exact.get_weights())
    inputs, targets = text(T)
    assert low(inputs).dtype == "float32"
    nll, memory = low.score(inputs, targets)
    assert nll.dtype == "float32"
    assert memory.states[0].dtype == "bfloat16"
    expected, _ = exact.score(inputs, targets)
    np.testing.assert_allclose(nll, expected, atol=0.15)
