"""The steps of Keras's `fit` and `evaluate` for a language model.

Letters: `B` batch, `T` segment.
"""

import dataclasses
import functools
import inspect
import random

import keras
import tensorflow as tf

from txl_keras.data.step_batches import distribute_rows
from txl_keras.models.fit_data import complete_batch
from txl_keras.training.compilation import compile_layers
from txl_keras.training.stopping import StopRequest
from txl_keras.training.strategy import host_loop
from txl_keras.training.trainer import Trainer

_LOG = "log/"  # begins the names of what a step of the user returns


@dataclasses.dataclass
class Progress:
    """Counts the steps of an epoch."""

    num_steps: int | None  # of an epoch, if known
    # Whether batches say where a text begins. Otherwise, epochs do.
    has_resets: bool = True
    # Done before a restart: they count, but are not run again.
    to_skip: int = 0
    # Not by `skip`: a dataset without a known end begins again in each epoch.
    batches_to_drop: int = 0
    done: int = 0

    def advance(self, num_steps):
        """Returns how many of the next `num_steps` steps are to be run."""
        if self.num_steps is not None:
            num_steps = min(num_steps, self.num_steps - self.done)
        self.done += num_steps
        skipped = min(num_steps, self.to_skip)
        self.to_skip -= skipped
        return num_steps - skipped


class FitSteps(keras.callbacks.Callback):
    """Runs the steps of `Trainer` within Keras's `fit` and `evaluate`."""

    # Keras reads the data and runs the epochs, the callbacks and the progress
    # bar. Its own loop over several steps does not run on several replicas or
    # workers, so `train` and `test` take its place. For each step and replica
    # they call `_step_of_model`, it calls `train_step` or `test_step` of the
    # model, and these, unless they are overridden, those below. Nothing here
    # computes logits, which would be a tensor (B, T, V).

    def __init__(self, model, metrics, jit_compile):
        super().__init__()
        self.set_model(model)
        self.metrics = metrics
        self.jit_compile = jit_compile
        self.seed = random.getrandbits(32)  # of the dropout masks
        self.trainer = None  # of the latest batches
        self.progress = self._progress_of_test = None
        self._strategy = model.distribute_strategy
        self._compiled_score = compile_layers(
            self._score,
            self._strategy,
            model,
            training=False,
            jit_compile=jit_compile,
        )
        with self._strategy.scope():
            stop = StopRequest()
        step = functools.partial(self._step_of_model, "test_step")
        self._run_test = host_loop(self._strategy, step, stop.variable)

    def begin_fit(self, data, validation, callbacks, backups, arguments):
        """Restores the last backup; returns arguments for Keras's `fit`."""
        steps = data.steps("steps_per_epoch", arguments.get("steps_per_epoch"))
        if validation is not None:
            name = "validation_steps"
            arguments[name] = validation.steps(name, arguments.get(name))
            arguments["validation_data"] = self._distribute(
                validation.dataset, validation.batch_size
            )
        self._set_trainer(data.batch_size)
        initial_epoch = epoch = arguments.get("initial_epoch", 0)
        done = 0
        for backup in backups:
            restored = backup._restore(self, callbacks, arguments["epochs"])
            epoch, done = restored or (epoch, done)
        if steps is not None and done > steps:
            raise ValueError(
                "`x` must be the data of the run that was interrupted after "
                f"{done} batches of an epoch. Received: {steps} batches"
            )
        dataset, used = data.seek(epoch, initial_epoch, steps, done)
        has_resets = "reset" in dataset.element_spec
        self.progress = Progress(steps, has_resets, done, used)
        arguments |= {
            "x": self._distribute(dataset, data.batch_size),
            "steps_per_epoch": steps,
            "initial_epoch": epoch,
            "callbacks": [*callbacks, self, *backups],
        }
        return arguments

    def on_epoch_begin(self, epoch, logs=None):
        """Resets the memory of training where the text begins again."""
        if not self.progress.to_skip:
            # The memory of calls in a user's `train_step`, then the trainer's.
            self.model._training_memory.reset_state()
            if not self.progress.has_resets:
                self.trainer.memory.reset_state()
        self.progress.done = 0

    def begin_test(self, data, arguments):
        """Returns arguments for Keras's `evaluate`, if it is not of `fit`."""
        if data is not None:
            arguments["x"] = self._distribute(data.dataset, data.batch_size)
            arguments["steps"] = data.steps("steps", arguments.get("steps"))
        self._progress_of_test = Progress(arguments["steps"])
        return arguments

    def train(self, iterator):
        """Trains for some steps, for Keras's `train_function`."""
        if inspect.isgenerator(iterator):  # in `train_on_batch`
            iterator, batch_size = self._one_batch(iterator)
            self._set_trainer(batch_size)
            return self._logs(self._run(self.trainer.train, iterator, 1))
        progress = self.progress
        num_steps = progress.advance(self.model.steps_per_execution)
        if not num_steps:
            return self._logs({})
        try:
            while progress.batches_to_drop:
                next(iterator)
                progress.batches_to_drop -= 1
            results = self._run(self.trainer.train, iterator, num_steps)
        except tf.errors.OutOfRangeError as error:
            # Without `steps_per_epoch` this is how an epoch ends, but not
            # where it begins.
            if progress.num_steps is None and progress.done > num_steps:
                raise
            raise ValueError(
                "`x` must have batches for every epoch, and as many as "
                "`steps_per_epoch`. Call its `repeat`; a generator can be "
                "read only once. Received: steps_per_epoch="
                f"{progress.num_steps}, and fewer batches"
            ) from error
        return self._logs(results)

    def test(self, iterator):
        """Evaluates some batches, for Keras's `test_function`."""
        if inspect.isgenerator(iterator):  # in `test_on_batch`
            (iterator, _), num_steps = self._one_batch(iterator), 1
        else:
            num_steps = self._progress_of_test.advance(
                self.model.steps_per_execution
            )
        return self._logs(
            self._run(self._run_test, iterator, tf.constant(num_steps))
        )

    @tf.autograph.experimental.do_not_convert
    def train_step(self, batch):
        """Trains on the rows of one replica, for the model's `train_step`."""
        results, nll = self.trainer.scored_step(batch, self._stop)
        if self.model.compute_dtype == "float16":
            batch = _without_overflows(batch, nll)
        return self._count(nll, batch, results)

    @tf.autograph.experimental.do_not_convert
    def test_step(self, batch):
        """Evaluates the rows of one replica, for the model's `test_step`."""
        # Not in what XLA compiles: the variables take the size of the data.
        stack = self.model._inference_memory
        # Several workers do not know the static size.
        memory = stack.read(keras.ops.shape(batch["inputs"])[0])
        nll, memory = self._compiled_score(batch, memory)
        stack.write(memory)
        # For `_logs` to see that not only a step of the user ran.
        return self._count(nll, batch, {"is_counted": 1.0})

    def _score(self, batch, memory):
        """Returns the losses and the new memory, for XLA to compile."""
        inputs, targets = batch["inputs"], batch["targets"]
        return self.model.score(inputs, targets, memory, batch.get("reset"))

    def _distribute(self, dataset, batch_size):
        return distribute_rows(dataset, batch_size, self._strategy)

    def _run(self, function, *args):
        """Calls a function of graphs; without graphs with `run_eagerly`."""
        eagerly = tf.config.functions_run_eagerly()
        tf.config.run_functions_eagerly(eagerly or self.model.run_eagerly)
        try:
            return function(*args)
        finally:
            tf.config.run_functions_eagerly(eagerly)

    def _one_batch(self, iterator):
        """Returns an iterator of a batch that is not of `fit`, and its rows."""
        vocabulary_size = self.model.backbone.vocabulary_size
        batch = complete_batch(next(iterator), vocabulary_size)
        # No map, which would be traced for each batch.
        dataset = tf.data.Dataset.from_tensors(batch)
        batch_size = len(batch["inputs"])
        return iter(self._distribute(dataset, batch_size)), batch_size

    def _set_trainer(self, batch_size):
        """Makes a `Trainer` unless there is one for such batches."""
        trainer, model = self.trainer, self.model
        if not model.trainable_variables:
            raise ValueError(
                "`model` must have trainable weights. Set `trainable` of the "
                "model or of a layer to True, and compile again. Received: "
                f"model={model.name!r}, all weights frozen"
            )
        if trainer and batch_size == trainer.batch_size:
            return
        self.trainer = Trainer(
            model,
            model.optimizer,
            self._strategy,
            batch_size,
            seed=self.seed,
            jit_compile=self.jit_compile,
            step_function=functools.partial(self._step_of_model, "train_step"),
        )
        # Dropout is a function of the step.
        done = trainer.step if trainer else model.optimizer.iterations
        self.trainer.step.assign(tf.cast(done, tf.int64))

    def _step_of_model(self, name, batch, stop):
        """Runs a step of the model, maybe overridden, for `host_loop`."""
        self._stop, self._results = stop, {}
        logs = getattr(self.model, name)(batch) or {}
        # An overridden step need not call that of this library.
        known = self.model.metrics_names if self._results else ()
        own = {
            _LOG + name: tf.cast(value, tf.float32)
            for name, value in logs.items()
            if name not in known
        }
        return {**self._results, **own, "stop": stop}

    def _logs(self, results):
        """Returns the metrics, and what else a step of the user returned."""
        results.pop("stop", None)
        own = {
            name.removeprefix(_LOG): float(values[-1])
            for name, values in results.items()
            if name.startswith(_LOG)
        }
        if own and len(own) == len(results):  # it did all by itself
            return own
        return self.model.get_metrics_result() | own

    def _count(self, nll, batch, results):
        """Updates the metrics with the losses of one replica; returns them."""
        self._results = results
        weights = batch["weights"]
        for metric in self.metrics:
            metric.update_from_nll(nll, weights, batch["targets"])
        share = batch["num_targets"] / self._strategy.num_replicas_in_sync
        total = tf.reduce_sum(tf.math.multiply_no_nan(nll, weights))
        loss = tf.math.divide_no_nan(total, share)
        for metric in self.model.metrics:
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=share)
        return self.model.get_metrics_result()


def _without_overflows(batch, nll):
    """Returns a batch without targets whose loss overflowed, unless all did."""
    # Such a step may be skipped. But an epoch in which a whole batch overflowed
    # must not look like a good one.
    is_finite = tf.math.is_finite(nll)
    is_finite |= ~tf.reduce_any(is_finite & (batch["weights"] != 0))
    weights = tf.where(is_finite, batch["weights"], 0.0)
    share = tf.math.divide_no_nan(
        tf.reduce_sum(weights), tf.reduce_sum(batch["weights"])
    )
    num_targets = batch["num_targets"] * share
    return {**batch, "weights": weights, "num_targets": num_targets}
