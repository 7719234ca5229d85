"""The steps of Keras's `fit` and `evaluate` for a language model.

Letters: `B` batch, `T` segment.
"""

import random

import keras
import numpy as np
import tensorflow as tf

from txl_keras.checks import check_number
from txl_keras.checks import shown
from txl_keras.data.step_batches import replica_batch_size
from txl_keras.models.fit_data import batch_data
from txl_keras.models.fit_data import check_arrays
from txl_keras.models.fit_data import fit_data
from txl_keras.models.fit_data import naming_validation
from txl_keras.training.compilation import compile_layers
from txl_keras.training.stopping import StopRequest
from txl_keras.training.strategy import host_loop
from txl_keras.training.trainer import Trainer


class FitSteps:
    """Runs the steps of `Trainer` within Keras's `fit` and `evaluate`."""

    # Keras runs the epochs, the callbacks and the progress bar. Nothing here
    # computes logits, which would be a tensor (B, T, V).

    def __init__(self, model, metrics, jit_compile):
        self.metrics = metrics
        self.jit_compile = jit_compile
        self.seed = random.getrandbits(32)  # of the dropout masks
        self.trainer = None  # of the latest batches
        self._model = model
        self._validation = None
        self._run_test = None
        self._training = self._test = None  # `_Reading`s
        self._keras_reading = None

    def begin_fit(self, arguments):
        """Prepares for `fit` and returns the arguments for that of Keras."""
        arguments = _split(arguments)
        data = self._data(arguments)
        self._training = self._validation = None
        if (validation := arguments.get("validation_data")) is not None:
            self._validation = self._validation_data(validation, arguments)
            if self._validation:
                arguments["validation_data"] = _unread_dataset()
                arguments["validation_steps"] = self._validation.checked_steps(
                    "validation_steps", arguments.get("validation_steps")
                )
        if data is None:
            self._keras_reading = _KerasReading(self._vocabulary_size)
            return arguments
        steps = data.checked_steps(
            "steps_per_epoch", arguments.get("steps_per_epoch")
        )
        initial_epoch = arguments.get("initial_epoch", 0)
        self._training = _Reading(data, steps, initial_epoch)
        self._set_trainer(data)
        return _unread(arguments, steps_per_epoch=steps)

    @property
    def reads_data(self):
        """Returns whether the `fit` that runs has data that Keras leaves."""
        return self._training is not None

    @property
    def steps_done(self):
        """Returns how many steps of this epoch are done."""
        return self._training.steps_done

    def resume(self, steps_done, seed):
        """Makes the next epoch begin after steps that were done before."""
        steps = self._training.steps_per_epoch
        if steps is not None and steps_done > steps:
            raise ValueError(
                "`x` must be the data of the run that was interrupted after "
                f"{steps_done} batches of an epoch. Received: {steps} batches"
            )
        self._training.steps_to_skip = steps_done
        self.seed = self.trainer.seed = seed

    def begin_epoch(self, epoch):
        """Resets the memory of training where the text begins again."""
        reading = self._training
        if reading is None:
            self._keras_reading.begin_epoch()
            if self.trainer:
                self.trainer.memory.reset_state()
            return
        if not (reading.data.has_resets or reading.steps_to_skip):
            self.trainer.memory.reset_state()
        reading.begin_epoch(epoch, self._strategy)

    def end_fit(self):
        """Forgets the data; `train_on_batch` brings its own."""
        self._training = self._keras_reading = None
        # Set by callbacks that restore, for the `fit` that they are given to.
        self._model._initial_epoch = None

    def begin_test(self, arguments):
        """Prepares for `evaluate` and returns the arguments for Keras's."""
        self._test = None
        # This is how `fit` of Keras asks for validation.
        if arguments.get("_use_cached_eval_dataset"):
            data = self._validation
        else:
            data = self._data(arguments)
        if data is None:
            return arguments
        steps = data.checked_steps("steps", arguments.get("steps"))
        self._test = _Reading(data, steps)
        self._test.begin_epoch(0, self._strategy)
        return _unread(arguments, steps=steps)

    def end_test(self):
        """Forgets the data; `test_on_batch` brings its own."""
        self._test = None

    def train(self, iterator):
        """Trains for some steps, for Keras's `train_function`."""
        reading = self._training
        if reading is None:
            if self._keras_reading is None:  # in `train_on_batch`
                data = self._one_batch(iterator)
            else:
                data = self._keras_reading.next_batch(iterator)
            self._set_trainer(data)
            self._run(self.trainer.train, data.iterator(0, self._strategy), 1)
        elif num_steps := reading.next_steps(self._model.steps_per_execution):
            try:
                self._run(self.trainer.train, reading.iterator, num_steps)
            except tf.errors.OutOfRangeError as error:
                # Without `steps_per_epoch` this is how an epoch ends.
                if reading.steps_per_epoch is None:
                    raise
                raise ValueError(
                    "`x` must have `steps_per_epoch` batches for every epoch. "
                    "Call its `repeat`. Received: steps_per_epoch="
                    f"{reading.steps_per_epoch}, and fewer batches"
                ) from error
        return self._model.get_metrics_result()

    def test(self, iterator):
        """Evaluates some batches, for Keras's `test_function`."""
        if self._run_test is None:
            self._make_test()
        reading = self._test
        if reading is None:
            data = self._one_batch(iterator)
            iterator = data.iterator(0, self._strategy)
            self._run(self._run_test, iterator, tf.constant(1))
        elif num_steps := reading.next_steps(self._model.steps_per_execution):
            num_steps = tf.constant(num_steps)
            self._run(self._run_test, reading.iterator, num_steps)
        return self._model.get_metrics_result()

    @property
    def _strategy(self):
        return self._model.distribute_strategy

    @property
    def _vocabulary_size(self):
        return self._model.backbone.vocabulary_size

    def _run(self, function, *args):
        """Calls a function of graphs; without graphs with `run_eagerly`."""
        eagerly = tf.config.functions_run_eagerly()
        tf.config.run_functions_eagerly(eagerly or self._model.run_eagerly)
        try:
            return function(*args)
        finally:
            tf.config.run_functions_eagerly(eagerly)

    def _data(self, arguments):
        """Returns the `FitData` of arguments, `None` if only Keras can read."""
        x = arguments["x"]
        if x is None or isinstance(x, (list, tuple)):
            raise ValueError(
                "`x` must be an array, text, `Segments` or a dataset. Convert "
                f"ids with `np.asarray`. Received: x={shown(x)}"
            )
        data = fit_data(
            x,
            arguments["y"],
            arguments.get("sample_weight"),
            arguments["batch_size"],
            self._vocabulary_size,
        )
        replicas = self._strategy.num_replicas_in_sync
        if data is None and replicas > 1:
            raise ValueError(
                "`x` must be `Segments`, a `tf.data.Dataset` or arrays on "
                f"several replicas. Received: {type(x).__name__}, on "
                f"{replicas} replicas"
            )
        return data

    def _validation_data(self, validation, arguments):
        """Returns the `FitData` of the argument `validation_data`."""
        x, y, weights = keras.utils.unpack_x_y_sample_weight(validation)
        batch_size = arguments.get("validation_batch_size")
        with naming_validation():
            check_arrays(x, y, batch_size, self._vocabulary_size)
            data = self._data(
                {
                    "x": x,
                    "y": y,
                    "sample_weight": weights,
                    "batch_size": batch_size,
                }
            )
            if data:  # or it would fail after an epoch of training
                replica_batch_size(data.batch_size, self._strategy)
        return data

    def _one_batch(self, iterator):
        """Returns `FitData` of a batch that is neither of `fit` nor padded."""
        x, y, weights = _next_parts(iterator)
        return batch_data(x, y, weights, self._vocabulary_size)

    def _set_trainer(self, data):
        """Makes a `Trainer` unless there is one for such batches."""
        trainer, model = self.trainer, self._model
        if not model.trainable_variables:
            raise ValueError(
                "`model` must have trainable weights. Set `trainable` of the "
                "model or of a layer to True, and compile again. Received: "
                f"model={model.name!r}, all weights frozen"
            )
        shape = data.batch_size, data.segment_lengths
        if trainer and shape == (trainer.batch_size, trainer.segment_lengths):
            return
        self.trainer = Trainer(
            model,
            model.optimizer,
            self._strategy,
            data.batch_size,
            seed=self.seed,
            segment_lengths=data.segment_lengths,
            jit_compile=self.jit_compile,
            report=self._report,
        )
        # Dropout is a function of the step.
        self.trainer.step.assign(
            trainer.step if trainer else tf.cast(
                model.optimizer.iterations, tf.int64
            )
        )  # fmt: skip

    def _make_test(self):
        strategy = self._strategy
        with strategy.scope():
            stop = StopRequest()
        self._compiled_score = compile_layers(
            self._score,
            strategy,
            self._model,
            training=False,
            jit_compile=self.jit_compile,
        )
        self._run_test = host_loop(strategy, self._test_step, [], stop.variable)

    @tf.autograph.experimental.do_not_convert
    def _test_step(self, batch, stop):
        """Evaluates the rows of one replica."""
        # Not in what XLA compiles: the variables take the size of the data.
        stack = self._model._inference_memory
        # Several workers do not know the static size.
        memory = stack.read(keras.ops.shape(batch["inputs"])[0])
        nll, memory = self._compiled_score(batch, memory)
        stack.write(memory)
        self._count(nll, batch["weights"], batch)
        return {"stop": stop}

    def _score(self, batch, memory):
        return self._model.score(
            batch["inputs"], batch["targets"], memory, batch.get("reset")
        )

    def _report(self, batch, nll):
        """Updates the metrics with the losses of a training step."""
        weights = batch["weights"]
        if self._model.compute_dtype == "float16":
            # Those that overflow belong to a step that is skipped.
            is_finite = tf.math.is_finite(nll)
            weights = tf.where(is_finite, weights, 0.0)
            nll = tf.where(is_finite, nll, 0.0)
        self._count(nll, weights, batch)

    def _count(self, nll, weights, batch):
        """Updates the metrics with the losses of one replica."""
        for metric in self.metrics:
            metric.update_from_nll(nll, weights, batch["targets"])
        replicas = self._strategy.num_replicas_in_sync
        share = batch["num_targets"] / replicas
        loss = tf.math.divide_no_nan(tf.reduce_sum(nll * weights), share)
        self._model._loss_tracker.update_state(loss, sample_weight=share)


def _split(arguments):
    """Returns arguments of `fit` with `validation_split` carried out."""
    share = arguments.pop("validation_split", None)
    if not share or arguments.get("validation_data") is not None:
        return arguments
    if not isinstance(arguments["x"], (np.ndarray, tf.Tensor)):
        raise ValueError(
            "`validation_split` must be 0 unless `x` is an array. Pass "
            "`validation_data`. Received: validation_split="
            f"{share}, x={shown(arguments['x'])}"
        )
    check_number("validation_split", share, 0, 1)
    names = ("x", "y", "sample_weight")
    parts = {name: arguments.get(name) for name in names}
    parts = {name: part for name, part in parts.items() if part is not None}
    num_samples = len(arguments["x"])
    at = int(num_samples * (1 - share))
    if at in (0, num_samples):
        raise ValueError(
            "`validation_split` must leave samples for both parts. Received: "
            f"validation_split={share}, {num_samples} samples"
        )
    return {
        **arguments,
        **{name: part[:at] for name, part in parts.items()},
        "validation_data": tuple(part[at:] for part in parts.values()),
    }


def _unread(arguments, **steps):
    """Returns arguments for Keras with data that it does not read."""
    arguments = {**arguments, **steps, "x": _unread_dataset()}
    arguments.update(y=None, batch_size=None)
    arguments.pop("sample_weight", None)
    return arguments


def _unread_dataset():
    """Returns a dataset whose steps Keras counts without reading it."""
    # Under a strategy Keras divides batches by the number of replicas.
    return tf.data.Dataset.from_tensors(tf.zeros([1])).repeat()


def _next_parts(iterator):
    """Returns `x`, `y` and weights of the next batch of Keras's iterator."""
    x, y, weights = (
        None if isinstance(part, tf.experimental.Optional) else part
        for part in keras.utils.unpack_x_y_sample_weight(next(iterator))
    )
    if y is None:
        raise ValueError(
            "`y` must be the targets of `x`, the tokens that follow. "
            "Received: y=None"
        )
    return x, y, weights


class _KerasReading:
    """Makes `FitData` of each batch of a `fit` whose data only Keras reads."""

    def __init__(self, vocabulary_size):
        self._vocabulary_size = vocabulary_size
        self._rows = None
        self._was_short = False

    def begin_epoch(self):
        self._was_short = False

    def next_batch(self, iterator):
        x, y, weights = _next_parts(iterator)
        rows = self._rows
        if self._was_short or (rows and len(x) > rows):
            raise ValueError(
                "`x` must have batches of as many rows as the first one; only "
                f"the last may have fewer. Received: {rows} rows in the first, "
                f"{'fewer, and then ' if self._was_short else ''}{len(x)}"
            )
        data = batch_data(x, y, weights, self._vocabulary_size, rows)
        self._rows = data.batch_size
        self._was_short = len(x) < self._rows
        return data


class _Reading:
    """Reads `FitData` epoch by epoch."""

    def __init__(self, data, steps_per_epoch, initial_epoch=0):
        self.data = data
        self.iterator = None
        self.steps_to_skip = 0
        self.steps_per_epoch = steps_per_epoch
        self._initial_epoch = initial_epoch
        self.steps_done = 0

    def begin_epoch(self, epoch, strategy):
        self.steps_done = 0
        if self.steps_per_epoch is None:
            self.iterator = self.data.iterator(self.steps_to_skip, strategy)
        elif self.iterator is None:
            if not self.data.has_epochs:
                epoch -= self._initial_epoch
            step = epoch * self.steps_per_epoch + self.steps_to_skip
            self.iterator = self.data.iterator(step, strategy)

    def next_steps(self, num_steps):
        """Returns how many of the next `num_steps` steps are to be run."""
        if self.steps_per_epoch is not None:
            left = self.steps_per_epoch - self.steps_done
            num_steps = min(num_steps, left)
        self.steps_done += num_steps
        # Done before a restart: they count, but are not run again.
        skipped = min(num_steps, self.steps_to_skip)
        self.steps_to_skip -= skipped
        return num_steps - skipped
