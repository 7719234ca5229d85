"""The steps of Keras's `fit` and `evaluate` for a language model.

Letters: `B` batch, `T` segment.
"""

import functools
import random

import keras
import numpy as np
import tensorflow as tf

from txl_keras import keras_internals
from txl_keras.checks import shown
from txl_keras.data.step_batches import distribute_rows
from txl_keras.models.fit_data import batch_data
from txl_keras.models.fit_data import fit_data
from txl_keras.models.fit_data import naming_validation
from txl_keras.training.compilation import compile_layers
from txl_keras.training.stopping import StopRequest
from txl_keras.training.strategy import host_loop
from txl_keras.training.trainer import Trainer

_LOG = "log/"  # begins the names of what a step of the user returns


class FitSteps:
    """Runs the steps of `Trainer` within Keras's `fit` and `evaluate`."""

    # Keras reads the data and runs the epochs, the callbacks and the progress
    # bar. Its own loop over several steps does not run on several replicas or
    # workers, so `train` and `test` take its place: they call `train_step` and
    # `test_step` of the model. Nothing here computes logits, which would be a
    # tensor (B, T, V).

    def __init__(self, model, metrics, jit_compile):
        self.metrics = metrics
        self.jit_compile = jit_compile
        self.seed = random.getrandbits(32)  # of the dropout masks
        self.trainer = None  # of the latest batches
        self._model = model
        self._run_test = None
        self._training = self._validation = self._test = None

    def begin_fit(self, arguments):
        """Prepares for `fit` and returns the arguments for that of Keras."""
        arguments = _split(arguments)
        data = self._read(arguments, "steps_per_epoch")
        if (validation := arguments.get("validation_data")) is not None:
            x, y, weights = keras.utils.unpack_x_y_sample_weight(validation)
            found = {
                "x": x,
                "y": y,
                "sample_weight": weights,
                "batch_size": arguments.get("validation_batch_size"),
                "validation_steps": arguments.get("validation_steps"),
            }
            with naming_validation():
                self._validation = self._read(found, "validation_steps")
            found["validation_data"] = found.pop("x")
            arguments.update(found)
        self._set_trainer(data)
        data.initial_epoch = arguments.get("initial_epoch", 0)
        data.start(data.initial_epoch)
        self._training = data
        return arguments

    def _read(self, arguments, steps_name):
        """Puts batches in place of data in arguments; returns `FitData`."""
        names = ("x", "y", "sample_weight", "batch_size")
        parts = [arguments.pop(name, None) for name in names]
        data = fit_data(*parts, self._model.backbone.vocabulary_size)
        arguments["x"] = self._distribute(data)
        arguments[steps_name] = data.set_steps(
            steps_name, arguments.get(steps_name)
        )
        return data

    @property
    def steps_done(self):
        """Returns how many steps of this epoch are done."""
        return self._training.steps_done

    @property
    def steps_to_skip(self):
        """Returns how many steps of this epoch were done before a restart."""
        return self._training.steps_to_skip

    def resume(self, epoch, steps_done, seed):
        """Makes `fit` begin after steps of an epoch that were done before."""
        self._training.start(epoch, steps_done)
        self.seed = self.trainer.seed = seed

    def begin_epoch(self):
        """Resets the memory of training where the text begins again."""
        data = self._training
        if not data.steps_to_skip:
            # That of a `train_step` of the user, and of the library's.
            self._model._training_memory.reset_state()
            # Batches may say where a text begins, or epochs do.
            if "reset" not in data.dataset.element_spec:
                self.trainer.memory.reset_state()
        data.steps_done = 0
        self._first_step = int(self.trainer.step.numpy())

    def end_fit(self):
        """Forgets the data; `train_on_batch` brings its own."""
        self._training = self._validation = None
        # Set by callbacks that restore, for the `fit` that they are given to.
        keras_internals.set_initial_epoch(self._model, None)

    def begin_test(self, arguments):
        """Prepares for `evaluate` and returns the arguments for Keras's."""
        if keras_internals.is_validation(arguments):
            self._test = self._validation
            self._test.steps_done = 0
        else:
            self._test = self._read(arguments, "steps")
        return arguments

    def end_test(self):
        """Forgets the data; `test_on_batch` brings its own."""
        self._test = None

    def train(self, iterator):
        """Trains for some steps, for Keras's `train_function`."""
        data, results = self._training, {}
        if data is None:  # in `train_on_batch`
            data = self._one_batch(iterator)
            self._set_trainer(data)
            iterator = iter(self._distribute(data))
            results = self._run(self.trainer.train, iterator, 1)
        elif num_steps := data.next_steps(self._model.steps_per_execution):
            try:
                data.drop(iterator)
                results = self._run(self.trainer.train, iterator, num_steps)
            except tf.errors.OutOfRangeError as error:
                # Without `steps_per_epoch` this is how an epoch ends.
                is_first = int(self.trainer.step.numpy()) == self._first_step
                if data.steps_per_epoch is None and not is_first:
                    raise StopIteration from error
                raise ValueError(
                    "`x` must have batches for every epoch, and as many as "
                    "`steps_per_epoch`. Call its `repeat`; a generator can be "
                    "read only once. Received: steps_per_epoch="
                    f"{data.steps_per_epoch}, and fewer batches"
                ) from error
        return self._logs(results)

    def test(self, iterator):
        """Evaluates some batches, for Keras's `test_function`."""
        if self._run_test is None:
            self._make_test()
        num_steps, results = 1, {}
        if self._test is None:  # in `test_on_batch`
            iterator = iter(self._distribute(self._one_batch(iterator)))
        else:
            num_steps = self._test.next_steps(self._model.steps_per_execution)
        if num_steps:
            try:
                results = self._run(
                    self._run_test, iterator, tf.constant(num_steps)
                )
            except tf.errors.OutOfRangeError as error:
                raise StopIteration from error
        return self._logs(results)

    @tf.autograph.experimental.do_not_convert
    def train_step(self, batch):
        """Trains on the rows of one replica, for the model's `train_step`."""
        results = self.trainer.replica_step(batch, self._stop)
        nll = results.pop("nll")
        if self._model.compute_dtype == "float16":
            batch = _without_overflows(batch, nll)
        self._count(nll, batch)
        self._results = results
        return self._model.get_metrics_result()

    @tf.autograph.experimental.do_not_convert
    def test_step(self, batch):
        """Evaluates the rows of one replica, for the model's `test_step`."""
        # Not in what XLA compiles: the variables take the size of the data.
        stack = self._model._inference_memory
        # Several workers do not know the static size.
        memory = stack.read(keras.ops.shape(batch["inputs"])[0])
        nll, memory = self._compiled_score(batch, memory)
        stack.write(memory)
        self._count(nll, batch)
        self._results = {"is_counted": 1.0}
        return self._model.get_metrics_result()

    @property
    def _strategy(self):
        return self._model.distribute_strategy

    def _distribute(self, data):
        return distribute_rows(data.dataset, data.batch_size, self._strategy)

    def _run(self, function, *args):
        """Calls a function of graphs; without graphs with `run_eagerly`."""
        eagerly = tf.config.functions_run_eagerly()
        tf.config.run_functions_eagerly(eagerly or self._model.run_eagerly)
        try:
            return function(*args)
        finally:
            tf.config.run_functions_eagerly(eagerly)

    def _one_batch(self, iterator):
        """Returns `FitData` of a batch that is not of `fit`."""
        return batch_data(next(iterator), self._model.backbone.vocabulary_size)

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
            step=functools.partial(self._step_of_model, "train_step"),
        )
        # Dropout is a function of the step.
        self.trainer.step.assign(
            trainer.step if trainer else tf.cast(
                model.optimizer.iterations, tf.int64
            )
        )  # fmt: skip

    def _step_of_model(self, name, batch, stop):
        """Runs a step of the model, maybe overridden, for `host_loop`."""
        self._stop, self._results = stop, {}
        logs = getattr(self._model, name)(batch) or {}
        # An overridden step need not call that of this library.
        known = self._model.metrics_names if self._results else ()
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
        return self._model.get_metrics_result() | own

    def _make_test(self):
        strategy = self._strategy
        with strategy.scope():
            stop = StopRequest()

        def score(batch, memory):
            inputs, targets = batch["inputs"], batch["targets"]
            reset = batch.get("reset")
            return self._model.score(inputs, targets, memory, reset)

        self._compiled_score = compile_layers(
            score,
            strategy,
            self._model,
            training=False,
            jit_compile=self.jit_compile,
        )
        step = functools.partial(self._step_of_model, "test_step")
        self._run_test = host_loop(strategy, step, stop.variable)

    def _count(self, nll, batch):
        """Updates the metrics with the losses of one replica."""
        weights = batch["weights"]
        for metric in self.metrics:
            metric.update_from_nll(nll, weights, batch["targets"])
        replicas = self._strategy.num_replicas_in_sync
        share = batch["num_targets"] / replicas
        total = tf.reduce_sum(tf.math.multiply_no_nan(nll, weights))
        loss = tf.math.divide_no_nan(total, share)
        keras_internals.update_loss(self._model, loss, share)


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


def _split(arguments):
    """Returns arguments of `fit` with `validation_split` carried out."""
    share = arguments.pop("validation_split", None)
    if not share or arguments.get("validation_data") is not None:
        return arguments
    x = arguments["x"]
    num_samples = len(x) if isinstance(x, (np.ndarray, tf.Tensor)) else 0
    at = int(num_samples * (1 - share))
    if not 0 < at < num_samples:
        raise ValueError(
            "`validation_split` must be 0 unless `x` is an array, and leave "
            "samples of it for both parts. Received: validation_split="
            f"{share}, x={shown(x)}"
        )
    names = ("x", "y", "sample_weight")
    parts = {n: arguments[n] for n in names if arguments.get(n) is not None}
    return {
        **arguments,
        **{name: part[:at] for name, part in parts.items()},
        "validation_data": tuple(part[at:] for part in parts.values()),
    }
