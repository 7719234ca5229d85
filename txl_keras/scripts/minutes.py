"""Chooses what a run with `--minutes` leaves open."""

import math
import time

import keras
import numpy as np
import tensorflow as tf
from absl import flags

from txl_keras.data.feed import Feed
from txl_keras.layers.compute.target import prefers_tensorflow_matmul
from txl_keras.scripts.training_run import chief_print
from txl_keras.training.compilation import device_of
from txl_keras.training.strategy import gather_integers

FLAGS = flags.FLAGS

_TIMED_SECONDS = 4
# Of the minutes of a run; the rest is for scores, checkpoints and pictures.
_TRAINING_SHARE = 0.9
# Dropout for up to so many epochs, and the most epochs, after which nothing was
# gained, by trials: docs/reproduction.md. Where there are none the limits lie
# between them.
_DROPOUTS = ((8, 0.0), (18, 0.1), (24, 0.2), (30, 0.3), (math.inf, 0.4))
_MOST_EPOCHS = 40
# Tokens of valid to score, per token of training between two scores. Scoring a
# token takes a third of the time of training on it.
_SCORED_SHARE = 0.15


def choose(strategy, workdir, build, segments):
    """Chooses flags that are not given, by `--minutes`, text and processor."""
    # `--max_steps`: as many as fit, by timing some, but not more epochs than a
    # short text is worth. `--dropout`: more for more epochs, if the model has
    # none. `--precision`: bfloat16 where it is fast. `--max_eval_tokens`: so
    # that scores take little time. `build` builds a `Trainer`, not the one that
    # the run uses.
    if workdir.is_claimed():
        _keep(workdir.read_config())
        chief_print(strategy)(
            "--minutes: a run that was begun keeps what was chosen, "
            f"{FLAGS.max_steps:,} steps."
        )
        return
    # `--attention_kernel` was checked with the precision that was given.
    is_free = not FLAGS["precision"].present and not FLAGS.attention_kernel
    if is_free and _has_bfloat16(strategy):
        FLAGS.precision = "bfloat16"
    if FLAGS.max_eval_tokens is None:
        tokens = FLAGS.eval_every * FLAGS.batch_size * FLAGS.segment_length
        FLAGS.max_eval_tokens = max(2, int(_SCORED_SHARE * tokens))
    seconds, dropout = _time_training(build, segments)
    chosen = _dropout_for(_epochs_in(seconds, segments))
    if not dropout and FLAGS.dropout is None and chosen:
        FLAGS.dropout = chosen
        # It takes time, too, and fewer epochs may need less of it.
        seconds, _ = _time_training(build, segments)
        FLAGS.dropout = dropout = _dropout_for(_epochs_in(seconds, segments))
    epochs = min(_epochs_in(seconds, segments), _MOST_EPOCHS)
    FLAGS.max_steps = max(1, int(epochs * segments.steps_per_epoch))
    limit = ""
    if epochs == _MOST_EPOCHS:
        limit = ", which is enough for so short a text"
    chief_print(strategy)(
        f"--minutes={FLAGS.minutes:g}: {FLAGS.max_steps:,} steps of "
        f"{1e3 * seconds:.0f} ms in {FLAGS.precision}, {epochs:.2g} epochs of "
        f"{len(segments.tokens):,} tokens{limit}; dropout {dropout:g}."
    )


def _keep(config):
    """Sets the flags that are not given to those of a run's config.json."""
    kept = config["flags"]
    if "max_steps" not in kept:
        return  # not of `train/main.py`: `Workdir.claim` refuses it
    FLAGS.max_steps = kept["max_steps"]
    if not FLAGS["precision"].present:
        FLAGS.precision = kept["precision"]
    if FLAGS.max_eval_tokens is None:
        FLAGS.max_eval_tokens = kept["max_eval_tokens"]
    if FLAGS.dropout is None:
        FLAGS.dropout = config["model"]["backbone"]["config"]["dropout"]


def _has_bfloat16(strategy):
    """Returns whether bfloat16 is fast on the devices of all workers."""
    device = device_of(strategy)
    is_fast = device == "tpu" or (
        device == "cpu" and prefers_tensorflow_matmul("bfloat16", training=True)
    )
    found = tf.constant(int(is_fast), tf.int64)
    return bool(gather_integers(strategy, lambda: found).min())


def _epochs_in(seconds, segments):
    """Returns how many epochs fit in `--minutes` with `seconds` per step."""
    steps = 60 * FLAGS.minutes * _TRAINING_SHARE / seconds
    return steps / segments.steps_per_epoch


def _dropout_for(epochs):
    return next(rate for most, rate in _DROPOUTS if epochs <= most)


def _time_training(build, segments):
    """Returns the seconds per step of a `Trainer`, and its model's dropout."""
    trainer = build()
    seconds = _seconds_per_step(trainer, Feed(segments, trainer.strategy))
    dropout = trainer.model.backbone.dropout
    # Names and weights are those of a run with this --max_steps.
    del trainer
    keras.utils.clear_session()
    keras.utils.set_random_seed(FLAGS.seed)
    return seconds, dropout


def _seconds_per_step(trainer, feed):
    """Times training; returns the same number on all workers."""
    trainer.train(feed.next(1), 1)  # compiles
    num_steps, found, total = 1, [], 0.0
    while total < _TIMED_SECONDS:
        start = time.monotonic()
        trainer.train(feed.next(num_steps), num_steps)
        # All workers must go on, or end, after the same step.
        seconds = _longest(trainer.strategy, time.monotonic() - start)
        total += seconds
        found.append(seconds / num_steps)
        if 2 * seconds < _TIMED_SECONDS / 4:
            num_steps = min(2 * num_steps, FLAGS.steps_per_execution)
    # Those after the number of steps in a call has grown.
    return float(np.median(found[len(found) // 2 :]))


def _longest(strategy, seconds):
    """Returns the largest of the durations of all workers."""
    nanoseconds = tf.constant(int(1e9 * seconds), tf.int64)
    return int(gather_integers(strategy, lambda: nanoseconds).max()) / 1e9
