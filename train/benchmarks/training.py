"""Times a training step.

`txl_keras` is the training step of a run: `Trainer` on `Segments`, with Adam
and the gradient clipped to a norm of 0.25. `bare` is the same mathematics
without Keras; `plain` is `bare` with textbook attention: see
bare_tensorflow.py.

Letters: `B` batch, `T` segment.
"""

import functools
import time

import numpy as np
import tensorflow as tf

from benchmarks import bare_tensorflow
from benchmarks.made_up_text import made_up_ids
from benchmarks.peer import peer_contenders
from benchmarks.report import measure
from txl_keras.data import Segments
from txl_keras.training.compilation import compile_layers
from txl_keras.training.optimizers import build_optimizer
from txl_keras.training.trainer import Trainer
from txl_keras.training.utilization import model_flops

_LEARNING_RATE = 1e-4
_CLIP_NORM = 0.25
_SEGMENTS = 64  # segments per row before the text repeats
BARE_ATTENTIONS = {
    "bare": bare_tensorflow.attend_by_kernels,
    "plain": bare_tensorflow.attend_by_definition,
}


def run(model, settings, peer=None):
    """Times training steps, as the package describes."""
    batch_size, length = settings.batch_size, settings.segment_length
    contenders = {
        name: functools.partial(
            _turn,
            train,
            _steps(model, batch_size, length),
            settings.calls_per_turn,
        )
        for name, train in _trainers(model, settings).items()
    }
    peers = peer_contenders(
        peer, "train", segment_length=length, num_steps=settings.calls_per_turn
    )
    flops = model_flops(model, batch_size, length, training=True)
    return measure(
        contenders, peers, settings, "per step", flops, model.compute_dtype
    )


def bare_names(model, settings):
    """Returns the requested contenders of bare TensorFlow that fit a model."""
    requested = [
        name for name in BARE_ATTENTIONS if name in settings.contenders
    ]
    unsupported = bare_tensorflow.unsupported_parts(model)
    if requested and unsupported:
        print(
            f"Skipping {' and '.join(requested)}, which do not support "
            f"{unsupported}"
        )
        return []
    return requested


def bare_contenders(model, settings, learning_rate=None):
    """Builds a `BareTensorFlow` for each of `bare_names`."""
    return {
        name: bare_tensorflow.BareTensorFlow(
            model,
            settings.batch_size,
            BARE_ATTENTIONS[name],
            learning_rate,
            _CLIP_NORM,
        )
        for name in bare_names(model, settings)
    }


def choose_compiler(name, model, training):
    """Returns the decorator that compiles a contender into a `tf.function`."""
    # XLA compiles the textbook contender `"plain"` as a whole.
    if name == "plain":
        return functools.partial(tf.function, jit_compile=True)
    return functools.partial(
        compile_layers,
        strategy=tf.distribute.get_strategy(),
        model=model,
        training=training,
    )


def _trainers(model, settings):
    """Returns, by contender, a function of an iterator and a step count."""
    trainers = {}
    if "txl_keras" in settings.contenders:
        trainers["txl_keras"] = Trainer(
            model,
            build_optimizer("adam", _LEARNING_RATE),
            tf.distribute.get_strategy(),
            settings.batch_size,
            clip_norm=_CLIP_NORM,
        )
    trainers |= bare_contenders(model, settings, _LEARNING_RATE)
    return {name: trainer.train for name, trainer in trainers.items()}


def _steps(model, batch_size, segment_length):
    """Returns an iterator over the batches of a synthetic text."""
    num_tokens = batch_size * segment_length * _SEGMENTS + 1
    ids = made_up_ids(model.backbone.vocabulary_size, num_tokens)
    if model.backbone.vocabulary_size <= 256:
        ids = ids.astype(np.uint8)  # the dtype in which a run stores its text
    segments = Segments(ids, batch_size, segment_length, drop_remainder=True)
    return iter(segments.distribute(tf.distribute.get_strategy()))


def _turn(train, steps, num_steps):
    """Times steps in one host call; returns seconds per step."""
    start = time.perf_counter()
    train(steps, num_steps)
    return [(time.perf_counter() - start) / num_steps]
