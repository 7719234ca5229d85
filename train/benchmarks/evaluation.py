"""How long a segment takes to score.

`txl_keras` keeps memory projected, `training path` as hidden states. `bare`
and `plain` are what training.py says, forward alone.

Letters: `B` batch, `T` segment.
"""

import functools

import tensorflow as tf

from benchmarks.made_up_text import made_up_segment
from benchmarks.peer import peer_contenders
from benchmarks.report import measure
from benchmarks.training import bare_contenders
from benchmarks.training import compile_way
from benchmarks.turns import timed
from txl_keras.models import SegmentReader
from txl_keras.training.utilization import model_flops


def run(model, settings, peer=None):
    """Times segments: see the package."""
    batch_size, length = settings.batch_size, settings.segment_length
    segment = made_up_segment(model, batch_size, length)
    scorers = {}
    if "txl_keras" in settings.contenders:
        scorers["txl_keras"], _ = segment_scorer(model, batch_size, length)
    if "training_path" in settings.contenders:
        scorers["training path"] = _training_path(model, batch_size)
    for name, bare in bare_contenders(model, settings).items():
        compiled = compile_way(name, model, training=False)(bare.score)
        scorers[name] = _bare(compiled, batch_size)
    contenders = {
        name: timed(
            functools.partial(_score, score, segment), settings.calls_per_turn
        )
        for name, score in scorers.items()
    }
    peers = peer_contenders(
        peer,
        "evaluate",
        segment_length=length,
        num_segments=settings.calls_per_turn,
    )
    flops = model_flops(model, batch_size, length)
    return measure(
        contenders, peers, settings, "a segment", flops, model.compute_dtype
    )


def _score(score, segment):
    score(*segment).numpy()


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
    reader = SegmentReader(
        model.backbone, batch_size, segment_length, memory_length
    )
    reader.begin()

    @compile_way("txl_keras", model, training=False)
    def read(inputs, targets):
        hidden, entries = reader.read(inputs)
        return model.softmax(hidden, targets), entries

    remember = tf.function(reader.remember, jit_compile=True)

    @tf.function
    def score(inputs, targets):
        nll, entries = read(inputs, targets)
        remember(entries)
        return nll

    return score, reader


def _training_path(model, batch_size):
    """The same model, its memory hidden states."""
    step = compile_way("training path", model, training=False)(model.score)
    memory = [model.initial_memory(batch_size)]

    def score(inputs, targets):
        nll, memory[0] = step(inputs, targets, memory[0])
        return nll

    return score


def _bare(score, batch_size):
    reset = tf.zeros(batch_size, tf.bool)
    return lambda inputs, targets: score(inputs, targets, reset)
