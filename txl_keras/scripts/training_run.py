"""Steps of a training run that are the same for every model."""

import functools
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
from txl_keras.training.stopping import StopRequest
from txl_keras.training.strategy import create_strategy
from txl_keras.training.strategy import is_chief
from txl_keras.training.strategy import wait_for_all
from txl_keras.workdir import Workdir


def run(train):
    """Calls `train(workdir, strategy, stop)`, which trains and scores."""
    strategy = create_strategy(FLAGS.tpu, FLAGS.num_cpu_devices)
    # In a cluster TensorFlow installs its own signal handler, so this one must
    # be installed after the strategy is created.
    with StopRequest() as stop:
        # Check everything that needs no text first.
        training_flags.check_workers(strategy)
        keras.utils.set_random_seed(FLAGS.seed)
        for name in ("batch_size", "eval_batch_size"):
            replica_batch_size(FLAGS[name].value, strategy, name)
        data_flags.check_outside_text("workdir", FLAGS.workdir)
        workdir = Workdir(FLAGS.workdir)
        if is_chief(strategy):
            check_can_write("workdir", workdir.path)
        run_length.keep_length(workdir)
        train(workdir, strategy, stop)
        wait_for_all(strategy)


def start(workdir, text, per_step, unit, trainer, on_score=(), **settings):
    """Starts a run in a workdir or resumes it; returns its `TrainingLoop`."""
    # `per_step` describes a step, `unit` is the unit of the learning curve,
    # and `settings` are further arguments of the loop.
    strategy, model = trainer.strategy, trainer.model
    _claim(workdir, text, trainer)
    loop = TrainingLoop(
        trainer,
        workdir=workdir,
        on_score=(functools.partial(draw_curve, unit), *on_score),
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
        longer = (
            "To train it for longer, give more --max_steps and no --minutes."
        )
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
    strategy, step, scores = loop.trainer.strategy, None, {"test": None}
    is_trained = loop.run()
    # Wait until the chief has written everything.
    wait_for_all(strategy)
    if is_trained:
        log(strategy, "Scoring test and finishing with the best weights.")
        best = loop.workdir.best()
        best.restore_weights(loop.trainer.model)
        step = best.training["step"]
        if not step:
            log(
                strategy,
                "No step improved the weights of --initialize_from. Try a "
                "lower --learning_rate, in a new --workdir.",
            )
        with loop.stop.deferred():
            scores = {"valid": loop.score_at(step), "test": evaluate(test)}
    if scores["test"] is None:
        done = int(loop.trainer.step.numpy())
        log(
            strategy,
            f"Stopped after step {done}; run the same command to resume.",
        )
        sys.exit(EXIT_CODE)
    return step, scores


def draw_curve(unit, loop, step=None, scores=None):
    """Draws the learning curve, optionally with compressors' scores."""
    path = loop.workdir.file("learning_curve.png")
    plot_learning_curve(loop.workdir.read_metrics(), path, unit, scores)


def written(workdir):
    """Returns a line that lists the files of a run."""
    names = sorted(tf.io.gfile.listdir(workdir.path))
    return f"Written to {workdir.path}: {', '.join(names)}"


def log(strategy, text):
    """Prints on the chief worker."""
    if is_chief(strategy):
        print(text, flush=True)
