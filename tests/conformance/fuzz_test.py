"""Calls with one wrong argument: an error names it, or the result is right.

Every public layer, model, reader and writer is called with good arguments,
then with one of them changed. What comes back must be an error whose message
has the name of that argument, or, where the change does not change what the
argument means, the result of the good call.
"""

import collections
import dataclasses
import functools
import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from txl_keras import checkpoints
from txl_keras import data
from txl_keras import evaluation
from txl_keras import layers
from txl_keras import models
from txl_keras import serving

ERRORS = (
    ValueError,
    TypeError,
    OSError,
    NotImplementedError,
    tf.errors.InvalidArgumentError,
)
SEEDS = range(3)


@dataclasses.dataclass
class Same:
    """Marks a value that means what the good one does."""

    value: object


@dataclasses.dataclass
class Outcome:
    """Holds what came of one call."""

    call: str
    kind: str  # "clear", "unclear", "right" or "silent"
    message: str


class Fuzz:
    """Calls functions with wrong arguments and keeps what came of it."""

    def __init__(self):
        self.outcomes = []

    def call(self, name, function, good, bad):
        """Calls once with good arguments, then with each of the bad ones.

        Args:
            name: String, what is called.
            function: Function of keyword arguments.
            good: Dictionary of its arguments.
            bad: Dictionary from the name of an argument to wrong values.
        """
        expected = None
        if any(isinstance(v, Same) for values in bad.values() for v in values):
            expected = function(**good)
        for argument, values in bad.items():
            for value in values:
                is_same = isinstance(value, Same)
                changed = value.value if is_same else value
                call = f"{name}({argument}={changed!s:.40})"
                try:
                    result = function(**{**good, argument: changed})
                except ERRORS as error:
                    named = re.search(rf"\b{argument}\b", str(error))
                    kind = "clear" if named and not is_same else "unclear"
                    message = f"{type(error).__name__}: {error}"
                except Exception as error:  # noqa: BLE001, of no kind expected
                    kind, message = (
                        "unclear",
                        f"{type(error).__name__}: {error}",
                    )
                else:
                    is_right = is_same and _are_equal(result, expected)
                    kind = "right" if is_right else "silent"
                    message = f"{result!s:.60}"
                self.outcomes.append(Outcome(call, kind, message))


def _are_equal(left, right):
    left, right = tf.nest.flatten(left), tf.nest.flatten(right)
    return len(left) == len(right) and all(
        np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True)
        for a, b in zip(left, right, strict=True)
    )


# ------------------------------ Wrong values -------------------------------


def integers(low=1):
    """Returns what is no integer of at least `low`."""
    return [low - 1, -3, 1.5, np.nan, None, "3", [3], True]


def optional_integers(low=1):
    return [value for value in integers(low) if value is not None]


RATES = [-0.1, 1.0, 1.5, np.nan, np.inf, None, "0.1", [0.1], True]
POSITIVE = [-1, np.nan, np.inf, None, "1", [1.0]]


def ids(good, limit):
    """Returns what are no ids below `limit`, in the shape of `good`."""
    good = np.asarray(good)
    with_nan = good.astype("float64")
    with_nan.flat[0] = np.nan
    same = ["int64", "uint16"] + ["uint8"] * (limit <= 256)
    return [
        good + 0.5,
        good.astype("float32"),
        good + 0j,
        good > 0,
        good.astype(str),
        with_nan,
        -1 - good,
        good + limit,
        good.astype("int64") + 2**40,
        *(Same(good.astype(dtype)) for dtype in same),
        Same(tf.constant(good)),
    ]


def shapes(good, batch_broadcasts=False):
    """Yields arrays like `good`, of a size more or an axis fewer or more."""
    good = np.asarray(good)
    yield from (good[0], good[None])
    for axis in range(batch_broadcasts, good.ndim):
        yield np.concatenate([good, good.take([0], axis)], axis)


def masks(shape, rng, broadcasts=False):
    """Yields what is no mask of a shape."""
    mask = rng.random(shape) < 0.7
    additive = np.where(mask, 0.0, -1e9)
    yield from (additive, additive.astype("float32"), mask + 1.0, mask * 3)
    yield from ("mask", mask.astype(complex))
    for axis, size in enumerate(shape):
        if not (broadcasts and size == 1):
            yield np.repeat(mask, 2, axis)
    if not broadcasts:
        yield from (mask[0], mask[None])


def memories(backbone, batch_size):
    """Returns what is no memory of a model for so many rows."""
    good = backbone.initial_memory(batch_size)
    states = good.states
    return [
        backbone.initial_memory(batch_size + 1),
        good._replace(states=states[:-1]),
        good._replace(states=(*states, states[0])),
        good._replace(states=tuple(s[..., 1:] for s in states)),
        good._replace(valid_length=good.valid_length[:-1]),
        good._replace(valid_length=None),
        good._replace(states=()),
        states,
        states[0],
        np.zeros((batch_size, 3, backbone.hidden_dim)),
        "memory",
        7,
        Same(good),
        Same(None),
    ]


# ------------------------------- What is called ----------------------------


def fuzz_layers(fuzz, seed):
    rng = np.random.default_rng(seed)
    b, t, m, n, h = rng.permutation([2, 3, 4, 5, 6]).tolist()
    d, v = 8 + 2 * seed, 19 + seed
    s = m + t
    x = rng.normal(size=(b, t, d)).astype("float32")
    memory = rng.normal(size=(b, m, d)).astype("float32")
    token_ids = rng.integers(0, v, (b, t)).astype("int32")

    embedding = layers.AdaptiveEmbedding(v, d, cutoffs=(5, 11))
    for call in (embedding, tf.function(embedding)):
        fuzz.call(
            "AdaptiveEmbedding",
            lambda token_ids, call=call: (
                call(tf.constant(token_ids))
                if not isinstance(token_ids, tf.Tensor)
                else call(token_ids)
            ),
            {"token_ids": token_ids},
            {"token_ids": ids(token_ids, v)},
        )
    fuzz.call(
        "AdaptiveSoftmax",
        layers.AdaptiveSoftmax(embedding),
        {"hidden": x, "targets": token_ids},
        {"targets": [*ids(token_ids, v), *shapes(token_ids)]},
    )
    wrong = {
        "memory": [
            *(memory[0], memory[None], memory[1:], memory[..., 1:]),
            *("memory", Same(tf.constant(memory))),
        ],
        "memory_mask": [*masks((b, m), rng)],
    }
    for layer in (
        layers.CausalMultiHeadAttention(n, h),
        layers.RelativeMultiHeadAttention(n, h),
        layers.ShawMultiHeadAttention(n, h, max_positions=9),
    ):
        good = {"query": x, "memory": memory}
        bad = {
            "query": [x[0], x[None], x[..., 1:]],
            "query_mask": [*masks((b, t), rng)],
            "attention_mask": [*masks((b, t, s), rng, True)],
            **wrong,
        }
        layer(**good)
        fuzz.call(type(layer).__name__, layer, good, bad)
        fuzz.call(
            type(layer).__name__,
            layer,
            {"query": x},
            {"memory_mask": [np.ones((b, m), bool)]},
        )
    relative = layers.RelativeMultiHeadAttention(n, h)
    encoding = layers.RelativePositionEncoding()(x, memory)
    fuzz.call(
        "RelativeMultiHeadAttention",
        relative,
        {"query": x, "memory": memory},
        {
            "position_encoding": [*shapes(encoding), encoding[1:]],
            "attention_biases": [(np.ones((n, h)),) * 2],
        },
    )
    two_stream = layers.TwoStreamRelativeAttention(n, h)
    two_stream(x)
    fuzz.call(
        "TwoStreamRelativeAttention",
        two_stream,
        {"content": x, "query": x, "memory": memory},
        {
            "content_mask": [*masks((b, t), rng)],
            "permutation_mask": [*masks((b, t, t), rng)],
            "target_mapping": [*shapes(np.ones((b, t, t), "float32"))],
            "token_type_ids": [*shapes(token_ids)],
            **wrong,
        },
    )
    block = layers.DecoderBlock(n, h, 11)
    block(x)
    fuzz.call("DecoderBlock", block, {"inputs": x, "memory": memory}, wrong)
    stack = layers.MemoryStack(2, b, m, d)
    fuzz.call(
        "MemoryStack",
        stack,
        {"inputs": x},
        {
            "inputs": [x[0], x[None], x[1:], x[..., 1:]],
            "layer": [2, -1, 0.0, None, "0"],
        },
    )


def fuzz_sizes(fuzz, seed):
    """Calls constructors; the seed does not matter."""
    del seed
    heads = {"num_heads": 2, "key_dim": 3}
    attention = {
        "num_heads": integers(),
        "key_dim": integers(),
        "dropout": RATES,
    }
    for layer in (
        layers.CausalMultiHeadAttention,
        layers.RelativeMultiHeadAttention,
        functools.partial(layers.ShawMultiHeadAttention, max_positions=4),
        layers.TwoStreamRelativeAttention,
    ):
        fuzz.call(str(layer)[:60], layer, heads, attention)
    fuzz.call(
        "DecoderBlock",
        layers.DecoderBlock,
        {"num_heads": 2, "head_dim": 3, "intermediate_dim": 5},
        {
            "head_dim": integers(),
            "intermediate_dim": integers(),
            "dropout": RATES,
            "attention_dropout": RATES,
            "layer_norm_epsilon": POSITIVE,
            "attention_type": ["Relative", None, 3],
        },
    )
    fuzz.call("RowDropout", layers.RowDropout, {"rate": 0.1}, {"rate": RATES})
    fuzz.call(
        "RelativePositionEncoding",
        layers.RelativePositionEncoding,
        {},
        {
            "clamp_length": optional_integers(),
        },
    )
    fuzz.call(
        "MemoryStack",
        layers.MemoryStack,
        {"num_layers": 2, "batch_size": 3, "memory_length": 4, "hidden_dim": 8},
        {
            "num_layers": integers(),
            "batch_size": optional_integers(),
            "memory_length": [*integers(0), 2**31],
            "hidden_dim": integers(),
            "cold_start": ["zero", None, 0],
        },
    )
    fuzz.call(
        "AdaptiveEmbedding",
        layers.AdaptiveEmbedding,
        {"input_dim": 20, "output_dim": 8},
        {
            "input_dim": integers(),
            "output_dim": integers(),
            "embedding_dim": optional_integers(),
            "div_val": integers(),
            "cutoffs": [(5, 5), (20,), (0,), (7, 3), (2.5,), 4, "5"],
        },
    )
    sizes = {"vocabulary_size": 20, "num_layers": 2, "hidden_dim": 8}
    fuzz.call(
        "LSTMBackbone",
        models.LSTMBackbone,
        sizes,
        {
            **{name: integers() for name in sizes},
            "dropout": RATES,
            "initializer_stddev": POSITIVE,
        },
    )
    for backbone in (models.TransformerXLBackbone, models.XLNetBackbone):
        good = {**sizes, "num_heads": 2, "intermediate_dim": 11}
        fuzz.call(
            backbone.__name__,
            backbone,
            good,
            {
                **{name: integers() for name in good},
                # A backbone of embeddings has none.
                "vocabulary_size": optional_integers(),
                "head_dim": optional_integers(),
                "memory_length": [*integers(0), 10**12],
                "clamp_length": optional_integers(),
                "dropout": RATES,
                "attention_dropout": RATES,
                "layer_norm_epsilon": POSITIVE,
                "initializer_stddev": POSITIVE,
                "attention_type": ["relativ", None],
            },
        )


def small_backbone(seed, make=models.TransformerXLBackbone):
    config = {"vocabulary_size": 19 + seed, "num_layers": 2, "hidden_dim": 8}
    if make is not models.LSTMBackbone:
        config |= {"num_heads": 2, "intermediate_dim": 11, "memory_length": 5}
    return make(**config)


def fuzz_models(fuzz, seed):
    rng = np.random.default_rng(seed)
    b, t, v = 3 + seed, 4, 19 + seed
    token_ids = rng.integers(0, v, (b, t)).astype("int32")
    resets = [
        np.ones(b + 1, bool),
        np.ones((b, 1), bool),
        np.ones(1, bool),
        True,
        np.zeros(b),
        np.full(b, -1),
        "reset",
        Same(np.zeros(b, bool)),
    ]
    for make in (
        models.TransformerXLBackbone,
        models.LSTMBackbone,
        models.XLNetBackbone,
    ):
        backbone = small_backbone(seed, make)
        fuzz.call(
            make.__name__,
            backbone,
            {"token_ids": token_ids},
            {
                "token_ids": [
                    *ids(token_ids, v),
                    token_ids[0],
                    token_ids[None],
                ],
                "memory": memories(backbone, b),
                "reset": resets,
            },
        )
        fuzz.call(
            f"{make.__name__}.initial_memory",
            backbone.initial_memory,
            {"batch_size": b},
            {
                "batch_size": integers(0),
                "memory_length": [-1, 2.5, "3", 2**31, 10**12],
            },
        )
    model = models.TransformerXLCausalLM(small_backbone(seed))
    fuzz.call(
        "score",
        model.score,
        {"inputs": token_ids, "targets": token_ids},
        {
            "targets": [*ids(token_ids, v), *shapes(token_ids)],
            "memory": memories(model.backbone, b),
            "reset": resets,
        },
    )
    model.compile("sgd")
    good = {"x": token_ids, "y": token_ids, "batch_size": b, "verbose": 0}
    wrong = [value for value in ids(token_ids, v) if type(value) is not Same]
    bad = {
        "x": wrong,
        "y": [*wrong, *shapes(token_ids)],
        "batch_size": [None],
        "shuffle": [True, "batch"],
    }
    fuzz.call("fit", model.fit, good, bad)
    del bad["shuffle"]
    fuzz.call("evaluate", model.evaluate, good, bad)
    good = {"x": token_ids, "batch_size": b, "verbose": 0}
    fuzz.call("predict", model.predict, good, {"x": wrong})

    classifier = models.TransformerXLTextClassifier(
        small_backbone(seed), 3, segment_length=3
    )
    classifier.compile("sgd")

    def fit(token_ids, lengths, y):
        return classifier.fit((token_ids, lengths), y, verbose=0).history[
            "loss"
        ]

    lengths, y = np.full(b, t), rng.integers(0, 3, b)
    fuzz.call(
        "classifier.fit",
        fit,
        {"token_ids": token_ids, "lengths": lengths, "y": y},
        {
            "lengths": [
                *(lengths * 0, lengths - 9, lengths + 1, lengths + 0.5),
                *(lengths[1:], lengths[None], lengths * np.nan, "3"),
            ],
            "y": [y + 0.5, y + 3, y - 4, y * np.nan],
        },
    )


def fuzz_data(fuzz, seed):
    rng = np.random.default_rng(seed)
    text = rng.integers(0, 200, 211 + seed).astype("int32")
    good = {
        "tokens": text,
        "batch_size": 3,
        "segment_length": 5,
        "drop_remainder": True,
    }

    def first_batch(**arguments):
        return data.Segments(**arguments).batch(0)

    fuzz.call(
        "Segments",
        first_batch,
        good,
        {
            "tokens": [
                *(text + 0.5, text + 0j, text > 3, text[None], text[:2]),
                *(-1 - text, text.astype("int64") + 2**40, "text", None, 5),
                Same(text.astype("int64")),
                Same(text.astype("uint8")),
            ],
            "batch_size": [*integers(), 10**9],
            "segment_length": [*integers(), 10**9],
            "order": ["random", None, 3],
            "seed": optional_integers(0),
            "warmup_segments": integers(0),
        },
    )
    fuzz.call(
        "SlidingWindows",
        lambda **arguments: data.SlidingWindows(**arguments).batch(0),
        {"tokens": text, "batch_size": 3, "segment_length": 5},
        {
            "tokens": [text + 0.5, text[None], -1 - text, None],
            "batch_size": integers(),
            "segment_length": integers(),
            "stride": [*integers(), 6],
        },
    )
    tokenizers = {
        "ByteTokenizer": data.ByteTokenizer(),
        "CharacterTokenizer": data.CharacterTokenizer("abc "),
        "WordTokenizer": data.WordTokenizer(["<eos>", "<unk>", "a", "b"]),
    }
    for name, tokenizer in tokenizers.items():
        size = tokenizer.vocabulary_size
        fuzz.call(
            f"{name}.encode",
            tokenizer.encode,
            {"text": "a b"},
            {"text": [5, None, 1.5, ["a"], np.arange(3), True, Same(b"a b")]},
        )
        fuzz.call(
            f"{name}.decode",
            tokenizer.decode,
            {"ids": np.array([1, 2])},
            {
                "ids": [
                    *([0.5], [-1], [size], [2**40], [True], ["1"], [[1, 2]]),
                    *(None, "ab", [np.nan], [1j]),
                ]
            },
        )
    fuzz.call(
        "pad_texts",
        data.pad_texts,
        {"token_ids": [[1, 2], [3]]},
        {
            "token_ids": [
                *([[1.5]], [[2**40 + 5]], [[np.nan]], [[-1]], [[]], []),
                *([["a"]], None, 5, [[[1, 2]]], [[True]], [[1j]]),
                Same([np.array([1, 2], "uint8"), np.array([3])]),
            ],
            "multiple_of": integers(),
        },
    )
    counts = np.arange(20_000, 0, -1)
    fuzz.call(
        "choose_cutoffs",
        data.choose_cutoffs,
        {"counts": counts},
        {
            "counts": [
                *(-counts, counts * np.nan, counts * 0, counts[None]),
                *("counts", None, counts + 0j),
                Same(counts.astype("float64")),
            ],
            "num_cutoffs": integers(),
        },
    )
    fuzz.call(
        "TextBatches",
        lambda **arguments: data.TextBatches(**arguments).batch(0),
        {
            "token_ids": [[1, 2], [3]],
            "label_ids": [0, 1],
            "batch_size": 2,
            "segment_length": 3,
        },
        {
            "label_ids": [
                [0],
                [0.5, 1],
                [np.nan, 0],
                [-1, 0],
                None,
                ["a", "b"],
            ],
            "token_ids": [[[1.5], [2]], [[], [3]], [[2**40], [3]]],
            "batch_size": integers(),
            "segment_length": integers(),
            "max_batch_tokens": integers(),
        },
    )


def fuzz_serving(fuzz, seed, folder):
    v = 19 + seed
    model = models.TransformerXLCausalLM(small_backbone(seed))
    write = serving.Generator(model)
    fuzz.call(
        "Generator",
        lambda **arguments: list(write(**arguments)),
        {"prompts": [[1, 2], [3]], "max_tokens": 2, "seed": 1},
        {
            "prompts": [
                *([], [[]], [[v]], [[-1]], [[0.5]], [["a"]], None, 5, "ab"),
                *([[np.nan]], [[2**40]], [[True]], [[[1, 2]]]),
            ],
            "max_tokens": integers(0),
            "seed": [*integers(0), 2**31],
        },
    )
    fuzz.call(
        "generate",
        model.generate,
        {"prompts": [[1, 2], [3]], "max_new_tokens": 2, "seed": 1},
        {
            "prompts": [
                *([], [[]], [[v]], [[-1]], [0.5], ["a"], None, 5, "ab"),
                *([[1], 2], [2, [1]], [["a"], [1]], [[[1, 2]]], {1: 2}),
            ],
            "max_length": optional_integers(),
            "max_new_tokens": optional_integers(0),
            "stop_token_ids": [[v], [-1], [0.5], ["a"], None, 5, "ab"],
            "stop": ["a", ["a"], [""], None, 5],
            "sampler": ["best", 5, serving.Sampler],
            "seed": [*optional_integers(0), 2**31],
        },
    )
    fuzz.call(
        "Sampler",
        serving.Sampler,
        {},
        {
            "temperature": [-1, np.nan, np.inf, None, "1", [1.0]],
            "top_k": optional_integers(),
            "top_p": [0, -1, 1.5, np.nan, "1", [0.5]],
            "typical_p": [0, -1, 1.5, np.nan, "1"],
            "repetition_penalty": [0, 0.5, -1, np.nan, np.inf, "1"],
        },
    )
    path = str(folder / f"export{seed}" / "1")
    serving.export(model, path, num_slots=2, max_segment_length=6)
    signatures = tf.saved_model.load(path).signatures
    b, t = 2, 4
    token_ids = np.random.default_rng(seed).integers(0, v, (b, t))
    token_ids = tf.constant(token_ids, tf.int32)
    memory = signatures["initial_memory"](batch_size=tf.constant(b))
    states, valid = memory["memory"], memory["valid_length"]
    wrong_ids = [token_ids + v, -1 - token_ids, token_ids[0], token_ids[None]]
    wrong_memory = {
        "memory": [
            *(states[:1], states[:, :1], states[..., 1:], states[0]),
            *(states * np.nan, states + np.inf, states[None]),
        ],
        "valid_length": [valid[:1], valid - 1, valid + 99, valid[None]],
    }
    fuzz.call(
        "serving_default",
        signatures["serving_default"],
        {"ids": token_ids, **memory},
        {"ids": wrong_ids, **wrong_memory},
    )
    fuzz.call(
        "score",
        signatures["score"],
        {"ids": token_ids, "targets": token_ids, **memory},
        {
            "ids": wrong_ids,
            "targets": [*wrong_ids, token_ids[:, 1:]],
            **wrong_memory,
        },
    )
    fuzz.call(
        "step",
        signatures["step"],
        {"ids": token_ids, "slots": tf.constant([0, 1])},
        {
            "ids": [*wrong_ids, tf.tile(token_ids, [1, 2])],
            "slots": [
                tf.constant(slots)
                for slots in ([0], [0, 0], [0, 2], [-1, 0], [[0, 1]])
            ],
        },
    )
    scalars = {
        "length": 2,
        "seed": 0,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "typical_p": 1.0,
        "repetition_penalty": 1.0,
    }
    wrong = {
        "length": [-1, 10**9],
        "temperature": [-1.0, np.nan],
        "top_k": [-1],
        "top_p": [0.0, -1.0, 1.5, np.nan],
        "typical_p": [0.0, 1.5, np.nan],
        "repetition_penalty": [0.0, 0.5, np.nan],
    }
    fuzz.call(
        "generate",
        signatures["generate"],
        {
            "prompt_ids": token_ids,
            "prompt_length": tf.constant([t, 1]),
            **{name: tf.constant(value) for name, value in scalars.items()},
            **memory,
        },
        {
            "prompt_ids": wrong_ids,
            "prompt_length": [
                tf.constant(value)
                for value in ([0, 1], [-1, 1], [t + 1, 1], [1], [[1, 1]])
            ],
            **{
                name: [
                    *(tf.constant(value) for value in values),
                    tf.constant([scalars[name]]),
                ]
                for name, values in wrong.items()
            },
            **wrong_memory,
        },
    )


def fuzz_evaluation(fuzz, seed):
    v = 19 + seed
    model = models.TransformerXLCausalLM(small_backbone(seed))
    text = np.random.default_rng(seed).integers(0, v, 60).astype("int32")
    fuzz.call(
        "context_losses",
        lambda **arguments: evaluation.context_losses(model, **arguments),
        {
            "tokens": text,
            "positions": np.array([20, 30]),
            "context_lengths": [4, 8],
            "segment_length": 4,
        },
        {
            "tokens": [text + v, text + 0.5, -1 - text, text.astype("float32")],
            "positions": [[3], [60], [-1], [20.5], [[20, 30]], []],
            "context_lengths": [[], [0], [-4], [4.5], 5, None],
            "segment_length": integers(),
        },
    )
    losses = [[[3.0, 2.0], [2.9, 2.0]], [[3.2, 2.0], [3.1, 2.0]]]
    fuzz.call(
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


def fuzz_loaders(fuzz, seed, folder):
    """Loads folders with one wrong field, and files that end early."""
    rng = np.random.default_rng(seed)
    model = models.TransformerXLCausalLM.from_preset(
        "quickstart", num_layers=1, vocabulary_size=19, cold_start="zeros"
    )
    source = folder / f"hugging_face{seed}"
    checkpoints.save_hugging_face(model, source)
    config = json.loads((source / "config.json").read_text())
    weights = (source / "model.safetensors").read_bytes()

    def load(**fields):
        new = {k: v for k, v in {**config, **fields}.items() if v != "absent"}
        (source / "config.json").write_text(json.dumps(new))
        try:
            return checkpoints.load_hugging_face(source).get_weights()
        finally:
            (source / "config.json").write_text(json.dumps(config))

    # `null` stands for what is left out.
    sizes = [0, -1, 1.5, "3", [3], True, 10**9, 10**18]
    fuzz.call(
        "config.json",
        load,
        config,
        {
            **{
                name: sizes
                for name in (
                    "n_layer",
                    "n_head",
                    "d_model",
                    "d_head",
                    "d_inner",
                )
            },
            "vocab_size": sizes,
            "mem_len": [-1, 1.5, "3", 10**12],
            "cutoffs": [[25], "5", [0.5], {"5": 1}, 5],
            "div_val": [0, -1, 1.5, "2"],
            "dropout": [-1, 1, "0.1", [0.1]],
            "layer_norm_epsilon": [-1, "1"],
            "model_type": ["xlnet", 5],
        },
    )
    vocabulary = folder / "vocab.json"

    def load_file(path, content, load):
        path.write_bytes(content)
        try:
            return load(path)
        except ERRORS as error:
            # A file is named by its path.
            raise type(error)(
                str(error).replace(str(path), "content")
            ) from error

    words = json.dumps(["<eos>", *map(str, range(30))]).encode()
    cuts = rng.integers(1, len(words) - 1, 8)
    fuzz.call(
        "vocab.json",
        lambda content: load_file(
            vocabulary, content, checkpoints.load_vocabulary
        ),
        {"content": words},
        {"content": [*(words[:cut] for cut in cuts), b"\xff" + words]},
    )
    fuzz.call(
        "model.safetensors",
        lambda content: load_file(
            source / "model.safetensors",
            content,
            lambda path: checkpoints.load_hugging_face(
                path.parent
            ).get_weights(),
        ),
        {"content": weights},
        {
            "content": [
                *(weights[:cut] for cut in rng.integers(0, len(weights), 6)),
                b"\xff" * 8 + weights[8:],
                Same(weights),
            ]
        },
    )


@pytest.mark.large  # about a minute
def test_wrong_arguments_are_named_and_nothing_is_silently_wrong(tmp_path):
    fuzz = Fuzz()
    for seed in SEEDS:
        keras.utils.set_random_seed(seed)
        fuzz_layers(fuzz, seed)
        fuzz_models(fuzz, seed)
        fuzz_data(fuzz, seed)
        fuzz_serving(fuzz, seed, tmp_path)
        fuzz_evaluation(fuzz, seed)
        fuzz_loaders(fuzz, seed, tmp_path)
    fuzz_sizes(fuzz, 0)
    kinds = collections.Counter(outcome.kind for outcome in fuzz.outcomes)
    print(f"{len(fuzz.outcomes)} calls: {dict(kinds)}")
    for outcome in fuzz.outcomes:
        if outcome.kind in ("silent", "unclear"):
            print(f"{outcome.kind}: {outcome.call}: {outcome.message[:200]}")
    assert len(fuzz.outcomes) >= 600
    assert kinds["silent"] == 0
    assert kinds["unclear"] < 0.02 * len(fuzz.outcomes)
