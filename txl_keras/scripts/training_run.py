"""Steps of a training run that are the same for every model."""

import keras
from absl import flags

from txl_keras.data.preparation import tokenizer_hash
from txl_keras.data.step_batches import replica_batch_size
from txl_keras.evaluation.plots import plot_learning_curve
from txl_keras.scripts import data_flags
from txl_keras.scripts import run_length
from txl_keras.scripts import training_flags
from txl_keras.training.checkpointing import Checkpoints
from txl_keras.training.loop import TrainingLoop
from txl_keras.training.profiler import Profile
from txl_keras.training.progress import Progress
from txl_keras.training.strategy import is_chief
from txl_keras.training.strategy import wait_for_all
from txl_keras.training.tensorboard import TensorBoard
from txl_keras.training.trainer import Trainer
from txl_keras.workdir import Workdir

FLAGS = flags.FLAGS


def begin(strategy):
    """Seeds and checks all that needs no text.

    Returns the `Workdir`, and what `run_length.keep_plan` returns.
    """
    training_flags.check_workers(strategy)
    keras.utils.set_random_seed(FLAGS.seed)
    replica_batch_size(FLAGS.eval_batch_size, strategy, "eval_batch_size")
    data_flags.check_outside_text("workdir", FLAGS.workdir)
    workdir = Workdir(FLAGS.workdir)
    workdir.check_has_config()
    if is_chief(strategy):
        workdir.check_writable()
    return workdir, run_length.keep_plan(workdir)


def build_trainer(strategy, build_model, stop, **options):
    """Builds model, optimizer and `Trainer` of the flags, and the `RunPlan`."""
    with strategy.scope():
        model = build_model()
        plan = training_flags.build_plan()
        optimizer = training_flags.build_optimizer(plan)
    trainer = Trainer(
        model,
        optimizer,
        strategy,
        FLAGS.batch_size,
        clip_norm=FLAGS.clip_norm or None,
        seed=FLAGS.seed,
        accumulate_steps=FLAGS.accumulate_steps,
        stop=stop,
        **options,
    )
    return trainer, plan


def chief_print(strategy):
    """Returns `print` on the chief worker and a no-op on the others."""
    return print if is_chief(strategy) else lambda *_, **__: None


def begin_loop(
    trainer,
    plan,
    segments,
    validate,
    workdir,
    tokenizer,
    splits,
    settings,
    *,
    describe,
    describe_valid=None,
    unit,
    samples=None,
    bytes_per_token=None,
):
    """Claims the workdir and makes its `TrainingLoop`, not yet restored."""
    # `describe` formats nats per token for the progress line, and
    # `describe_valid` (by default the same) those of a validation score; `unit`
    # names a token in the learning curve. `samples` are `Samples` to show after
    # each validation, unless the model cannot write text. `bytes_per_token`:
    # see `TrainingLoop`.

    def on_score(step):
        path = workdir.file("learning_curve.png")
        plot_learning_curve(workdir.read_metrics(), path, unit)
        # At the end there is a sample of the best weights.
        if samples is not None and step < plan.last_step:
            samples.show(step, progress, tensorboard)

    strategy = trainer.strategy
    # `--minutes` may have chosen `max_steps`.
    profile = Profile(workdir.events, FLAGS.profile_steps, FLAGS.max_steps)
    _claim(workdir, settings, trainer.model, tokenizer, splits, strategy)
    checkpoints = Checkpoints(
        workdir.checkpoints,
        trainer,
        FLAGS.max_to_keep,
        workdir.best,
        workdir.run_hash(),
        plan,
    )
    progress = Progress(
        FLAGS.max_steps,
        FLAGS.batch_size * FLAGS.segment_length,
        describe,
        describe_valid or describe,
        is_shown=is_chief(strategy),
    )
    tensorboard = TensorBoard(workdir.events if is_chief(strategy) else None)
    return TrainingLoop(
        trainer,
        segments,
        validate,
        workdir,
        checkpoints,
        plan=plan,
        eval_every=FLAGS.eval_every,
        checkpoint_every=FLAGS.checkpoint_every,
        steps_per_execution=FLAGS.steps_per_execution,
        progress=progress,
        tensorboard=tensorboard,
        profile=profile,
        on_score=on_score,
        bytes_per_token=bytes_per_token,
    )


def _claim(workdir, settings, model, tokenizer, splits, strategy):
    """Claims the workdir for this run, or checks that this run owns it."""
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
            "`workdir` must be a folder that all workers share, such as a "
            "bucket. This worker cannot read the chief's config.json. "
            f"Received: {workdir.path}"
        )
    # Checks that the other workers have the same flags and text.
    workdir.check_config(config)


def run_loop(loop, trainer, stop, pace):
    """Trains to the last step; returns False if stopped before."""
    with stop.deferred():
        is_done = loop.run(pace)
    # Other workers wait until the chief has written everything.
    wait_for_all(trainer.strategy)
    if not is_done:
        reached = int(trainer.step.numpy())
        log = chief_print(trainer.strategy)
        log(f"Stopped after step {reached}; run the same command to resume.")
    return is_done


def score_best(loop, trainer, workdir, evaluate_test, stop):
    """Scores test with the best weights; returns their step and all scores."""
    best_step = workdir.when_present(
        lambda: workdir.restore_weights(trainer.model, "best")
    )
    scores = {"valid": loop.score_at(best_step)}
    with stop.deferred():
        scores["test"] = evaluate_test()
    if scores["test"] is None:
        log = chief_print(trainer.strategy)
        log("Stopped; run the same command to score test again.")
        return None
    return best_step, scores
