"""Times the scoring of one segment.

`txl_keras` caches projected keys and values as memory; `training path` stores
hidden states and projects them again, as in training. `bare` and `plain` are
the contenders of training.py, forward only.

Letters: `B` batch, `T` segment.
"""

import functools

import tensorflow as tf

from benchmarks.made_up_text import made_up_segment
from benchmarks.peer import peer_contenders
from benchmarks.report import measure
from benchmarks.training import bare_contenders
from benchmarks.training import choose_compiler
from benchmarks.turns import timed
from txl_keras.models import SegmentReader
from txl_keras.training.utilization import model_flops


def run(model, settings, peer=None):
    """Times segments, as the package describes."""
    batch_size, length = settings.batch_size, settings.segment_length
    segment = made_up_segment(model, batch_size, length)
    scorers = {}
    if "txl_keras" in settings.contenders:
        scorers["txl_keras"], _ = segment_scorer(model, batch_size, length)
    if "training_path" in settings.contenders:
        scorers["training path"] = _training_path(model, batch_size)
    for name, bare in bare_contenders(model, settings).items():
        compiled = choose_compiler(name, model, training=False)(bare.score)
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
        contenders, peers, settings, "per segment", flops, model.compute_dtype
    )


def _score(score, segment):
    score(*segment).numpy()


def segment_scorer(model, batch_size, segment_length, memory_length=None):
    """Returns a scoring function and the `SegmentReader` with its memory."""
    # The function maps inputs and targets `(B, T)` to nats per target `(B, T)`.
    reader = SegmentReader(
        model.backbone, batch_size, segment_length, memory_length
    )
    reader.begin()

    @choose_compiler("txl_keras", model, training=False)
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
    """Returns a scoring function whose memory is hidden states."""
    step = choose_compiler("training path", model, training=False)(model.score)
    memory = [model.initial_memory(batch_size)]

    def score(inputs, targets):
        nll, memory[0] = step(inputs, targets, memory[0])
        return nll

    return score


def _bare(score, batch_size):
    reset = tf.zeros(batch_size, tf.bool)
    return lambda inputs, targets: score(inputs, targets, reset)
