"""What all runs of training do, whatever the model."""

import keras
from absl import flags

from txl_keras.data.preparation import tokenizer_hash
from txl_keras.data.step_batches import replica_batch_size
from txl_keras.scripts import data_flags
from txl_keras.scripts import training_flags
from txl_keras.training.checkpointing import Checkpoints
from txl_keras.training.loop import TrainingLoop
from txl_keras.training.profiler import Profile
from txl_keras.training.progress import Progress
from txl_keras.training.strategy import is_chief
from txl_keras.training.strategy import wait_for_all
from txl_keras.training.workdir import Workdir

FLAGS = flags.FLAGS


def begin(strategy):
    """Checks what can be known before the text is read, and seeds.

    Args:
        strategy: The `tf.distribute.Strategy`.

    Returns:
        The pair of `Workdir` and `Profile`.

    Raises:
        ValueError: If a flag is out of its range, or workers differ in them,
            or the workdir has lost its configuration.
        OSError: If the workdir cannot be written.
    """
    training_flags.check_workers(strategy)
    keras.utils.set_random_seed(FLAGS.seed)
    replica_batch_size(FLAGS.eval_batch_size, strategy, "eval_batch_size")
    data_flags.check_outside_text("workdir", FLAGS.workdir)
    workdir = Workdir(FLAGS.workdir)
    workdir.check_has_config()
    if is_chief(strategy):
        workdir.check_writable()
    profile = Profile(workdir.events, FLAGS.profile_steps, FLAGS.max_steps)
    return workdir, profile


def speaker(strategy):
    """`print`; of several workers only the chief's says anything."""
    return print if is_chief(strategy) else _say_nothing


def _say_nothing(*_, **__):
    pass


def begin_loop(
    trainer,
    segments,
    validate,
    workdir,
    tokenizer,
    splits,
    settings,
    *,
    describe,
    tensorboard,
    profile,
):
    """Claims the workdir and makes the loop that trains in it.

    Args:
        trainer, segments, validate, workdir: See `TrainingLoop`.
        tokenizer: The tokenizer.
        splits: Dictionary of split to `PreparedSplit`.
        settings: Dictionary of the flags that make the results of the run.
        describe: Function of nats per token that returns what progress shows
            of them.
        tensorboard, profile: See `TrainingLoop`.

    Returns:
        `TrainingLoop`, not yet restored.

    Raises:
        ValueError: If a run of another configuration lives there, or not all
            workers see the folder.
        OSError: If another process trains there.
    """
    strategy = trainer.strategy
    _claim(workdir, settings, trainer.model, tokenizer, splits, strategy)
    checkpoints = Checkpoints(
        workdir.checkpoints,
        trainer,
        FLAGS.max_to_keep,
        workdir.best,
        workdir.run_hash(),
    )
    return TrainingLoop(
        trainer,
        segments,
        validate,
        workdir,
        checkpoints,
        max_steps=FLAGS.max_steps,
        eval_every=FLAGS.eval_every,
        checkpoint_every=FLAGS.checkpoint_every,
        steps_per_execution=FLAGS.steps_per_execution,
        progress=Progress(
            FLAGS.max_steps,
            FLAGS.batch_size * FLAGS.segment_length,
            describe,
            is_shown=is_chief(strategy),
        ),
        tensorboard=tensorboard,
        profile=profile,
    )


def _claim(workdir, settings, model, tokenizer, splits, strategy):
    """Makes the workdir that of this run, or checks that it is."""
    config = {
        "flags": settings,
        "model": model.get_config(),
        "tokenizer": tokenizer_hash(tokenizer),
        "corpus": data_flags.corpus_options(),
        "data": {name: s.fingerprint() for name, s in splits.items()},
    }
    if is_chief(strategy):
        workdir.claim(config, tokenizer)
    wait_for_all(strategy)
    if not workdir.is_claimed():
        raise ValueError(
            "`workdir` must be a folder that all workers see, such as a "
            f"bucket. This one does not see the chief's: {workdir.path}"
        )
    # Of the other workers: do they have the same flags and text?
    workdir.check_config(config)


def run_loop(loop, trainer, stop):
    """Trains to the last step; returns false if it was stopped.

    Args:
        loop: `TrainingLoop`, restored.
        trainer: Its `Trainer`.
        stop: `StopRequest`.
    """
    with stop.deferred():
        is_done = loop.run()
    # Before others go on, or leave, the chief has written all.
    wait_for_all(trainer.strategy)
    if not is_done:
        reached = int(trainer.step.numpy())
        say = speaker(trainer.strategy)
        say(f"Stopped after step {reached}; the same command goes on there.")
    return is_done


def score_best(loop, trainer, workdir, evaluate_test, stop):
    """Scores test with the best weights, which the model then has.

    Args:
        loop, trainer, stop: See `run_loop`.
        workdir: `Workdir`.
        evaluate_test: Function without arguments that returns the scores of
            test; `None` if it was stopped.

    Returns:
        The pair of the best step and a dictionary of split to scores; `None`
        if it was stopped.
    """
    best_step = workdir.restore_weights(trainer.model, "best")
    scores = {"valid": loop.score_at(best_step)}
    with stop.deferred():
        scores["test"] = evaluate_test()
    if scores["test"] is None:
        say = speaker(trainer.strategy)
        say("Stopped; the same command scores test again.")
        return None
    return best_step, scores
