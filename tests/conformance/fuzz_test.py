"""Calls with one wrong argument: an error names it.

Readers, generation and evaluation are called with good arguments, then with one
of them changed. The settings of layers and models are in `settings_test.py`,
their inputs, tokenizers and `TextBatches` in their tests.
"""

import numpy as np
import pytest
import tensorflow as tf
from factories import assert_same
from factories import small_model
from settings_test import REQUIRED as SIZES
from settings_test import integers

from txl_keras import data
from txl_keras import evaluation
from txl_keras import serving

ERRORS = (
    ValueError,
    TypeError,
    OSError,
    NotImplementedError,
    tf.errors.InvalidArgumentError,
)
# Losses that are no array are refused, but not by their name.
UNNAMED = "arrays must have the same shape|'NoneType' has no len"
V = 19
TEXT = np.random.default_rng(0).integers(0, V, 211).astype("int32")
COUNTS = np.arange(20_000, 0, -1)
PROMPTS = [[1, 2], [3]]
WRONG_IDS = [[], [[]], [[V]], [[-1]], None, 5, "ab", [[[1, 2]]]]
LOSSES = [[[3.0, 2.0], [2.9, 2.0]], [[3.2, 2.0], [3.1, 2.0]]]
# Functions of a model and keyword arguments, good arguments, and wrong values.
CALLS = {
    "Segments": (
        lambda _, **arguments: data.Segments(**arguments).batch(0),
        {
            "tokens": TEXT,
            "batch_size": 3,
            "segment_length": 5,
            "drop_remainder": True,
        },
        {
            "tokens": [
                *(TEXT + 0.5, TEXT + 0j, TEXT > 3, TEXT[None], TEXT[:2]),
                *(-1 - TEXT, TEXT.astype("int64") + 2**40, "text", None, 5),
            ],
            "batch_size": [*SIZES, 10**9],
            "segment_length": [*SIZES, 10**9],
            "order": ["random", None, 3],
            "seed": integers(0),
            "warmup_segments": [*integers(0), None],
        },
    ),
    "SlidingWindows": (
        lambda _, **arguments: data.SlidingWindows(**arguments).batch(0),
        {"tokens": TEXT, "batch_size": 3, "segment_length": 5},
        {
            "tokens": [TEXT + 0.5, TEXT[None], -1 - TEXT, None],
            "batch_size": SIZES,
            "segment_length": SIZES,
            "stride": [*SIZES, 6],
        },
    ),
    "choose_cutoffs": (
        lambda _, counts: data.choose_cutoffs(counts),
        {"counts": COUNTS},
        {
            "counts": [
                *(-COUNTS, COUNTS * np.nan, COUNTS * 0, COUNTS[None]),
                *(COUNTS + 0j, "counts", None),
            ]
        },
    ),
    "generate": (
        lambda model, **arguments: model.generate(**arguments),
        {"prompts": PROMPTS, "max_new_tokens": 2, "seed": 1},
        {
            "prompts": [
                *WRONG_IDS,
                *([0.5], ["a"], [[1], 2], [2, [1]], [["a"], [1]], {1: 2}),
                *([[0.5]], [["a"]], [[np.nan]], [[2**40]], [[True]]),
            ],
            "max_length": integers(),
            "max_new_tokens": integers(0),
            "stop_token_ids": [[V], [-1], [0.5], ["a"], None, 5, "ab"],
            "stop": ["a", ["a"], [""], None, 5],
            "sampler": ["best", 5, serving.Sampler],
            "seed": [*integers(0), 2**31],
        },
    ),
    "context_losses": (
        evaluation.context_losses,
        {
            "tokens": TEXT[:60],
            "positions": np.array([20, 30]),
            "context_lengths": [4, 8],
            "segment_length": 4,
        },
        {
            "tokens": [TEXT + V, TEXT + 0.5, -1 - TEXT, TEXT.astype("float32")],
            "positions": [[3], [60], [-1], [20.5], [[20, 30]], []],
            "context_lengths": [[], [0], [-4], [4.5], 5, None],
            "segment_length": SIZES,
        },
    ),
    "effective_context_lengths": (
        lambda _, **values: evaluation.effective_context_lengths(**values),
        {"losses": LOSSES, "context_lengths": [10, 20]},
        {
            "losses": [LOSSES[:1], [], [LOSSES[0], LOSSES[1][:1]], None],
            "context_lengths": [[20, 10], [10], [10, 10], None],
            "top_r": [0, -1, 1.5, np.nan, None, "1"],
            "threshold": [0, -1, np.nan, None, "1"],
        },
    ),
}


@pytest.fixture(scope="module")
def model():
    return small_model(vocabulary_size=V, num_layers=1)


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_named(name, model):
    function, good, wrong = CALLS[name]
    function(model, **good)
    for argument, values in wrong.items():
        for value in values:
            with pytest.raises(ERRORS, match=rf"\b{argument}\b|{UNNAMED}"):
                function(model, **{**good, argument: value})


def test_other_dtypes_mean_the_same():
    expected = data.Segments(TEXT, 3, 5, True).batch(0)
    for dtype in ("int64", "uint8"):
        found = data.Segments(TEXT.astype(dtype), 3, 5, True).batch(0)
        assert_same(found.values(), expected.values())
    cutoffs = data.choose_cutoffs(COUNTS.astype("float64"))
    assert cutoffs == data.choose_cutoffs(COUNTS)
