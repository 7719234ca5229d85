"""Calls with one wrong argument: an error names it.

Readers are called with good arguments, then with one of them changed. The
settings of layers and models are in `settings_test.py`; the inputs of models,
generation and evaluation, tokenizers and `TextBatches` in their tests.
"""

import numpy as np
import pytest
import tensorflow as tf
from settings_test import REQUIRED as SIZES
from settings_test import integers

from txl_keras import data

ERRORS = (
    ValueError,
    TypeError,
    OSError,
    NotImplementedError,
    tf.errors.InvalidArgumentError,
)
V = 19
TEXT = np.random.default_rng(0).integers(0, V, 211).astype("int32")
COUNTS = np.arange(20_000, 0, -1)
# Functions of keyword arguments, good arguments, and wrong values.
CALLS = {
    "Segments": (
        lambda **arguments: data.Segments(**arguments).batch(0),
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
        lambda **arguments: data.SlidingWindows(**arguments).batch(0),
        {"tokens": TEXT, "batch_size": 3, "segment_length": 5},
        {
            "tokens": [TEXT + 0.5, TEXT[None], -1 - TEXT, None],
            "batch_size": SIZES,
            "segment_length": SIZES,
            "stride": [*SIZES, 6],
        },
    ),
    "choose_cutoffs": (
        data.choose_cutoffs,
        {"counts": COUNTS},
        {
            "counts": [
                *(-COUNTS, COUNTS * np.nan, COUNTS * 0, COUNTS[None]),
                *(COUNTS + 0j, "counts", None),
            ]
        },
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_named(name):
    function, good, wrong = CALLS[name]
    function(**good)
    for argument, values in wrong.items():
        for value in values:
            with pytest.raises(ERRORS, match=rf"\b{argument}\b"):
                function(**{**good, argument: value})
