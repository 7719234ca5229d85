"""Sets the length of a run: `--max_steps`, `--minutes`, and when it resumes."""

import math
import time

from txl_keras.scripts.quiet import STARTED

import keras
import numpy as np

from txl_keras.data.feed import Feed
from txl_keras.layers.compute.target import prefers_tensorflow_matmul
from txl_keras.scripts.options import FLAGS
from txl_keras.training.compilation import device_of
from txl_keras.training.strategy import gather_integers
from txl_keras.training.strategy import is_chief

_TIMED_SECONDS = 4
# Of the minutes of a run; the rest is for scores, a sample and the export at
# its end.
_TRAINING_SHARE = 0.9
# The least of it, where preparing the text took longer than the rest leaves.
_LEAST_SHARE = 0.5
# Shares of the time of training:
_SCORING_SHARE = 0.05  # for scores, until some were made
_RECENT_SHARE = 0.2  # over which the seconds per step are measured
_ERROR_SHARE = 0.04  # by which a plan may be wrong before it is changed
_LAST_SHARE = 0.02  # in which the rate falls to its end, however late it is
# Dropout for up to so many epochs, and the most epochs, after which nothing was
# gained, by trials: docs/reproduction.md. Where there are none the limits lie
# between them.
_DROPOUTS = ((8, 0.0), (18, 0.1), (24, 0.2), (30, 0.3), (math.inf, 0.4))
_MOST_EPOCHS = 40
# Tokens of valid to score, per token of training between two scores. Scoring a
# token takes a third of the time of training on it.
_SCORED_SHARE = 0.15
# Tokens of test to score at the end, per token of training.
_TESTED_SHARE = 0.3


def keep_plan(workdir):
    """Sets the flags that a run recorded; returns a new length that is given.

    `--max_steps`, `--minutes` and what `--minutes` chose come from config.json.
    The new length, by the name of its flag, is for `extend`.
    """
    if not workdir.is_claimed():
        return {}
    config = workdir.read_config()
    kept, new_length = config["flags"], {}
    if "max_steps" not in kept:
        return {}  # not trained here: `Workdir.claim` refuses it
    for name in ("max_steps", "minutes"):
        if name not in FLAGS:
            continue
        before = kept.get(name)
        if FLAGS[name].present and FLAGS[name].value != before:
            new_length[name] = FLAGS[name].value
        FLAGS[name].value = before
    if "minutes" in FLAGS and FLAGS["minutes"].present:
        new_length.pop("max_steps", None)  # which --minutes replaces
    if kept.get("minutes") is not None:
        for name in ("precision", "max_eval_tokens"):
            if not FLAGS[name].present:
                FLAGS[name].value = kept[name]
        if FLAGS.dropout is None:
            FLAGS.dropout = config["model"]["backbone"]["config"]["dropout"]
    return new_length


def choose(strategy, build, segments):
    """Chooses flags that are not given, by `--minutes`, text and processor."""
    # `build` builds a `Trainer`, not the one that the run uses, and its plan.
    if not FLAGS["precision"].present and _has_bfloat16(strategy):
        FLAGS.precision = "bfloat16"
    if FLAGS.max_eval_tokens is None:
        tokens = FLAGS.eval_every * FLAGS.batch_size * FLAGS.segment_length
        FLAGS.max_eval_tokens = max(2, int(_SCORED_SHARE * tokens))
    seconds, epochs, dropout = _time_training(build, segments)
    chosen = _dropout_for(epochs)
    if not dropout and FLAGS.dropout is None and chosen:
        FLAGS.dropout = chosen
        # It takes time, too, and fewer epochs may need less of it.
        seconds, epochs, _ = _time_training(build, segments)
        FLAGS.dropout = dropout = _dropout_for(epochs)
    epochs = min(epochs, _MOST_EPOCHS)
    instead = ""
    if FLAGS["max_steps"].present:
        instead = f" instead of --max_steps={FLAGS.max_steps}"
    FLAGS.max_steps = max(1, int(epochs * segments.steps_per_epoch))
    limit = ""
    if epochs == _MOST_EPOCHS:
        limit = ", which is enough for so short a text"
    if is_chief(strategy):
        print(
            f"--minutes={FLAGS.minutes:g}: {FLAGS.max_steps:,} steps"
            f"{instead} of {1e3 * seconds:.0f} ms in {FLAGS.precision}, "
            f"{epochs:.2g} epochs of {len(segments.tokens):,} tokens{limit}; "
            f"dropout {dropout:g}."
        )


def max_test_tokens():
    """Returns the most tokens of test to score, or `None` for all."""
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


def extend(new_length, trainer, plan, workdir):
    """Gives a restored run the new length that `keep_plan` returned."""
    step, last = int(trainer.step.numpy()), plan.last_step
    seconds = float(plan.variables["seconds"].numpy())
    budget = plan.variables["budget"]
    if step == 0 and "minutes" in FLAGS and FLAGS.minutes is not None:
        budget.assign(training_seconds(time.monotonic() - STARTED))
    if "minutes" in new_length:
        time_asked = 60 * _TRAINING_SHARE * new_length["minutes"]
        if time_asked == float(budget.numpy()):
            return  # an earlier command asked for it
        if seconds >= time_asked:
            raise ValueError(
                "`minutes` must be more than the run has trained, about "
                f"{seconds / 60 / _TRAINING_SHARE:.2g}. Received: "
                f"--minutes={new_length['minutes']:g}"
            )
        budget.assign(time_asked)
        if seconds:
            # A first guess, which `Pace` improves.
            last = step + math.ceil((time_asked - seconds) * step / seconds)
    elif "max_steps" in new_length:
        last = new_length["max_steps"]
        budget.assign(0.0)
    if last == plan.last_step:
        return
    if last <= step:
        raise ValueError(
            "`max_steps` must be more than the steps that the run has done, "
            f"{step:,}. Received: --max_steps={last}"
        )
    updates = int(trainer.optimizer.iterations.numpy())
    before, is_longer = plan.last_step, last > plan.last_step
    plan.change(updates, step, last, begins_again=is_longer)
    if is_chief(trainer.strategy):
        workdir.remove_results()
        print(
            f"The run goes on to step {last:,} instead of {before:,}; its "
            f"learning rate is {float(plan(updates)):.3g} now and ends there."
        )


class Pace:
    """Keeps a run within its minutes: changes its last step as it goes."""

    # Called at each line of metrics.jsonl.

    def __init__(self, plan, trainer, segments):
        self._plan = plan
        self._trainer = trainer
        self._segments = segments
        # Steps and seconds so far, from the end of the first steps, which
        # compile.
        self._points = []

    def __call__(self, step):
        """Counts time; returns words about a change, or an empty string."""
        seconds, budget = (
            float(self._plan.variables[name].numpy())
            for name in ("seconds", "budget")
        )
        if not budget or step == self._plan.last_step:
            return ""
        points = self._points
        points.append((step, seconds))
        if len(points) == 1:
            return ""
        # The speed of the latest part, with scores and checkpoints.
        while (
            len(points) > 2 and seconds - points[1][1] > _RECENT_SHARE * budget
        ):
            points.pop(0)
        first_step, first_seconds = points[0]
        cost = (seconds - first_seconds) / (step - first_step)
        if step <= FLAGS.eval_every:  # no score has taken time yet
            cost *= 1 + _SCORING_SHARE
        # The last step that fits, or the planned one if it does.
        last, left = self._plan.last_step, budget - seconds
        late = (last - step) * cost - left
        if abs(late) > _ERROR_SHARE * budget:
            fitting = step + math.ceil(max(left, _LAST_SHARE * budget) / cost)
            most = math.ceil(_MOST_EPOCHS * self._segments.steps_per_epoch)
            last = min(fitting, last if late > 0 else max(last, most))
        # All workers must agree; the one that fits the fewest decides.
        last = gather_integers(self._trainer.strategy, last).min()
        if last == self._plan.last_step:
            return ""
        updates = int(self._trainer.optimizer.iterations.numpy())
        self._plan.change(updates, step, int(last))
        return (
            f"at {1e3 * cost:.0f} ms per step {last:,} steps fit in --minutes, "
            "so the learning rate ends there"
        )


def _dropout_for(epochs):
    return next(rate for most, rate in _DROPOUTS if epochs <= most)


def _time_training(build, segments):
    """Returns seconds per step, epochs that fit, and the model's dropout."""
    start = time.monotonic()
    trainer, _ = build()
    strategy = trainer.strategy
    seconds = _seconds_per_step(trainer, Feed(segments, strategy))
    dropout = trainer.model.backbone.dropout
    # So that names and weights come out as in a run with this --max_steps.
    del trainer
    keras.utils.clear_session()
    keras.utils.set_random_seed(FLAGS.seed)
    # The trainer of the run is built and compiled once more.
    now = time.monotonic()
    again = now - start - _TIMED_SECONDS
    left = training_seconds(_longest(strategy, now - STARTED + again))
    steps = left / (seconds * (1 + _SCORING_SHARE))
    return seconds, steps / segments.steps_per_epoch, dropout


def training_seconds(seconds=0.0):
    """Returns the time of `--minutes` for training, after so many seconds."""
    total = 60 * FLAGS.minutes
    return max(_TRAINING_SHARE * total - seconds, _LEAST_SHARE * total)


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
    nanoseconds = gather_integers(strategy, int(1e9 * seconds))
    return int(nanoseconds.max()) / 1e9
