"""Steps, scores, lines and checkpoints, in an order that no kill upsets."""

import contextlib
import math
import time

import numpy as np
from absl import logging

from txl_keras.checks import check_integer
from txl_keras.data.feed import Feed
from txl_keras.metrics import bits_per_token
from txl_keras.training.checkpointing import saved_steps
from txl_keras.training.strategy import is_chief
from txl_keras.training.tensorboard import memory_statistics
from txl_keras.training.utilization import device_memory
from txl_keras.training.utilization import model_flops
from txl_keras.training.utilization import peak_flops


class TrainingLoop:
    """Trains to the last step, or until stopped.

    At a step where several things are due they come in this order: the line
    of training in metrics.jsonl, the score of valid, the best weights, the
    line of the score, the checkpoint. So a checkpoint means that all before
    it is written, and what is written after it is dropped and done again when
    a run resumes there. Where things are due is a function of the step alone:
    a run that was killed writes the same lines as one that was not.

    With several workers all run this, and the chief writes.

    Args:
        trainer: `Trainer`.
        segments: `Segments` or `PermutedSegments` to train on.
        validate: Function without arguments that returns the scores of valid,
            a dictionary with `nll`; `None` if it was stopped.
        workdir: `Workdir`.
        checkpoints: `Checkpoints`.
        max_steps, eval_every, checkpoint_every: Integers.
        steps_per_execution: Integer, the steps in one call of TensorFlow, and
            between two lines.
        progress: `Progress`.
        tensorboard: `TensorBoard`.
        profile: `Profile`.
    """

    def __init__(
        self,
        trainer,
        segments,
        validate,
        workdir,
        checkpoints,
        *,
        max_steps,
        eval_every,
        checkpoint_every,
        steps_per_execution,
        progress,
        tensorboard,
        profile,
    ):
        self._trainer = trainer
        self._segments = segments
        self._validate = validate
        self._workdir = workdir
        self._checkpoints = checkpoints
        self._max_steps = check_integer("max_steps", max_steps, 1)
        self._eval_every = check_integer("eval_every", eval_every, 1)
        self._checkpoint_every = check_integer(
            "checkpoint_every", checkpoint_every, 1
        )
        self._steps_per_execution = check_integer(
            "steps_per_execution", steps_per_execution, 1
        )
        self._progress = progress
        self._tensorboard = tensorboard
        self._profile = profile
        self._step_flops = model_flops(
            trainer.model,
            trainer.batch_size,
            segments.segment_length,
            training=True,
        )
        self._peak_flops = None
        self._is_chief = is_chief(trainer.strategy)
        self._memory_statistics = memory_statistics(
            trainer.memory, trainer.strategy
        )
        # Results of the steps since the last line; of those of them that this
        # process ran, how many they were and how long they took.
        self._pending = {}
        self._timed_steps, self._seconds = 0, 0.0
        self._first_loss = None
        self._best = math.inf  # nats of the weights that are kept as the best

    def restore(self):
        """Goes back to the newest checkpoint.

        Returns:
            Integer, the step to go on from.
        """
        self._pending = self._checkpoints.restore()
        step = int(self._trainer.step.numpy())
        if self._is_chief:
            self._workdir.drop_metrics_after(step)
        lines = self._workdir.read_metrics()
        losses = (x["loss"] for x in lines if x.get("loss") is not None)
        self._first_loss = next(losses, None)
        self._best = self._kept_score()
        return step

    def _kept_score(self):
        """The score of the weights in best/, which later ones must beat."""
        scores = {line["step"]: line["valid"]["nll"] for line in self._scores()}
        lowest = min(scores.values(), default=math.inf)
        kept = saved_steps(self._workdir.best)
        if kept:
            return scores.get(kept[-1], lowest)
        if scores and self._is_chief:
            logging.warning(
                "%s is missing, with the best weights so far (%.4f nats per "
                "token). Those of the next score are kept as the best.",
                self._workdir.best,
                lowest,
            )
        return math.inf

    def run(self):
        """Trains.

        Returns:
            Boolean: true if the last step was reached, false if stopped; a
            checkpoint of the step that was reached is written.

        Raises:
            FloatingPointError: If the loss is not finite, or went up and away.
            OSError: If a file cannot be written.
        """
        step = int(self._trainer.step.numpy())
        self._peak_flops = peak_flops(
            self._trainer.model.compute_dtype, self._trainer.strategy
        )
        self._progress.start(step)
        with self._closing():
            if self._owes_score(step) and not self._score(step):
                return False
            feed = Feed(self._segments, self._trainer.strategy, first_step=step)
            while step < self._max_steps:
                self._profile.update(step)
                boundary = self._next_boundary(step)
                end = self._profile.next_boundary(step) or boundary
                num_steps = min(end, boundary) - step
                start = time.monotonic()
                results = self._trainer.train(feed.next(num_steps), num_steps)
                step += self._keep(results, time.monotonic() - start)
                stopped = self._trainer.stopped
                if step == boundary:
                    self._write_line(step)
                    if self._is_due(step, self._eval_every) and not stopped:
                        stopped = not self._score(step)
                    if self._is_due(step, self._checkpoint_every) or stopped:
                        self._checkpoints.save()
                elif stopped:
                    self._checkpoints.save(self._pending)
                if stopped:
                    return False
            return True

    @contextlib.contextmanager
    def _closing(self):
        """Waits for the checkpoint that is written, whatever happens."""
        try:
            yield
            self._checkpoints.wait()
        except FloatingPointError as error:
            with contextlib.suppress(FloatingPointError, OSError):
                self._checkpoints.wait()
            raise FloatingPointError(
                f"{error} Training stopped; the last good checkpoint: "
                f"{self._checkpoints.latest or 'none yet'}. Lower "
                "--learning_rate or raise --warmup_steps, in a new --workdir."
            ) from error
        finally:
            self._profile.close()
            self._progress.close()

    def _is_due(self, step, every):
        return step % every == 0 or step == self._max_steps

    def _next_boundary(self, step):
        """The next step at which a line is written."""
        return min(
            self._max_steps,
            *(
                step + every - step % every
                for every in (
                    self._steps_per_execution,
                    self._eval_every,
                    self._checkpoint_every,
                )
            ),
        )

    def _keep(self, results, seconds):
        """Keeps the results of some steps; returns how many they are."""
        for name, values in results.items():
            before = self._pending.get(name, values[:0])
            self._pending[name] = np.concatenate([before, values])
        self._seconds += seconds
        self._timed_steps += len(results["loss"])
        return len(results["loss"])

    def _write_line(self, step):
        """Sums up the steps since the last line."""
        results, self._pending = self._pending, {}
        applied = results.get("skipped", np.zeros_like(results["loss"])) == 0
        # Of the mean of no steps nothing can be said: `None`, in JSON null.
        loss, norm = (
            float(results[name][applied].mean()) if applied.any() else None
            for name in ("loss", "gradient_norm")
        )
        metrics = {
            "step": step,
            "loss": loss,
            "bits_per_token": bits_per_token(loss) if applied.any() else None,
            "gradient_norm": norm,
            "learning_rate": float(results["learning_rate"][-1]),
        }
        if "skipped" in results:
            metrics["loss_scale"] = float(results["loss_scale"][-1])
            # All that were skipped so far.
            metrics["skipped_steps"] = step - int(
                self._trainer.optimizer.iterations.numpy()
            )
        self._check_divergence(step, loss)
        if self._is_chief:
            self._workdir.append_metrics(metrics)
        self._watch(metrics)

    def _check_divergence(self, step, loss):
        """Raises where the loss is twice that of a guess, or of the start."""
        if loss is None:
            return
        guess = math.log(self._trainer.model.backbone.vocabulary_size)
        self._first_loss = self._first_loss or loss
        if loss > 2 * max(guess, self._first_loss):
            raise FloatingPointError(
                f"The loss diverged: {loss:.4g} nats a token in the steps up "
                f"to {step}, where {guess:.4g} is that of a guess."
            )

    def _watch(self, metrics):
        """What changes from run to run: on the terminal and in TensorBoard."""
        steps_per_second = self._timed_steps / self._seconds
        self._timed_steps, self._seconds = 0, 0.0
        tokens = self._trainer.batch_size * self._segments.segment_length
        speed = {
            "tokens_per_second": tokens * steps_per_second,
            "utilization": self._step_flops
            * steps_per_second
            / self._peak_flops,
        }
        self._progress.update({**metrics, **speed})
        self._tensorboard.write(
            {**metrics, **speed, "device_memory_bytes": device_memory()}
        )

    def _owes_score(self, step):
        """Whether a run was stopped before the score of this step."""
        if step == 0 or not self._is_due(step, self._eval_every):
            return False
        return step not in [line["step"] for line in self._scores()]

    def score_at(self, step):
        """The score of valid at a step.

        Args:
            step: Integer.

        Returns:
            Dictionary.

        Raises:
            ValueError: If there is none in metrics.jsonl.
        """
        scores = {line["step"]: line["valid"] for line in self._scores()}
        if step not in scores:
            raise ValueError(
                f"{self._workdir.metrics} must have a score of step {step}. "
                f"It has those of steps {sorted(scores)}."
            )
        return scores[step]

    def _scores(self):
        """Lines of metrics.jsonl that hold a score."""
        lines = self._workdir.read_metrics()
        return [line for line in lines if "valid" in line]

    def _score(self, step):
        """Scores valid; returns false if stopped."""
        scores = self._validate()
        if scores is None:
            return False
        if not math.isfinite(scores["nll"]):
            raise FloatingPointError(f"valid is {scores['nll']} at {step}.")
        is_best = scores["nll"] < self._best
        if is_best:
            self._best = scores["nll"]
            self._checkpoints.save_best()
        metrics = {"step": step, "valid": scores}
        if self._is_chief:
            self._workdir.append_metrics(metrics)
        self._tensorboard.write(
            {**metrics, "memory": self._memory_statistics()}
        )
        self._progress.score(step, scores["nll"], is_best)
        return True
