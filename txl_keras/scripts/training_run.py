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


class TrainingRun:
    """Holds the workdir, `Trainer`, `RunPlan` and `TrainingLoop` of a run."""

    def __init__(self, strategy, stop):
        """Seeds and checks all that needs no text."""
        self.strategy = strategy
        self.stop = stop
        training_flags.check_workers(strategy)
        keras.utils.set_random_seed(FLAGS.seed)
        replica_batch_size(FLAGS.eval_batch_size, strategy, "eval_batch_size")
        data_flags.check_outside_text("workdir", FLAGS.workdir)
        self.workdir = Workdir(FLAGS.workdir)
        self.workdir.check_has_config()
        if is_chief(strategy):
            self.workdir.check_writable()
        self._asked = run_length.keep_plan(self.workdir)
        self.trainer = self.plan = self.loop = None

    def log(self, text):
        """Prints on the chief worker."""
        if is_chief(self.strategy):
            print(text, flush=True)

    def build_trainer(self, build_model, **options):
        """Builds the model, the optimizer and the `Trainer` of the flags."""
        self.trainer = self.plan = None  # frees those of an earlier call
        with self.strategy.scope():
            model = build_model()
            self.plan = training_flags.build_plan()
            optimizer = training_flags.build_optimizer(self.plan)
        self.trainer = Trainer(
            model,
            optimizer,
            self.strategy,
            FLAGS.batch_size,
            clip_norm=FLAGS.clip_norm or None,
            seed=FLAGS.seed,
            accumulate_steps=FLAGS.accumulate_steps,
            stop=self.stop,
            **options,
        )
        return self.trainer

    def begin_loop(
        self,
        segments,
        validate,
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
        """Claims the workdir and makes the `TrainingLoop`, not yet restored."""
        # `describe` formats nats per token for the progress line, and
        # `describe_valid` (by default the same) those of a validation score;
        # `unit` names a token in the learning curve. `samples` are `Samples` to
        # show after each validation, unless the model cannot write text.
        # `bytes_per_token`: see `TrainingLoop`.
        workdir = self.workdir

        def on_score(step):
            path = workdir.file("learning_curve.png")
            plot_learning_curve(workdir.read_metrics(), path, unit)
            # At the end there is a sample of the best weights.
            if samples is not None and step < self.plan.last_step:
                samples.show(step, progress, tensorboard)

        # `--minutes` may have chosen `max_steps`.
        profile = Profile(workdir.events, FLAGS.profile_steps, FLAGS.max_steps)
        self._claim(settings, tokenizer, splits)
        checkpoints = Checkpoints(
            workdir.checkpoints,
            self.trainer,
            FLAGS.max_to_keep,
            workdir.best,
            workdir.run_hash(),
            self.plan,
        )
        chief = is_chief(self.strategy)
        progress = Progress(
            FLAGS.max_steps,
            FLAGS.batch_size * FLAGS.segment_length,
            describe,
            describe_valid or describe,
            is_shown=chief,
        )
        tensorboard = TensorBoard(workdir.events if chief else None)
        self.loop = TrainingLoop(
            self.trainer,
            segments,
            validate,
            workdir,
            checkpoints,
            plan=self.plan,
            eval_every=FLAGS.eval_every,
            checkpoint_every=FLAGS.checkpoint_every,
            steps_per_execution=FLAGS.steps_per_execution,
            progress=progress,
            tensorboard=tensorboard,
            profile=profile,
            on_score=on_score,
            bytes_per_token=bytes_per_token,
        )

    def _claim(self, settings, tokenizer, splits):
        """Claims the workdir for this run, or checks that this run owns it."""
        config = {
            "flags": settings,
            "model": self.trainer.model.get_config(),
            "tokenizer": tokenizer_hash(tokenizer),
            "corpus": data_flags.corpus_options(),
            "data": {name: s.fingerprint() for name, s in splits.items()},
        }
        if is_chief(self.strategy):
            self.workdir.claim(config, tokenizer)
        wait_for_all(self.strategy)
        if not self.workdir.is_claimed():
            raise ValueError(
                "`workdir` must be a folder that all workers share, such as a "
                "bucket. This worker cannot read the chief's config.json. "
                f"Received: {self.workdir.path}"
            )
        # Checks that the other workers have the same flags and text.
        self.workdir.check_config(config)

    def restore(self, describe_start):
        """Restores the newest checkpoint, and prints where the run is."""
        step = self.loop.restore()
        run_length.extend(self._asked, self.trainer, self.plan, self.workdir)
        self.log(describe_start())
        self.log(f"step {step} of {self.plan.last_step}")

    def is_finished(self):
        """Returns whether all is done, with a message."""
        step = int(self.trainer.step.numpy())
        is_done = step == self.plan.last_step and self.workdir.is_finished()
        if is_done:
            self.log(
                "The run is finished. To train it for longer, give more "
                "--max_steps."
            )
        return is_done

    def train(self, segments):
        """Trains to the last step; returns False if stopped before."""
        pace = run_length.Pace(self.plan, self.trainer, segments)
        with self.stop.deferred():
            is_done = self.loop.run(pace)
        # Other workers wait until the chief has written everything.
        wait_for_all(self.strategy)
        if not is_done:
            reached = int(self.trainer.step.numpy())
            self.log(
                f"Stopped after step {reached}; run the same command to resume."
            )
        return is_done

    def score_best(self, evaluate_test):
        """Scores the best weights; returns their step and scores, or `None`."""
        best_step = self.workdir.when_present(
            lambda: self.workdir.restore_weights(self.trainer.model, "best")
        )
        scores = {"valid": self.loop.score_at(best_step)}
        with self.stop.deferred():
            scores["test"] = evaluate_test()
        if scores["test"] is None:
            self.log("Stopped; run the same command to score test again.")
            return None
        return best_step, scores
