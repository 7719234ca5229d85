"""Wrong settings of layers, models and readers: an error names the argument."""

import numpy as np
import pytest

from txl_keras import data
from txl_keras import layers
from txl_keras import models


def integers(low=1):
    """Returns what is no integer of at least `low`."""
    return [low - 1, -3, 1.5, np.nan, "3", [3], True]


REQUIRED = [*integers(), None]
RATES = [-0.1, 1.0, 1.5, np.nan, np.inf, None, "0.1", [0.1], True]
POSITIVE = [-1, np.nan, np.inf, None, "1", [1.0]]
# What is wrong for every class, by the name of the argument.
WRONG = {
    "num_heads": REQUIRED,
    "key_dim": REQUIRED,
    "head_dim": integers(),
    "hidden_dim": REQUIRED,
    "intermediate_dim": REQUIRED,
    "num_layers": REQUIRED,
    "batch_size": integers(),
    "memory_length": [*integers(0), None, 2**31, 10**12],
    "reuse_length": integers(),
    "clamp_length": integers(),
    "look_ahead": integers(0),
    "tail_rows": integers(),
    "vocabulary_size": integers(),  # None is a backbone of embeddings
    "input_dim": REQUIRED,
    "output_dim": REQUIRED,
    "embedding_dim": integers(),
    "div_val": REQUIRED,
    "cutoffs": [
        *((12, 5), (5, 5), (0,), (20,), (5, 21), (-3,)),
        *((5.0,), (True, 5), ("5",), 4, "5"),
    ],
    "tie_projections": ["all", "", [True], [True] * 5, (), None, 1],
    "rate": RATES,
    "dropout": RATES,
    "attention_dropout": RATES,
    "layer_norm_epsilon": POSITIVE,
    "initializer_stddev": POSITIVE,
    "projection_initializer_stddev": [-1, np.nan, "0.02"],
    "attention_type": ["Relative", "both", "", None, 3],
    "same_length": ["tensorflow", "", None, 2],
    "cold_start": ["zero", None, 0],
}
HEADS = {"num_heads": 2, "key_dim": 3}
SIZES = {"vocabulary_size": 20, "num_layers": 2, "hidden_dim": 8}
GOOD = {
    layers.AdaptiveEmbedding: {"input_dim": 20, "output_dim": 8},
    layers.AdaptiveSoftmax: {
        "embedding": layers.AdaptiveEmbedding(20, 8, cutoffs=(5, 9))
    },
    layers.CausalMultiHeadAttention: HEADS,
    layers.DecoderBlock: {
        "num_heads": 2,
        "head_dim": 3,
        "intermediate_dim": 5,
    },
    layers.MemoryStack: {
        "num_layers": 2,
        "batch_size": 3,
        "memory_length": 4,
        "hidden_dim": 8,
    },
    layers.RelativeMultiHeadAttention: HEADS,
    layers.RelativePositionEncoding: {},
    layers.RowDropout: {"rate": 0.1},
    layers.ShawMultiHeadAttention: {**HEADS, "max_positions": 4},
    layers.TwoStreamRelativeAttention: HEADS,
    models.LSTMBackbone: SIZES,
    models.TransformerXLBackbone: {
        **SIZES,
        "num_heads": 2,
        "intermediate_dim": 11,
    },
    models.XLNetBackbone: {**SIZES, "num_heads": 2, "intermediate_dim": 11},
}


@pytest.mark.parametrize("make", GOOD)
def test_a_wrong_setting_is_named(make):
    good = GOOD[make]
    names = WRONG.keys() & make(**good).get_config().keys()
    assert good.keys() - {"embedding", "max_positions"} <= names
    for name in names:
        for value in WRONG[name]:
            with pytest.raises(ValueError, match=f"`{name}` must "):
                make(**{**good, name: value})


@pytest.mark.parametrize(
    "make", [models.TransformerXLBackbone, models.XLNetBackbone]
)
def test_heads_must_divide_an_even_size(make):
    for config, message in (
        ({"hidden_dim": 9}, "must be even.*=9"),
        ({"num_heads": 3}, "hidden_dim=8, num_heads=3"),
    ):
        with pytest.raises(ValueError, match=message):
            make(**{**GOOD[make], **config})
    assert make(**{**GOOD[make], "num_heads": 4}).head_dim == 2


TEXT = np.random.default_rng(0).integers(0, 19, 211).astype("int32")
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
            "batch_size": [*REQUIRED, 10**9],
            "segment_length": [*REQUIRED, 10**9],
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
            "batch_size": REQUIRED,
            "segment_length": REQUIRED,
            "stride": [*REQUIRED, 6],
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
            with pytest.raises(
                (ValueError, TypeError), match=rf"\b{argument}\b"
            ):
                function(**{**good, argument: value})
