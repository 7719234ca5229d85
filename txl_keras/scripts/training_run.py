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
from txl_keras.training import strategy as strategies
from txl_keras.training.checkpointing import Checkpoints
from txl_keras.training.compilation import describe as describe_strategy
from txl_keras.training.loop import TrainingLoop
from txl_keras.training.profiler import Profile
from txl_keras.training.progress import Progress
from txl_keras.training.stopping import EXIT_CODE
from txl_keras.training.stopping import StopRequest
from txl_keras.training.tensorboard import TensorBoard
from txl_keras.workdir import Workdir


class TrainingRun:
    """Trains a model on a text; a subclass for each kind of model."""

    # A subclass sets `corpus`, `tokenizer`, `splits`, the `segments` to train
    # on and the held-out ones `valid` and `test`; `unit`, how a learning curve
    # names a token; `per_step`, what a step is, in words; and maybe the mean
    # bytes of a token of train and valid. Its methods are `build_model()`;
    # `evaluate(segments)`, which returns scores, or `None` if it was stopped;
    # `describe(nll, split)` and `describe_results()`, which return words;
    # `finish(step, scores)`, which writes what the best weights give, and may
    # add to their scores; and maybe `on_score(step)`, called after a score.
    bytes_per_token = None

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
            check_can_write("workdir", self.workdir.path)
        self._asked = run_length.keep_plan(self.workdir)
        self.trainer = self.plan = self.loop = None

    def log(self, text):
        """Prints on the chief worker."""
        if strategies.is_chief(self.strategy):
            print(text, flush=True)

    def build_trainer(self):
        """Builds the model, the optimizer and the `Trainer` of the flags."""
        self.trainer = self.plan = None  # frees those of an earlier call
        with self.strategy.scope():
            model = self.build_model()
            optimizer, self.plan = training_flags.build_optimizer()
        self.trainer = training_flags.build_trainer(
            model,
            optimizer,
            self.strategy,
            FLAGS.batch_size,
            stop=self.stop,
        )
        return self.trainer

    def train(self):
        """Trains and finishes the run; returns False if it was stopped."""
        self._claim()
        self.loop = self._make_loop()
        step = self.loop.restore()
        run_length.extend(self._asked, self.trainer, self.plan, self.workdir)
        self.log(self._describe())
        self.log(f"step {step} of {self.plan.last_step}")
        if step == self.plan.last_step and self.workdir.is_finished():
            self.log(
                "The run is finished. To train it for longer, give more "
                "--max_steps."
            )
            self.log(self.describe_results())
            return True
        pace = run_length.Pace(self.plan, self.trainer, self.segments)
        with self.stop.deferred():
            is_done = self.loop.run(pace)
        # Other workers wait until the chief has written everything.
        strategies.wait_for_all(self.strategy)
        if not is_done:
            reached = int(self.trainer.step.numpy())
            self.log(
                f"Stopped after step {reached}; run the same command to resume."
            )
            return False
        self.log("Scoring test and finishing with the best weights.")
        best_step = self.workdir.when_present(
            lambda: self.workdir.restore_weights(self.trainer.model, "best")
        )
        scores = {"valid": self.loop.score_at(best_step)}
        with self.stop.deferred():
            scores["test"] = self.evaluate(self.test)
        if scores["test"] is None:
            self.log("Stopped; run the same command to score test again.")
            return False
        if strategies.is_chief(self.strategy):
            self.finish(best_step, scores)
            self.workdir.write_results({"step": best_step, **scores})
            self.log(self.describe_results())
        strategies.wait_for_all(self.strategy)
        return True

    def _make_loop(self):
        workdir = self.workdir
        chief = strategies.is_chief(self.strategy)
        return TrainingLoop(
            self.trainer,
            self.segments,
            lambda: self.evaluate(self.valid),
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
            # `--minutes` may have chosen `max_steps`.
            progress=Progress(FLAGS.max_steps, self.describe, is_shown=chief),
            tensorboard=TensorBoard(workdir.events if chief else None),
            profile=Profile(
                workdir.events, FLAGS.profile_steps, FLAGS.max_steps
            ),
            on_score=self.on_score,
            bytes_per_token=self.bytes_per_token,
        )

    def on_score(self, step):
        """Shows what the model does after a validation score."""
        self.plot()

    def plot(self, scores=None):
        """Draws the learning curve, maybe with the scores of compressors."""
        path = self.workdir.file("learning_curve.png")
        metrics = self.workdir.read_metrics()
        plot_learning_curve(metrics, path, self.unit, scores)

    def _claim(self):
        """Claims the workdir for this run, or checks that this run owns it."""
        config = {
            "flags": training_flags.result_settings(),
            "class_name": type(self.trainer.model).__name__,
            "model": self.trainer.model.get_config(),
            "tokenizer": tokenizer_hash(self.tokenizer),
            "corpus": data_flags.corpus_options(),
            "data": {name: s.fingerprint() for name, s in self.splits.items()},
        }
        if strategies.is_chief(self.strategy):
            self.workdir.claim(config, self.tokenizer)
        strategies.wait_for_all(self.strategy)
        if not self.workdir.is_claimed():
            raise ValueError(
                "`workdir` must be a folder that all workers share, such as a "
                "bucket. This worker cannot read the chief's config.json. "
                f"Received: {self.workdir.path}"
            )
        # Checks that the other workers have the same flags and text.
        self.workdir.check_config(config)

    def _describe(self):
        """Returns what is trained, and on how many replicas."""
        model = self.trainer.model
        config = model.get_config()["backbone"]["config"]
        cutoffs = config.get("cutoffs")
        tokens = ", ".join(
            f"{len(split.tokens):,} {name}"
            for name, split in self.splits.items()
        )
        return (
            f"{self.workdir.path}: {self.corpus.name}, {tokens} tokens, a "
            f"vocabulary of {self.tokenizer.vocabulary_size:,}"
            + (f" (cutoffs {list(cutoffs)})" if cutoffs else "")
            + f"; {model.count_params():,} weights, {FLAGS.precision}\n"
            f"{describe_strategy(self.strategy)}; {self.per_step}"
        )


def main(make):
    """Trains `make(strategy, stop)`; exits with a code if it was stopped."""
    strategy = strategies.create_strategy(FLAGS.tpu, FLAGS.num_cpu_devices)
    # In a cluster TensorFlow installs its own signal handler, so this one must
    # be installed after the strategy is created.
    with StopRequest() as stop:
        if not make(strategy, stop).train():
            sys.exit(EXIT_CODE)
