"""How long a segment takes to score.

Letters: `B` batch, `T` segment.
"""

import functools

import tensorflow as tf

from txl_keras.benchmarks.made_up_text import made_up_segment
from txl_keras.benchmarks.turns import print_times
from txl_keras.benchmarks.turns import take_turns
from txl_keras.benchmarks.turns import timed


def run(model, settings, peer=None):
    """Times segments: see the package."""
    contenders = {
        "projected memory": _projected(model, settings),
        "training path": _unprojected(model, settings),
    }
    if peer:
        contenders[settings.peer] = lambda: peer(
            "evaluate",
            segment_length=settings.segment_length,
            num_segments=settings.num_tokens,
        )
    seconds = take_turns(contenders, settings.turns)
    print_times(seconds, "ms a segment")
    tokens = settings.batch_size * settings.segment_length
    speed = tokens / seconds["projected memory"]
    print(f"With projected memory {speed:,.0f} tokens/s")
    return {"seconds": seconds, "segment_length": settings.segment_length}


def segment_scorer(model, batch_size, segment_length, memory_length=None):
    """What scores a segment and remembers it.

    Args:
        model: `TransformerXLCausalLM`.
        batch_size, segment_length: Integers `B` and `T`.
        memory_length: Optional integer; by default the model's own.

    Returns:
        The pair of a `tf.function` of inputs and targets `(B, T)`, which
        returns the negative log-likelihood of each target, and the
        `SegmentReader` that remembers.
    """
    reader = model.backbone.segment_reader(
        batch_size, segment_length, memory_length
    )
    reader.begin()

    @tf.function(jit_compile=True)
    def read(inputs, targets):
        hidden, entries = reader.read(inputs)
        return model.softmax(hidden, targets), entries

    remember = tf.function(reader.remember, jit_compile=True)

    @tf.function
    def score(inputs, targets):
        nll, entries = read(inputs, targets)
        remember(*entries)
        return nll

    return score, reader


def _projected(model, settings):
    sizes = settings.batch_size, settings.segment_length
    score, _ = segment_scorer(model, *sizes)
    score = functools.partial(score, *made_up_segment(model, *sizes))
    return timed(lambda: score().numpy(), settings.num_tokens)


def _unprojected(model, settings):
    """The same model, its memory hidden states."""

    @tf.function(jit_compile=True)
    def step(inputs, targets, memory):
        return model.score(inputs, targets, memory)

    sizes = settings.batch_size, settings.segment_length
    segment = made_up_segment(model, *sizes)
    memory = [model.initial_memory(settings.batch_size)]

    def score():
        nll, memory[0] = step(*segment, memory[0])
        nll.numpy()

    return timed(score, settings.num_tokens)
