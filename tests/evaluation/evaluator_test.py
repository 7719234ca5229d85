import math

import numpy as np
import pytest
import tensorflow as tf

from txl_keras.data import Segments
from txl_keras.evaluation.evaluator import Evaluator
from txl_keras.evaluation.evaluator import warmup_segments
from txl_keras.models import TransformerXLBackbone
from txl_keras.models import TransformerXLCausalLM

STRATEGY = tf.distribute.get_strategy()
TOKENS = np.random.default_rng(1).integers(0, 13, 120)


@pytest.fixture(scope="module")
def model():
    return TransformerXLCausalLM(
        TransformerXLBackbone(
            vocabulary_size=13,
            num_layers=2,
            num_heads=2,
            hidden_dim=16,
            intermediate_dim=24,
            memory_length=7,
            dropout=0.5,
            initializer_stddev=0.3,
        )
    )


def evaluate(model, batch_size, segment_length, memory_length=None):
    segments = Segments(TOKENS, batch_size, segment_length, False)
    evaluator = Evaluator(
        model, STRATEGY, batch_size, segment_length, memory_length
    )
    return evaluator.evaluate(segments, steps_per_execution=4)


def test_one_stream_is_scored_as_one_long_segment(model):
    nll, _ = model.score(TOKENS[None, :-1], TOKENS[None, 1:])
    scores = evaluate(model, 1, 11, memory_length=119)
    assert scores["num_tokens"] == 119
    np.testing.assert_allclose(scores["nll"], nll.numpy().mean(), atol=1e-5)
    assert math.isclose(scores["bits_per_token"], scores["nll"] / math.log(2))
    assert math.isclose(scores["perplexity"], math.exp(scores["nll"]))


@pytest.mark.parametrize(("batch_size", "segment_length"), [(3, 5), (7, 4)])
def test_every_token_counts_once_and_padding_never(
    model, batch_size, segment_length
):
    scores = evaluate(model, batch_size, segment_length, memory_length=119)
    num_segments = -(-119 // segment_length)
    bounds = [
        min(r * num_segments // batch_size * segment_length, 119)
        for r in range(batch_size + 1)
    ]
    nll = np.concatenate(
        [
            model.score(TOKENS[None, a:b], TOKENS[None, a + 1 : b + 1])[0][0]
            for a, b in zip(bounds[:-1], bounds[1:], strict=True)
        ]
    )
    assert scores["num_tokens"] == len(nll) == 119
    np.testing.assert_allclose(scores["nll"], nll.mean(), atol=1e-5)


def test_a_second_evaluation_forgets_the_first(model):
    segments = Segments(TOKENS, 3, 5, False)
    evaluator = Evaluator(model, STRATEGY, 3, 5)
    done = []
    first = evaluator.evaluate(
        segments, 3, on_progress=lambda *numbers: done.append(numbers)
    )
    assert evaluator.evaluate(segments, 8) == first
    assert done == [(3, 8), (6, 8), (8, 8)]


def test_memory_length_changes_what_is_seen(model):
    scores = {m: evaluate(model, 3, 5, m)["nll"] for m in (0, 7, None)}
    assert scores[None] == scores[7]
    assert abs(scores[0] - scores[7]) > 1e-4


def token_nll(model, batch_size, segment_length, warmup):
    """Nats of every target of `TOKENS`, by position."""
    sizes = batch_size, segment_length, False
    segments = Segments(TOKENS, *sizes, warmup_segments=warmup)
    positions = Segments(np.arange(120), *sizes, warmup_segments=warmup)
    memory = model.initial_memory(batch_size)
    found = np.full(120, np.nan)
    score = tf.function(model.score)
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


@pytest.mark.parametrize("same_length", [False, True])
def test_after_warm_up_no_score_depends_on_the_number_of_streams(same_length):
    # Memory of 7 in segments of 4: two of them, of 3 blocks. Of the 30
    # segments the last of 3 streams has 20 before its own, of 16 most have 6.
    model = TransformerXLCausalLM(
        TransformerXLBackbone(
            vocabulary_size=13,
            num_layers=3,
            num_heads=2,
            hidden_dim=16,
            intermediate_dim=24,
            memory_length=7,
            same_length=same_length,
            initializer_stddev=0.2,
        )
    )
    warmup = warmup_segments(model.backbone, 4)
    assert warmup == 6
    one = token_nll(model, 1, 4, 0)
    for batch_size in (3, 16):
        nll = token_nll(model, batch_size, 4, warmup)
        np.testing.assert_allclose(nll, one, rtol=1e-6, atol=0)
    # Memory that is only full is not enough.
    assert np.abs(token_nll(model, 3, 4, 2) - one).max() > 1e-4

    segments = Segments(TOKENS, 3, 4, False, warmup_segments=warmup)
    scores = Evaluator(model, STRATEGY, 3, 4).evaluate(segments)
    assert scores["num_tokens"] == 119
    np.testing.assert_allclose(scores["nll"], one.mean(), rtol=1e-6)


def test_a_document_is_scored_as_if_it_were_alone(model):
    bounds = [0, 1, 33, 74, 120]
    segments = Segments(
        TOKENS, 3, 5, False, documents=np.array(bounds[:-1]),
        reset_documents=True,
    )  # fmt: skip
    scores = Evaluator(model, STRATEGY, 3, 5, 119).evaluate(segments)
    # Of 24 segments rows 1 and 2 have 8 each, and begin amid documents.
    nll = []
    for start, stop in ((1, 33), (33, 74), (74, 120)):
        cuts = [start, *(c for c in (38, 79) if start < c < stop), stop - 1]
        for a, b in zip(cuts[:-1], cuts[1:], strict=True):
            text = TOKENS[None, a : b + 1]
            nll.extend(model.score(text[:, :-1], text[:, 1:])[0][0])
    assert scores["num_tokens"] == len(nll) == 119 - 3
    np.testing.assert_allclose(scores["nll"], np.mean(nll), atol=1e-5)
