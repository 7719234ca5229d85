"""The training loop: steps, metrics, validation and checkpoints."""

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from txl_keras.data import Segments
from txl_keras.data.step_batches import Feed
from txl_keras.metrics import bits_per_token
from txl_keras.training.checkpointing import Checkpoints
from txl_keras.training.progress import Progress
from txl_keras.training.progress import TensorBoard
from txl_keras.training.stopping import StopRequest
from txl_keras.training.strategy import gather_integers
from txl_keras.training.strategy import is_chief
from txl_keras.training.trainer import Trainer
from txl_keras.training.utilization import device_memory

# Longest call from the host, during which no signal is received. Clouds give 30
# seconds from the signal to the end of the machine.
_MOST_SECONDS = 5


@dataclasses.dataclass
class TrainingLoop:
    """Trains until the last step, or until stopped.

    If several things are due at a step, their order is: 1. the training line in
    metrics.jsonl, 2. the validation score, 3. the best weights, 4. the line of
    the score, 5. the checkpoint, 6. `on_score`. So all lines due before a
    checkpoint are on disk once it exists. A run that resumes drops and repeats
    later lines. Only the step decides what is due, so a run that was
    killed writes the same lines as any other. With several workers, all run the
    loop and the chief writes.
    """

    trainer: Trainer
    max_steps: int
    segments: Segments
    validate: Callable  # returns scores, `None` if stopped
    workdir: object  # a `Workdir`, which this package may not import
    stop: StopRequest
    eval_every: int
    checkpoint_every: int
    steps_per_execution: int
    describe: Callable  # formats nats per token of a split
    on_score: tuple = ()  # functions of this loop and a step
    max_to_keep: int = 2
    # Mean bytes per token of "train" and "valid", for bits per byte.
    bytes_per_token: dict | None = None
    scores_start: bool = False  # trained weights may be the best

    def __post_init__(self):
        self._is_chief = is_chief(self.trainer.strategy)
        workdir = self.workdir
        self.checkpoints = Checkpoints(
            workdir.checkpoints,
            self.trainer,
            self.max_to_keep,
            workdir.save_best,
            workdir.run_hash(),
        )
        if self._is_chief:
            self.tensorboard = TensorBoard(workdir.events)
            self.progress = Progress(self.max_steps, self.describe)
        # Results of the steps since the last line, and number and duration of
        # those steps that this process ran.
        self._pending = {}
        self._timed_steps, self._seconds = 0, 0.0
        self._first_loss = None
        self._best = math.inf  # nats of the best weights so far

    def restore(self):
        """Restores the newest checkpoint; returns the step to resume from."""
        self._pending = self.checkpoints.restore()
        step = int(self.trainer.step.numpy())
        if self._is_chief:
            self.workdir.drop_metrics_after(step)
        lines = self.workdir.read_metrics()
        losses = (x["loss"] for x in lines if x.get("loss") is not None)
        self._first_loss = next(losses, None)
        # A run may have lost its best weights: see `run`.
        kept = self._scores().get(self.workdir.best_step())
        self._best = kept["nll"] if kept else math.inf
        return step

    def is_finished(self):
        """Returns whether a restored run has nothing left to do."""
        step = int(self.trainer.step.numpy())
        is_scored = self.workdir.is_finished() and self.workdir.best()
        return step == self.max_steps and bool(is_scored)

    def run(self):
        """Trains; returns true at the last step, false if stopped."""
        step = int(self.trainer.step.numpy())
        with self.stop.deferred(), self._closing():
            self._write(lambda: self.progress.update(step))
            # A run may have been stopped before this score.
            is_due = self._is_due(step, self.eval_every)
            is_due = is_due and (step > 0 or self.scores_start)
            if is_due and not (self.workdir.best() and step in self._scores()):
                if not self._score(step, is_restored=True):
                    return False
                self._show(step)
            feed = Feed(self.segments, self.trainer.strategy, first_step=step)
            most_steps = 1
            while step < self.max_steps:
                boundary = self._next_boundary(step)
                num_steps = min(boundary - step, most_steps)
                start = time.monotonic()
                results = self.trainer.train(feed.next(num_steps), num_steps)
                seconds = time.monotonic() - start
                self._keep(results, seconds)
                step += num_steps
                stopped, most_steps = self._agree(num_steps / seconds)
                if step == boundary:
                    self._write_line(step)
                is_scored = False
                if self._is_due(step, self.eval_every) and not stopped:
                    is_scored = self._score(step)
                    stopped = not is_scored
                if self._is_due(step, self.checkpoint_every) or stopped:
                    self.checkpoints.save(self._pending)
                if is_scored:
                    self._show(step)
                if stopped:
                    return False
            return True

    @contextlib.contextmanager
    def _closing(self):
        """Waits for the checkpoint being written, even after an error."""
        try:
            yield
            self.checkpoints.wait()
        except FloatingPointError as error:
            with contextlib.suppress(FloatingPointError, OSError):
                self.checkpoints.wait()
            raise FloatingPointError(
                f"{error} Training stopped; the last good checkpoint: "
                f"{self.checkpoints.latest or 'none yet'}. Lower "
                "--learning_rate or raise --warmup_steps, in a new --workdir."
            ) from error
        except tf.errors.OpError:
            # Another worker was lost, so the process may end immediately.
            self.checkpoints.wait()
            raise
        finally:
            if self._is_chief:
                self.progress.close()

    def _is_due(self, step, every):
        return step % every == 0 or step == self.max_steps

    def _next_boundary(self, step):
        """Returns the next step at which a line is written."""
        every = self.steps_per_execution, self.eval_every, self.checkpoint_every
        return min(self.max_steps, *(step + n - step % n for n in every))

    def _keep(self, results, seconds):
        """Appends the results of some steps."""
        for name, values in results.items():
            before = self._pending.get(name, values[:0])
            self._pending[name] = np.concatenate([before, values])
        self._seconds += seconds
        self._timed_steps += len(results["loss"])

    def _agree(self, speed):
        """Returns whether any worker must stop, and the most steps per call."""
        most_steps = max(1, int(_MOST_SECONDS * speed))
        signals, numbers = gather_integers(
            self.trainer.strategy, [bool(self.stop.signal), most_steps]
        ).T
        return signals.any(), int(numbers.min())

    def _write_line(self, step):
        """Writes the metrics of the steps since the last line."""
        results, self._pending = self._pending, {}
        applied = results.get("skipped", np.zeros_like(results["loss"])) == 0

        def mean(name):
            # If all steps were skipped, there is no mean: in JSON null.
            applied_values = results[name][applied]
            return float(applied_values.mean()) if applied.any() else None

        loss = mean("loss")
        metrics = {
            "step": step,
            "loss": loss,
            "bits_per_token": loss and bits_per_token(loss),
            **self._in_bytes(loss, "train"),
            "gradient_norm": mean("gradient_norm"),
            "learning_rate": float(results["learning_rate"][-1]),
        }
        if "auxiliary_loss" in results:
            metrics["auxiliary_loss"] = mean("auxiliary_loss")
        if "skipped" in results:
            metrics["loss_scale"] = float(results["loss_scale"][-1])
            # The total so far.
            metrics["skipped_steps"] = step - int(
                self.trainer.optimizer.iterations.numpy()
            )
        self._check_divergence(step, loss)
        # Speed differs from run to run, so it is not in metrics.jsonl.
        seconds, self._seconds = self._seconds / self._timed_steps, 0.0
        self._timed_steps = 0
        tokens = self.trainer.batch_size * self.segments.segment_length

        def write():
            self.workdir.append_metrics(metrics)
            metrics["tokens_per_second"] = tokens / seconds
            self.progress.report(metrics)
            metrics["device_memory_bytes"] = device_memory()
            self.tensorboard.write(metrics)

        self._write(write)

    def _in_bytes(self, nll, split):
        """Returns a loss in bits per byte, if the bytes are known."""
        if nll is None or not self.bytes_per_token:
            return {}
        bits_per_byte = bits_per_token(nll) / self.bytes_per_token[split]
        return {"bits_per_byte": bits_per_byte}

    def _check_divergence(self, step, loss):
        """Raises if the loss exceeds twice ln V and twice the first loss."""
        if loss is None:
            return
        uniform = math.log(self.trainer.model.backbone.vocabulary_size)
        self._first_loss = self._first_loss or loss
        if loss > 2 * max(uniform, self._first_loss):
            raise FloatingPointError(
                f"The loss diverged: {loss:.4g} nats per token in the steps up "
                f"to {step}, while uniform guessing gives {uniform:.4g}."
            )

    def score_at(self, step):
        """Returns the validation score of a step, from metrics.jsonl."""
        return self._scores()[step]

    def _scores(self):
        """Returns the validation scores in metrics.jsonl by step."""
        lines = self.workdir.read_metrics()
        return {
            line["step"]: line["valid"] for line in lines if "valid" in line
        }

    def _score(self, step, is_restored=False):
        """Computes and records a validation score; returns false if stopped."""
        scores = self.validate()
        if scores is None:
            return False
        if not math.isfinite(scores["nll"]):
            raise FloatingPointError(
                f"The validation loss is {scores['nll']} at step {step}."
            )
        scores = {**scores, **self._in_bytes(scores["nll"], "valid")}
        is_best = scores["nll"] < self._best
        if is_best:
            self._best = scores["nll"]
            self.checkpoints.save_best()
            if is_restored:  # written before the line: no process scores again
                self.checkpoints.wait()
        metrics = {"step": step, "valid": scores}

        def write():
            self.workdir.append_metrics(metrics)
            self.tensorboard.write(metrics)
            self.progress.score(step, scores["nll"], is_best)

        self._write(write)
        return True

    def _show(self, step):
        for function in self.on_score:
            self._write(functools.partial(function, self, step))

    def _write(self, function):
        """Calls a function that writes files, on the worker that writes."""
        if self._is_chief:
            if not self.workdir.is_claimed():  # its disk may be gone
                raise FileNotFoundError(
                    f"`workdir` {self.workdir.path} is missing. Bring it back "
                    "and run the same command to resume."
                )
            function()
