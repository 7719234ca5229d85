"""Steps of a training run that are the same for every model."""

import sys

import keras

from txl_keras.data.corpora.files import check_can_write
from txl_keras.data.preparation import tokenizer_hash
from txl_keras.data.step_batches import replica_batch_size
from txl_keras.evaluation.plots import plot_learning_curve
from txl_keras.scripts import data_flags
from txl_keras.scripts import run_length
from txl_keras.scripts import training_flags
from txl_keras.scripts.options import FLAGS
from txl_keras.training.compilation import describe as describe_strategy
from txl_keras.training.loop import TrainingLoop
from txl_keras.training.stopping import EXIT_CODE
from txl_keras.training.strategy import is_chief
from txl_keras.training.strategy import wait_for_all
from txl_keras.workdir import Workdir


def open_workdir(strategy):
    """Checks all that needs no text; returns `Workdir` and `new_length`."""
    training_flags.check_workers(strategy)
    keras.utils.set_random_seed(FLAGS.seed)
    replica_batch_size(FLAGS.eval_batch_size, strategy, "eval_batch_size")
    data_flags.check_outside_text("workdir", FLAGS.workdir)
    workdir = Workdir(FLAGS.workdir)
    workdir.check_has_config()
    if is_chief(strategy):
        check_can_write("workdir", workdir.path)
    return workdir, run_length.keep_plan(workdir)


def start(workdir, text, per_step, new_length, trainer, plan, **settings):
    """Starts a run in a workdir or resumes it; returns its `TrainingLoop`."""
    # `text` is the result of `data_flags.prepare_text`, `per_step` describes a
    # step, and `settings` are further ones of the loop.
    strategy = trainer.strategy
    _claim(workdir, text, trainer)
    loop = TrainingLoop(
        trainer,
        plan,
        workdir=workdir,
        eval_every=FLAGS.eval_every,
        checkpoint_every=FLAGS.checkpoint_every,
        steps_per_execution=FLAGS.steps_per_execution,
        max_to_keep=FLAGS.max_to_keep,
        profile_steps=FLAGS.profile_steps,
        **settings,
    )
    step = loop.restore()
    run_length.extend(new_length, trainer, plan, workdir)
    log(strategy, f"{_describe(workdir, text, trainer)}; {per_step}")
    log(strategy, f"step {step} of {plan.last_step}")
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


def _describe(workdir, text, trainer):
    """Returns what is trained, and on how many replicas."""
    model = trainer.model
    cutoffs = model.get_config()["backbone"]["config"].get("cutoffs")
    tokens = ", ".join(
        f"{len(split.tokens):,} {name}" for name, split in text.splits.items()
    )
    return (
        f"{workdir.path}: {text.corpus.name}, {tokens} tokens, a vocabulary of "
        f"{text.tokenizer.vocabulary_size:,}"
        + (f" (cutoffs {list(cutoffs)})" if cutoffs else "")
        + f"; {model.count_params():,} weights, {FLAGS.precision}\n"
        + describe_strategy(trainer.strategy)
    )


def exit_stopped(loop):
    """Ends the process of a run that was stopped while it trained."""
    strategy, step = loop.trainer.strategy, int(loop.trainer.step.numpy())
    wait_for_all(strategy)
    resume = "run the same command to resume."
    log(strategy, f"Stopped after step {step}; {resume}")
    sys.exit(EXIT_CODE)


def score_best(loop, evaluate, test):
    """Restores the best weights; returns their step and scores."""
    workdir, strategy = loop.workdir, loop.trainer.strategy
    # Until the chief has written everything.
    wait_for_all(strategy)
    log(strategy, "Scoring test and finishing with the best weights.")
    step = workdir.when_present(
        lambda: workdir.restore_weights(loop.trainer.model, "best")
    )
    scores = {"valid": loop.score_at(step)}
    with loop.stop.deferred():
        scores["test"] = evaluate(test)
    if scores["test"] is None:
        log(strategy, "Stopped; run the same command to score test again.")
        sys.exit(EXIT_CODE)
    return step, scores


def draw_curve(unit, loop, step=None, scores=None):
    """Draws the learning curve, maybe with the scores of compressors."""
    path = loop.workdir.file("learning_curve.png")
    plot_learning_curve(loop.workdir.read_metrics(), path, unit, scores)


def log(strategy, text):
    """Prints on the chief worker."""
    if is_chief(strategy):
        print(text, flush=True)
