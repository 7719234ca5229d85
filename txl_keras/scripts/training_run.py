"""Steps of a training run that are the same for every model."""

import sys

import keras
from absl import flags

from txl_keras.data.preparation import tokenizer_hash
from txl_keras.data.step_batches import replica_batch_size
from txl_keras.evaluation.plots import plot_learning_curve
from txl_keras.scripts import data_flags
from txl_keras.scripts import run_length
from txl_keras.scripts import training_flags
from txl_keras.training import strategy as strategies
from txl_keras.training.checkpointing import Checkpoints
from txl_keras.training.compilation import describe as describe_strategy
from txl_keras.training.loop import TrainingLoop
from txl_keras.training.profiler import Profile
from txl_keras.training.progress import Progress
from txl_keras.training.stopping import EXIT_CODE
from txl_keras.training.stopping import StopRequest
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
        if strategies.is_chief(strategy):
            self.workdir.check_writable()
        self._asked = run_length.keep_plan(self.workdir)
        self.trainer = self.plan = self.loop = None

    def log(self, text):
        """Prints on the chief worker."""
        if strategies.is_chief(self.strategy):
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

    def complete(
        self,
        corpus,
        tokenizer,
        splits,
        segments,
        settings,
        *,
        evaluate,
        valid,
        test,
        describe,
        describe_valid=None,
        unit,
        per_step,
        finish,
        describe_results,
        samples=None,
        bytes_per_token=None,
    ):
        """Trains and finishes the run; returns False if it was stopped."""
        # `evaluate` scores the segments `valid` and `test`. `describe` formats
        # nats per token for the progress line, and `describe_valid` (by default
        # the same) those of a validation score; `unit` names a token in the
        # learning curve and `per_step` describes a step. `finish` takes the
        # best step and its scores, to which it may add, with the best weights
        # in the model. `samples` are `Samples` to show after each validation,
        # unless the model cannot write text. `bytes_per_token`: see
        # `TrainingLoop`.
        workdir = self.workdir

        def on_score(step):
            path = workdir.file("learning_curve.png")
            plot_learning_curve(workdir.read_metrics(), path, unit)
            # At the end there is a sample of the best weights.
            if samples is not None and step < self.plan.last_step:
                samples.show(step, loop.progress, loop.tensorboard)

        # `--minutes` may have chosen `max_steps`.
        profile = Profile(workdir.events, FLAGS.profile_steps, FLAGS.max_steps)
        self._claim(settings, tokenizer, splits)
        chief = strategies.is_chief(self.strategy)
        self.loop = loop = TrainingLoop(
            self.trainer,
            segments,
            lambda: evaluate(valid),
            workdir,
            Checkpoints(
                workdir.checkpoints,
                self.trainer,
                FLAGS.max_to_keep,
                workdir.save_best,
                workdir.run_hash(),
                self.plan,
            ),
            plan=self.plan,
            eval_every=FLAGS.eval_every,
            checkpoint_every=FLAGS.checkpoint_every,
            steps_per_execution=FLAGS.steps_per_execution,
            progress=Progress(
                FLAGS.max_steps,
                describe,
                describe_valid or describe,
                is_shown=chief,
            ),
            tensorboard=TensorBoard(workdir.events if chief else None),
            profile=profile,
            on_score=on_score,
            bytes_per_token=bytes_per_token,
        )
        step = loop.restore()
        run_length.extend(self._asked, self.trainer, self.plan, workdir)
        self.log(self._describe(corpus, tokenizer, splits) + per_step)
        self.log(f"step {step} of {self.plan.last_step}")
        if step == self.plan.last_step and workdir.is_finished():
            self.log(
                "The run is finished. To train it for longer, give more "
                "--max_steps."
            )
            self.log(describe_results())
            return True
        pace = run_length.Pace(self.plan, self.trainer, segments)
        with self.stop.deferred():
            is_done = loop.run(pace)
        # Other workers wait until the chief has written everything.
        strategies.wait_for_all(self.strategy)
        if not is_done:
            reached = int(self.trainer.step.numpy())
            self.log(
                f"Stopped after step {reached}; run the same command to resume."
            )
            return False
        self.log("Scoring test and finishing with the best weights.")
        best_step = workdir.when_present(
            lambda: workdir.restore_weights(self.trainer.model, "best")
        )
        scores = {"valid": loop.score_at(best_step)}
        with self.stop.deferred():
            scores["test"] = evaluate(test)
        if scores["test"] is None:
            self.log("Stopped; run the same command to score test again.")
            return False
        if chief:
            finish(best_step, scores)
            workdir.write_results({"step": best_step, **scores})
            self.log(describe_results())
        strategies.wait_for_all(self.strategy)
        return True

    def _claim(self, settings, tokenizer, splits):
        """Claims the workdir for this run, or checks that this run owns it."""
        config = {
            "flags": settings,
            "class_name": type(self.trainer.model).__name__,
            "model": self.trainer.model.get_config(),
            "tokenizer": tokenizer_hash(tokenizer),
            "corpus": data_flags.corpus_options(),
            "data": {name: s.fingerprint() for name, s in splits.items()},
        }
        if strategies.is_chief(self.strategy):
            self.workdir.claim(config, tokenizer)
        strategies.wait_for_all(self.strategy)
        if not self.workdir.is_claimed():
            raise ValueError(
                "`workdir` must be a folder that all workers share, such as a "
                "bucket. This worker cannot read the chief's config.json. "
                f"Received: {self.workdir.path}"
            )
        # Checks that the other workers have the same flags and text.
        self.workdir.check_config(config)

    def _describe(self, corpus, tokenizer, splits):
        """Returns what is trained, and on how many replicas."""
        model = self.trainer.model
        config = model.get_config()["backbone"]["config"]
        cutoffs = config.get("cutoffs")
        tokens = ", ".join(
            f"{len(split.tokens):,} {name}" for name, split in splits.items()
        )
        return (
            f"{self.workdir.path}: {corpus.name}, {tokens} tokens, a "
            f"vocabulary of {tokenizer.vocabulary_size:,}"
            + (f" (cutoffs {list(cutoffs)})" if cutoffs else "")
            + f"; {model.count_params():,} weights, {FLAGS.precision}\n"
            f"{describe_strategy(self.strategy)}; "
        )


def main(train):
    """Calls `train(strategy, stop)`; exits with a code if it was stopped."""
    strategy = strategies.create_strategy(FLAGS.tpu, FLAGS.num_cpu_devices)
    # In a cluster TensorFlow installs its own signal handler, so this one must
    # be installed after the strategy is created.
    with StopRequest() as stop:
        if not train(strategy, stop):
            sys.exit(EXIT_CODE)
