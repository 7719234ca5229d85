"""How long a training step takes.

`txl_keras` is the step of a run: `Trainer` on `Segments`, with Adam and the
gradient clipped to 0.25. `bare` is the same mathematics without Keras, `plain`
that with the textbook's attention: see bare_tensorflow.py.

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
from txl_keras.training.optimizers import build_optimizer
from txl_keras.training.strategy import compile_layers
from txl_keras.training.trainer import Trainer
from txl_keras.training.utilization import model_flops

_LEARNING_RATE = 1e-4
_CLIP_NORM = 0.25
_SEGMENTS = 64  # of a row, before the text begins again
BARE_ATTENTIONS = {
    "bare": bare_tensorflow.attend_by_kernels,
    "plain": bare_tensorflow.attend_by_definition,
}


def run(model, settings, peer=None):
    """Times steps: see the package."""
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
        contenders, peers, settings, "a step", flops, model.compute_dtype
    )


def bare_names(model, settings):
    """Contenders of bare TensorFlow that the settings ask for.

    None, and says so, where the model has what bare TensorFlow has not.

    Args:
        model: `TransformerXLCausalLM`.
        settings: See the package.

    Returns:
        List of strings.
    """
    wanted = [name for name in BARE_ATTENTIONS if name in settings.contenders]
    missing = bare_tensorflow.what_is_missing(model)
    if wanted and missing:
        print(f"{' and '.join(wanted)} left out: they have no {missing}")
        return []
    return wanted


def bare_contenders(model, settings, learning_rate=None):
    """`BareTensorFlow` of each of `bare_names`.

    Args:
        model: `TransformerXLCausalLM`.
        settings: See the package.
        learning_rate: Optional float; without it they cannot train.

    Returns:
        Dictionary.
    """
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


def compile_way(name, model, training):
    """How a contender is compiled: the textbook by XLA, as a whole.

    Args:
        name: String, `"plain"` or another.
        model, training: See `compile_layers`.

    Returns:
        Function of a function of tensors; it returns a `tf.function`.
    """
    if name == "plain":
        return functools.partial(tf.function, jit_compile=True)
    return functools.partial(
        compile_layers,
        strategy=tf.distribute.get_strategy(),
        model=model,
        training=training,
    )


def _trainers(model, settings):
    """Functions of an iterator and a number of steps, by name."""
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
    """Iterator over the steps of a text."""
    num_tokens = batch_size * segment_length * _SEGMENTS + 1
    ids = made_up_ids(model.backbone.vocabulary_size, num_tokens)
    if model.backbone.vocabulary_size <= 256:
        ids = ids.astype(np.uint8)  # as the text of a run is stored
    segments = Segments(ids, batch_size, segment_length, drop_remainder=True)
    return iter(segments.distribute(tf.distribute.get_strategy()))


def _turn(train, steps, num_steps):
    """Seconds of a step, of some that the host does not interrupt."""
    start = time.perf_counter()
    train(steps, num_steps)
    return [(time.perf_counter() - start) / num_steps]
