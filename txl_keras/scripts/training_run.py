"""What all runs of training do, whatever the model."""

import keras
from absl import flags

from txl_keras.data.preparation import tokenizer_hash
from txl_keras.data.step_batches import replica_batch_size
from txl_keras.scripts import data_flags
from txl_keras.scripts import training_flags
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


def build_loop(
    trainer, segments, evaluate, workdir, checkpoints, describe, **watchers
):
    """Makes the `TrainingLoop` that the flags say.

    Args:
        trainer, segments, evaluate, workdir, checkpoints: See `TrainingLoop`.
        describe: Function of nats a token, what progress shows of them.
        **watchers: `tensorboard` and `profile`, see `TrainingLoop`.

    Returns:
        `TrainingLoop`.
    """
    return TrainingLoop(
        trainer,
        segments,
        evaluate,
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
            is_shown=is_chief(trainer.strategy),
        ),
        **watchers,
    )


def claim(workdir, settings, model, tokenizer, splits, strategy):
    """Makes the workdir that of this run, or sees that it is.

    Args:
        workdir: `Workdir`.
        settings: Dictionary of the flags that make the results of the run.
        model: The model.
        tokenizer: The tokenizer.
        splits: Dictionary of split to `PreparedSplit`.
        strategy: The `tf.distribute.Strategy`.

    Raises:
        ValueError: If a run of another configuration lives there, or not all
            workers see the folder.
        OSError: If another process trains there.
    """
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
