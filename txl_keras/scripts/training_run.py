"""Steps of a training run that are the same for every model."""

import sys

import keras
import tensorflow as tf

from txl_keras.compilation import describe as describe_strategy
from txl_keras.data.corpora.files import check_can_write
from txl_keras.data.preparation import tokenizer_hash
from txl_keras.data.step_batches import replica_batch_size
from txl_keras.evaluation.plots import plot_learning_curve
from txl_keras.scripts import data_flags
from txl_keras.scripts import run_length
from txl_keras.scripts import training_flags
from txl_keras.scripts.options import FLAGS
from txl_keras.training.loop import TrainingLoop
from txl_keras.training.stopping import EXIT_CODE
from txl_keras.training.strategy import is_chief
from txl_keras.training.strategy import wait_for_all
from txl_keras.workdir import Workdir


def open_workdir(strategy):
    """Checks all that needs no text, and returns the `Workdir`."""
    training_flags.check_workers(strategy)
    keras.utils.set_random_seed(FLAGS.seed)
    replica_batch_size(FLAGS.eval_batch_size, strategy, "eval_batch_size")
    data_flags.check_outside_text("workdir", FLAGS.workdir)
    workdir = Workdir(FLAGS.workdir)
    if is_chief(strategy):
        check_can_write("workdir", workdir.path)
    run_length.keep_length(workdir)
    return workdir


def start(workdir, text, per_step, trainer, **settings):
    """Starts a run in a workdir or resumes it; returns its `TrainingLoop`."""
    # `per_step` describes a step, and `settings` are further ones of the loop.
    strategy, model = trainer.strategy, trainer.model
    _claim(workdir, text, trainer)
    loop = TrainingLoop(
        trainer,
        workdir=workdir,
        **training_flags.Loop.values(),
        **settings,
    )
    step = loop.restore()
    tokens = ", ".join(
        f"{len(split.tokens):,} {name}" for name, split in text.splits.items()
    )
    cutoffs = model.get_config()["backbone"]["config"].get("cutoffs")
    log(
        strategy,
        f"{workdir.path}: {text.corpus.name}, {tokens} tokens, a vocabulary of "
        f"{text.tokenizer.vocabulary_size:,}"
        + (f" (cutoffs {list(cutoffs)})" if cutoffs else "")
        + f"; {model.count_params():,} weights, {FLAGS.precision}\n"
        f"{describe_strategy(strategy)}; {per_step}\n"
        f"step {step} of {loop.max_steps}",
    )
    if loop.is_finished():
        longer = "To train it for longer, give more --max_steps."
        log(strategy, f"The run is finished. {longer}")
    return loop


def _claim(workdir, text, trainer):
    """Claims the workdir for this run, or checks that this run owns it."""
    config = {
        "flags": training_flags.result_settings(),
        "class_name": type(trainer.model).__name__,
        "model": trainer.model.get_config(),
        "tokenizer": tokenizer_hash(text.tokenizer),
        "corpus": data_flags.corpus_options(),
        "data": {name: s.fingerprint() for name, s in text.splits.items()},
    }
    if is_chief(trainer.strategy):
        workdir.claim(config, text.tokenizer)
    wait_for_all(trainer.strategy)
    if not workdir.is_claimed():
        raise ValueError(
            "`workdir` must be a folder that all workers share, such as a "
            "bucket. This worker cannot read the chief's config.json. "
            f"Received: {workdir.path}"
        )
    # Checks that the other workers have the same flags and text.
    workdir.check_config(config)


def train_and_score(loop, evaluate, test):
    """Trains to the end; returns the step of the best weights and scores."""
    workdir, strategy = loop.workdir, loop.trainer.strategy
    if not loop.run():
        wait_for_all(strategy)
        step = int(loop.trainer.step.numpy())
        _exit(strategy, f"after step {step}; run the same command to resume.")
    # Until the chief has written everything.
    wait_for_all(strategy)
    log(strategy, "Scoring test and finishing with the best weights.")
    step = workdir.best().restore_weights(loop.trainer.model)
    scores = {"valid": loop.score_at(step)}
    with loop.stop.deferred():
        scores["test"] = evaluate(test)
    if scores["test"] is None:
        _exit(strategy, "before test was scored; run the same command again.")
    return step, scores


def _exit(strategy, words):
    log(strategy, f"Stopped {words}")
    sys.exit(EXIT_CODE)


def draw_curve(unit, loop, step=None, scores=None):
    """Draws the learning curve, maybe with the scores of compressors."""
    path = loop.workdir.file("learning_curve.png")
    plot_learning_curve(loop.workdir.read_metrics(), path, unit, scores)


def written(workdir, *names):
    """Returns words for those of the files that a run has written."""
    found = [name for name in names if tf.io.gfile.exists(workdir.file(name))]
    return f"Written to {workdir.path}: {', '.join(found)}"


def log(strategy, text):
    """Prints on the chief worker."""
    if is_chief(strategy):
        print(text, flush=True)
