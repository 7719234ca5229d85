import math

import numpy as np
import pytest
import tensorflow as tf

from txl_keras.data import Segments
from txl_keras.evaluation.compression import compressed_bits_per_character
from txl_keras.evaluation.evaluator import Evaluator
from txl_keras.evaluation.plots import plot_learning_curve
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
    evaluator = Evaluator(model, STRATEGY, batch_size, memory_length)
    return evaluator.evaluate(segments, steps_per_execution=4)


def test_one_stream_is_scored_as_one_long_segment(model):
    nll, _ = model.score(TOKENS[None, :-1], TOKENS[None, 1:])
    scores = evaluate(model, 1, 11, memory_length=119)
    assert scores["num_tokens"] == 119
    np.testing.assert_allclose(scores["nll"], nll.numpy().mean(), atol=1e-5)
    assert math.isclose(
        scores["bits_per_character"], scores["nll"] / math.log(2)
    )
    assert math.isclose(scores["perplexity"], math.exp(scores["nll"]))


@pytest.mark.parametrize(("batch_size", "segment_length"), [(3, 5), (7, 4)])
def test_every_token_counts_once_and_padding_never(
    model, batch_size, segment_length
):
    scores = evaluate(model, batch_size, segment_length, memory_length=119)
    bounds = [r * 119 // batch_size for r in range(batch_size + 1)]
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
    evaluator = Evaluator(model, STRATEGY, 3)
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


def test_compressors_find_repetition():
    text = b"0123456789" * 1000
    bits = compressed_bits_per_character(text, len(text))
    assert list(bits) == ["gzip -9", "xz -9"]
    assert all(0 < value < 0.2 for value in bits.values())
    half = compressed_bits_per_character(text, len(text) // 2)
    assert half["xz -9"] == 2 * bits["xz -9"]


def test_a_learning_curve_is_a_png(tmp_path):
    metrics = [
        {"step": 1, "bits_per_character": 5.0},
        {
            "step": 2,
            "bits_per_character": 4.0,
            "valid": {"bits_per_character": 4.5},
        },
    ]
    path = tmp_path / "curve.png"
    plot_learning_curve(metrics, str(path), {"gzip -9": 3.0})
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 5000
