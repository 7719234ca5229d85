import functools
import math

import numpy as np
import pytest
import tensorflow as tf
from factories import V
from factories import seed_weights
from factories import small_model

from txl_keras.data import Segments
from txl_keras.data import SlidingWindows
from txl_keras.evaluation.evaluator import Evaluator
from txl_keras.evaluation.evaluator import warmup_segments
from txl_keras.evaluation.report import position_curve

STRATEGY = tf.distribute.get_strategy()
TOKENS = np.random.default_rng(1).integers(0, V, 120)


@pytest.fixture(scope="module")
def model():
    seed_weights(3)
    # Each evaluator of it is compiled: one block is read as two are.
    return make_model(num_layers=1, memory_length=7, dropout=0.5)


@pytest.fixture(scope="module")
def evaluator(model):
    """`Evaluator` of `model`; each of its sizes is compiled once."""
    return functools.cache(functools.partial(Evaluator, model, STRATEGY))


def make_model(num_layers=2, **config):
    return small_model(num_layers=num_layers, **{"memory_length": 0, **config})


def token_nll(model, score, batch_size, segment_length, warmup):
    """Nats of every target of `TOKENS`, by position; `score` is compiled."""
    sizes = batch_size, segment_length, False
    segments = Segments(TOKENS, *sizes, warmup_segments=warmup)
    positions = Segments(np.arange(120), *sizes, warmup_segments=warmup)
    memory = model.initial_memory(batch_size)
    found = np.full(120, np.nan)
    for step in range(len(segments)):
        batch = segments.batch(step)
        nll, memory = score(
            batch["inputs"], batch["targets"], memory, batch["reset"]
        )
        is_scored = batch["weights"] == 1
        at = positions.batch(step)["targets"][is_scored]
        assert np.isnan(found[at]).all()
        found[at] = nll.numpy()[is_scored]
    return found[1:]


def test_after_warm_up_no_score_depends_on_the_number_of_streams():
    # Memory of 7 in segments of 4: two of them, of 2 blocks. Of the 30
    # segments the last of 3 streams has 20 before its own, of 16 most have 4.
    model = make_model(memory_length=7, initializer_stddev=0.2)
    score = tf.function(model.score, reduce_retracing=True)
    warmup = warmup_segments(model.backbone, 4)
    assert warmup == 4
    one = token_nll(model, score, 1, 4, 0)
    for batch_size in (3, 16):
        nll = token_nll(model, score, batch_size, 4, warmup)
        np.testing.assert_allclose(nll, one, rtol=1e-6, atol=0)
    # Memory that is only full is not enough.
    assert np.abs(token_nll(model, score, 3, 4, 2) - one).max() > 1e-4


# === Nats of every token ===


def test_nats_of_tokens_are_in_the_order_of_the_text_and_sum_up(
    evaluator, model
):
    segments = Segments(TOKENS, 3, 5, False, warmup_segments=1)
    evaluator = evaluator(3, 5)
    out = np.zeros(120, np.float32)  # what was in it does not matter
    done = []
    scores = evaluator.evaluate(
        segments, 4, lambda *numbers: done.append(numbers), out
    )
    assert np.isnan(out[0])
    expected = token_nll(model, tf.function(model.score), 3, 5, warmup=1)
    np.testing.assert_allclose(out[1:], expected, rtol=2e-6)
    # The same reading gives the sums; without the array they are the same.
    assert scores["nll"] == pytest.approx(np.nanmean(out, dtype="d"), rel=1e-6)
    assert scores["num_tokens"] == 119
    assert math.isclose(scores["bits_per_token"], scores["nll"] / math.log(2))
    assert math.isclose(scores["perplexity"], math.exp(scores["nll"]))
    assert scores == evaluator.evaluate(segments, 3)
    assert done == [(4, 9), (8, 9), (9, 9)]

    # At its own pace.
    done.clear()
    alone = np.empty_like(out)
    evaluator.evaluate(segments, None, lambda *n: done.append(n), alone)
    np.testing.assert_array_equal(alone, out)
    assert (done[0], done[-1]) == ((1, 9), (9, 9))


def test_firsts_of_documents_that_stand_alone_have_no_score(evaluator, model):
    documents = np.array([0, 1, 33, 74])
    segments = Segments(
        TOKENS, 3, 5, False, documents=documents, reset_documents=True
    )
    nll = np.empty(120, np.float32)
    evaluator(3, 5).evaluate(segments, token_nll=nll)
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(nll)), documents)
    # Rows 1 and 2 begin amid documents, at 38 and 79.
    for start, stop in ((1, 34), (33, 39), (38, 75), (74, 80), (79, 120)):
        text = TOKENS[None, start:stop][:, :9]  # all that fits memory
        expected = model.score(text[:, :-1], text[:, 1:])[0][0]
        found = nll[start + 1 : start + 1 + len(expected)]
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    curve = position_curve(nll, documents)
    assert curve[0]["start"] == 1
    assert sum(bucket["num_tokens"] for bucket in curve) == 120 - 4


def test_a_score_that_is_not_finite_is_named(evaluator, model):
    bias = model.softmax.weights[-1]
    before = bias.numpy()
    segments = Segments(TOKENS, 3, 5, False)
    try:
        bias.assign(np.full_like(before, np.nan))
        nll = np.empty(120, np.float32)
        with pytest.raises(FloatingPointError, match="token 1 .*: nan nats"):
            evaluator(3, 5).evaluate(segments, token_nll=nll)
    finally:
        bias.assign(before)


def test_wrong_arguments_are_named(evaluator, model):
    evaluator = evaluator(3, 5)
    segments = Segments(TOKENS, 3, 5, drop_remainder=False)
    with pytest.raises(ValueError, match="`token_nll` must h"):
        evaluator.evaluate(segments, token_nll=np.zeros(119, np.float32))
    with pytest.raises(ValueError, match="steps_per_execution=0"):
        evaluator.evaluate(segments, steps_per_execution=0)
    for sizes in ((2, 5), (3, 6)):
        others = Segments(TOKENS, *sizes, drop_remainder=False)
        message = "batch_size=3 .*=5. .*batch_size={}, .*={}$".format(*sizes)
        with pytest.raises(ValueError, match=message):
            evaluator.evaluate(others)
    with pytest.raises(ValueError, match="segment_length=0"):
        warmup_segments(model.backbone, 0)


# === Windows that slide ===


def sliding_nll(model, length, stride):
    """Nats of every target of the first tokens, by the training path.

    Each token by a window of its own: the one that ends with its group of
    `stride` tokens, or begins with the text.
    """
    groups = np.arange(23) // stride
    stops = np.minimum((groups + 1) * stride, 23)
    starts = np.maximum(stops - length, 0)
    windows = np.stack([TOKENS[a : a + length + 1] for a in starts])
    nll, _ = model.score(windows[:, :-1], windows[:, 1:])
    return nll.numpy()[np.arange(23), np.arange(23) - starts]


@pytest.mark.parametrize(
    ("attention_type", "stride"), [("relative", 3), ("al_rfou", 1)]
)
def test_windows_that_slide_score_each_token_by_its_own(attention_type, stride):
    model = make_model(1, attention_type=attention_type, max_positions=7)
    windows = SlidingWindows(TOKENS[:24], 4, 6, stride)
    evaluator = Evaluator(model, STRATEGY, 4, 6)
    found = np.empty(24, np.float32)
    scores = evaluator.evaluate(windows, token_nll=found)
    expected = sliding_nll(model, 6, stride)
    assert np.isnan(found[0])
    np.testing.assert_allclose(found[1:], expected, atol=1e-5)
    assert scores["num_tokens"] == 23
    assert scores["nll"] == pytest.approx(expected.mean(), abs=1e-5)


def test_windows_do_not_slide_for_a_model_that_remembers(evaluator):
    windows = SlidingWindows(TOKENS, 3, 5)
    with pytest.raises(ValueError, match="`stride` must be None .*=7"):
        evaluator(3, 5).evaluate(windows)
    looks_back = make_model(1, same_length=True)
    with pytest.raises(ValueError, match="`stride` must be None .*=True"):
        Evaluator(looks_back, STRATEGY, 3, 5, 0).evaluate(windows)
