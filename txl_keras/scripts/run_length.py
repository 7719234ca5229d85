"""Sets the number of steps, by `--minutes` or when a run resumes."""

import math
import time

from txl_keras.scripts.quiet import STARTED

import keras

from txl_keras import gfile
from txl_keras.compilation import device_of
from txl_keras.data.step_batches import Feed
from txl_keras.data.tokenizers import building
from txl_keras.layers.compute.target import prefers_tensorflow_matmul
from txl_keras.models.presets import TRAINED
from txl_keras.scripts import model_flags
from txl_keras.scripts.options import FLAGS
from txl_keras.training.strategy import gather_integers
from txl_keras.training.strategy import is_chief

_TIMED_SECONDS = 2
# Shares of `--minutes` for training. The rest is for scores, a sample and the
# export at the end. The second is a minimum, for a text whose preparation takes
# longer.
_TRAINING_SHARE, _LEAST_SHARE = 0.9, 0.5
# Time for scores during training, as a share of the training time.
_SCORING_SHARE = 0.05
# Pairs of a number of epochs and the dropout rate up to it, and the most epochs
# that still improved the model. Both were found by trials, interpolated where
# there are none: docs/reproduction.md.
_DROPOUTS = ((8, 0.0), (22, 0.1), (28, 0.2), (34, 0.3), (math.inf, 0.4))
_MOST_EPOCHS = 40
# From trained weights, with their own dropout: more would overfit, and a model
# that was trained without dropout loses with it what it has learned.
_FINE_TUNING_EPOCHS = 5
_MUON = {"optimizer": "muon", "batch_size": 16}
# With bfloat16 it reads almost as many tokens in the same time.
_WIDE = {"hidden_dim": 256, "intermediate_dim": 1024}
# The fewest tokens of train for which they were better: docs/reproduction.md.
_MUON_TOKENS, _WIDE_TOKENS = 300_000, 2_000_000
# About the text that a CPU reads per minute. Subwords are learned from as much,
# because more of them, as suit a longer text, make each step slower.
_BYTES_PER_MINUTE = 1_000_000
# Tokens of valid to score, per token of training between two scores. Scoring a
# token takes a third of the time of training on it.
_SCORED_SHARE = 0.15
# Tokens of test to score at the end, per token of training.
_TESTED_SHARE = 0.3


def keep_length(workdir):
    """Restores a run's steps and the choices of `--minutes`."""
    config = workdir.read_config() if workdir.is_claimed() else {"flags": {}}
    kept = config["flags"]
    if not kept.get("max_steps"):
        return  # new, or not trained here: `Workdir.claim` refuses it
    minutes = "minutes" in FLAGS and FLAGS["minutes"].present
    given = FLAGS.max_steps if FLAGS["max_steps"].present else 0
    FLAGS.max_steps = max(kept["max_steps"], 0 if minutes else given)
    if given not in (0, FLAGS.max_steps):
        why = "needs --minutes left out" if minutes else "cannot shorten a run"
        print(
            f"--max_steps={given} {why}: it keeps its {FLAGS.max_steps:,} "
            "steps."
        )
    if kept.get("minutes") is None or "minutes" not in FLAGS:
        return
    for name in ("minutes", "precision", "max_eval_tokens"):
        if not FLAGS[name].present:
            FLAGS[name].value = kept[name]
    _score_epochs()
    backbone = config["model"]["backbone"]["config"]
    if FLAGS.dropout is None:
        FLAGS.dropout = backbone["dropout"]
    if kept["optimizer"] == _MUON["optimizer"]:
        _choose_muon(backbone["hidden_dim"] == _WIDE["hidden_dim"])


def _score_epochs():
    """Scores trained weights after each fifth of the run, or more often."""
    # The first score may be the best. A short text has an epoch per fifth.
    if FLAGS.initialize_from and not FLAGS["eval_every"].present:
        epoch = math.ceil(FLAGS.max_steps / _FINE_TUNING_EPOCHS)
        FLAGS.eval_every = min(FLAGS.eval_every, epoch)


def sample_bytes(strategy):
    """Returns how much text to learn subwords from; None is the default."""
    if FLAGS.minutes is None or device_of(strategy) != "cpu":
        return None
    size = int(max(1, FLAGS.minutes) * _BYTES_PER_MINUTE)
    return min(size, building.SAMPLE_BYTES)


def kept_tokenizer(workdir):
    """Returns the tokenizer of a run, `None` if it is new."""
    # One that is learned again may differ, by version, or with --minutes by how
    # much text it is learned from.
    has_none = not gfile.exists(workdir.tokenizer)
    if FLAGS.vocabulary or has_none or not workdir.is_claimed():
        return None
    return workdir.load_tokenizer()


def choose_model(strategy, num_tokens):
    """Chooses Muon, and for a long text a wider model if bfloat16 is fast."""
    if num_tokens >= _MUON_TOKENS:
        _choose_muon(num_tokens >= _WIDE_TOKENS and _has_bfloat16(strategy))


def _choose_muon(wide):
    names = (
        "preset", "backbone", "precision", "batch_size", "optimizer",
        "learning_rate",
    )  # fmt: skip
    is_given = any(FLAGS[name].present for name in names)
    # The package's models were trained with Muon.
    origin = FLAGS.initialize_from
    is_given = is_given or origin not in (None, *TRAINED)
    if not is_given and not {*model_flags.given()} - {"dropout"}:
        wider = _WIDE if wide and not origin else {}
        for name, value in {**_MUON, **wider}.items():
            FLAGS[name].value = value


def choose(strategy, build, segments):
    """Chooses flags that are not given, by `--minutes`, text and processor."""
    # `build` builds a `Trainer`; the run later builds its own.
    if not FLAGS["precision"].present and _has_bfloat16(strategy):
        FLAGS.precision = "bfloat16"
    seconds, epochs, dropout = _time_training(build, segments)
    is_random = FLAGS.initialize_from is None
    rate = _dropout_for(epochs)
    if is_random and not dropout and FLAGS.dropout is None and rate:
        FLAGS.dropout = rate
        # Dropout takes time, too, and with fewer epochs less may be enough.
        seconds, epochs, _ = _time_training(build, segments)
        FLAGS.dropout = dropout = _dropout_for(epochs)
    is_given, given = FLAGS["max_steps"].present, FLAGS.max_steps
    instead = f" instead of --max_steps={given}" if is_given else ""
    FLAGS.max_steps = max(1, int(epochs * segments.steps_per_epoch))
    _score_epochs()
    if FLAGS.max_eval_tokens is None:
        steps = min(FLAGS.eval_every, FLAGS.max_steps)
        tokens = steps * FLAGS.batch_size * FLAGS.segment_length
        FLAGS.max_eval_tokens = max(2, int(_SCORED_SHARE * tokens))
    is_short = epochs == _most_epochs()
    limit = ", which is enough for such a short text" if is_short else ""
    if is_chief(strategy):
        print(
            f"--minutes={FLAGS.minutes:g}: {FLAGS.max_steps:,} steps"
            f"{instead} of {1e3 * seconds:.0f} ms in {FLAGS.precision}, "
            f"{epochs:.2g} epochs of {len(segments.tokens):,} tokens{limit}; "
            f"dropout {dropout:g}; {FLAGS.batch_size} rows, {FLAGS.optimizer}"
            + (f", hidden_dim {FLAGS.hidden_dim}." if FLAGS.hidden_dim else ".")
        )
        if is_short and is_random:
            print(
                "A model that was trained before needs less text of its kind: "
                f"--initialize_from={' or '.join(TRAINED)}"
            )


def _time_training(build, segments):
    """Returns seconds per step, epochs that fit, and the model's dropout."""
    begin, trainer = time.monotonic(), build()
    strategy, dropout = trainer.strategy, trainer.model.backbone.dropout
    feed, num_steps, total = Feed(segments, strategy), 1, 0.0
    trainer.train(feed.next(1), 1)  # compiles
    while total < _TIMED_SECONDS:
        start = time.monotonic()
        trainer.train(feed.next(num_steps), num_steps)
        # All workers must continue, or stop, after the same step.
        total = _longest(strategy, time.monotonic() - start)
        seconds, num_steps = total / num_steps, 2 * num_steps
    # So that names and weights are the same as with this --max_steps.
    del trainer
    keras.utils.clear_session()
    keras.utils.set_random_seed(FLAGS.seed)
    # Counted twice, because the run builds and compiles its own trainer.
    now = time.monotonic()
    spent = _longest(strategy, now - STARTED + now - begin - 2 * _TIMED_SECONDS)
    minutes = 60 * FLAGS.minutes
    left = max(_TRAINING_SHARE * minutes - spent, _LEAST_SHARE * minutes)
    steps = left / (seconds * (1 + _SCORING_SHARE))
    epochs = min(steps / segments.steps_per_epoch, _most_epochs())
    return seconds, epochs, dropout


def _most_epochs():
    return _FINE_TUNING_EPOCHS if FLAGS.initialize_from else _MOST_EPOCHS


def _longest(strategy, seconds):
    """Returns the largest of the durations of all workers."""
    nanoseconds = gather_integers(strategy, int(1e9 * seconds))
    return int(nanoseconds.max()) / 1e9


def max_test_tokens():
    """Returns the maximum number of test tokens to score; None means all."""
    most = FLAGS.max_eval_tokens
    if FLAGS["max_eval_tokens"].present or FLAGS.minutes is None or not most:
        return most
    tokens = FLAGS.max_steps * FLAGS.batch_size * FLAGS.segment_length
    return max(most, int(_TESTED_SHARE * tokens))


def _has_bfloat16(strategy):
    """Returns whether bfloat16 is fast on the devices of all workers."""
    device = device_of(strategy)
    is_fast = device == "tpu" or (
        device == "cpu" and prefers_tensorflow_matmul("bfloat16", training=True)
    )
    return bool(gather_integers(strategy, is_fast).min())


def _dropout_for(epochs):
    return next(rate for most, rate in _DROPOUTS if epochs <= most)
