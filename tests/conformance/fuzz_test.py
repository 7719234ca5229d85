"""Calls with one wrong argument: an error names it, or the result is right.

Readers, generation and evaluation are called with good arguments, then with one
of them changed. What comes back must be an error whose message has the name of
that argument, or, where the change does not change what the argument means, the
result of the good call. The settings of layers and models are in
`settings_test.py`, their inputs, tokenizers and `TextBatches` in their tests.
"""

import collections
import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf
from settings_test import REQUIRED as SIZES
from settings_test import integers

from txl_keras import data
from txl_keras import evaluation
from txl_keras import models
from txl_keras import serving

ERRORS = (
    ValueError,
    TypeError,
    OSError,
    NotImplementedError,
    tf.errors.InvalidArgumentError,
)
V = 19


@dataclasses.dataclass
class Same:
    """Marks a value that means what the good one does."""

    value: object


def outcomes_of(name, function, good, bad):
    """Yields what comes of good arguments with one of them changed.

    Args:
        name: String, what is called.
        function: Function of keyword arguments.
        good: Dictionary of its arguments.
        bad: Dictionary from the name of an argument to wrong values.

    Yields:
        One of "clear", "unclear", "right" and "silent", and a description.
    """
    expected = function(**good)
    for argument, value in [(a, v) for a in bad for v in bad[a]]:
        is_same = isinstance(value, Same)
        changed = value.value if is_same else value
        try:
            result = function(**{**good, argument: changed})
        except Exception as error:  # noqa: BLE001, of no kind expected
            named = re.search(rf"\b{argument}\b", str(error))
            is_clear = isinstance(error, ERRORS) and named and not is_same
            kind = "clear" if is_clear else "unclear"
            message = f"{type(error).__name__}: {error}"
        else:
            is_right = is_same and _are_equal(result, expected)
            kind = "right" if is_right else "silent"
            message = f"{result!s:.60}"
        yield kind, f"{name}({argument}={changed!s:.40}): {message:.200}"


def _are_equal(left, right):
    left, right = tf.nest.flatten(left), tf.nest.flatten(right)
    return len(left) == len(right) and all(
        np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True)
        for a, b in zip(left, right, strict=True)
    )


# === What is called: names, functions, good and wrong arguments ===


def calls_of_data():
    text = np.random.default_rng(0).integers(0, 200, 211).astype("int32")
    yield (
        "Segments",
        lambda **arguments: data.Segments(**arguments).batch(0),
        {
            "tokens": text,
            "batch_size": 3,
            "segment_length": 5,
            "drop_remainder": True,
        },
        {
            "tokens": [
                *(text + 0.5, text + 0j, text > 3, text[None], text[:2]),
                *(-1 - text, text.astype("int64") + 2**40, "text", None, 5),
                *(Same(text.astype("int64")), Same(text.astype("uint8"))),
            ],
            "batch_size": [*SIZES, 10**9],
            "segment_length": [*SIZES, 10**9],
            "order": ["random", None, 3],
            "seed": integers(0),
            "warmup_segments": [*integers(0), None],
        },
    )
    yield (
        "SlidingWindows",
        lambda **arguments: data.SlidingWindows(**arguments).batch(0),
        {"tokens": text, "batch_size": 3, "segment_length": 5},
        {
            "tokens": [text + 0.5, text[None], -1 - text, None],
            "batch_size": SIZES,
            "segment_length": SIZES,
            "stride": [*SIZES, 6],
        },
    )
    counts = np.arange(20_000, 0, -1)
    wrong_counts = [
        *(-counts, counts * np.nan, counts * 0, counts[None], counts + 0j),
        *("counts", None, Same(counts.astype("float64"))),
    ]
    yield (
        "choose_cutoffs",
        data.choose_cutoffs,
        {"counts": counts},
        {"counts": wrong_counts},
    )


def small_model():
    backbone = models.TransformerXLBackbone(V, 2, 2, 8, 11, memory_length=5)
    return models.TransformerXLCausalLM(backbone)


def calls_of_generation():
    model = small_model()
    prompts = [[1, 2], [3]]
    wrong_ids = [[], [[]], [[V]], [[-1]], None, 5, "ab", [[[1, 2]]]]
    write = serving.Generator(model)
    yield (
        "Generator",
        lambda **arguments: list(write(**arguments)),
        {"prompts": prompts, "max_tokens": 2, "seed": 1},
        {
            "prompts": [
                *wrong_ids,
                *([[0.5]], [["a"]], [[np.nan]], [[2**40]], [[True]]),
            ],
            "max_tokens": [*integers(0), None],
            "seed": [*integers(0), None, 2**31],
        },
    )
    yield (
        "generate",
        model.generate,
        {"prompts": prompts, "max_new_tokens": 2, "seed": 1},
        {
            "prompts": [
                *wrong_ids,
                *([0.5], ["a"], [[1], 2], [2, [1]], [["a"], [1]], {1: 2}),
            ],
            "max_length": integers(),
            "max_new_tokens": integers(0),
            "stop_token_ids": [[V], [-1], [0.5], ["a"], None, 5, "ab"],
            "stop": ["a", ["a"], [""], None, 5],
            "sampler": ["best", 5, serving.Sampler],
            "seed": [*integers(0), 2**31],
        },
    )


def calls_of_evaluation():
    model = small_model()
    text = np.random.default_rng(0).integers(0, V, 60).astype("int32")
    yield (
        "context_losses",
        lambda **arguments: evaluation.context_losses(model, **arguments),
        {
            "tokens": text,
            "positions": np.array([20, 30]),
            "context_lengths": [4, 8],
            "segment_length": 4,
        },
        {
            "tokens": [text + V, text + 0.5, -1 - text, text.astype("float32")],
            "positions": [[3], [60], [-1], [20.5], [[20, 30]], []],
            "context_lengths": [[], [0], [-4], [4.5], 5, None],
            "segment_length": SIZES,
        },
    )
    losses = [[[3.0, 2.0], [2.9, 2.0]], [[3.2, 2.0], [3.1, 2.0]]]
    yield (
        "effective_context_lengths",
        evaluation.effective_context_lengths,
        {"losses": losses, "context_lengths": [10, 20]},
        {
            "losses": [losses[:1], [], [losses[0], losses[1][:1]], None],
            "context_lengths": [[20, 10], [10], [10, 10], None],
            "top_r": [0, -1, 1.5, np.nan, None, "1"],
            "threshold": [0, -1, np.nan, None, "1"],
        },
    )


@pytest.mark.large  # about a minute
def test_wrong_arguments_are_named_and_nothing_is_silently_wrong():
    outcomes = [
        outcome
        for calls in (
            calls_of_data(),
            calls_of_generation(),
            calls_of_evaluation(),
        )
        for call in calls
        for outcome in outcomes_of(*call)
    ]
    kinds = collections.Counter(kind for kind, _ in outcomes)
    print(f"{len(outcomes)} calls: {dict(kinds)}")
    for kind, description in outcomes:
        if kind in ("silent", "unclear"):
            print(f"{kind}: {description}")
    assert len(outcomes) >= 200
    assert kinds["silent"] == 0
    assert kinds["unclear"] < 0.02 * len(outcomes)
