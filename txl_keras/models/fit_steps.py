"""The steps of Keras's `fit` and `evaluate` for a language model."""

import random

import keras

from txl_keras.backend import tf
from txl_keras.compilation import compile_layers
from txl_keras.data.step_batches import replica_batch_size
from txl_keras.models.fit_data import check_trainable


class FitSteps:
    """Computes `Trainer` steps, without logits, for a model's `train_step`."""

    def __init__(self, model, metrics, jit_compile):
        self.model = model
        self.metrics = metrics
        self.jit_compile = jit_compile
        self.seed = random.getrandbits(32)  # of the dropout masks
        self.trainer = None  # for the latest batches
        self._shapes = {}
        self._strategy = model.distribute_strategy
        self._compiled_score = compile_layers(
            self._score,
            self._strategy,
            model,
            training=False,
            jit_compile=jit_compile,
        )
        model.train_function = model.test_function = None

    def prepare_training(self, dataset):
        """Makes a `Trainer` unless there is one for batches of this size."""
        from txl_keras.training.trainer import Trainer

        model, trainer = self.model, self.trainer
        check_trainable(model)
        batch_size = self.prepare("train_function", dataset)
        if trainer and batch_size == trainer.batch_size:
            return
        self.trainer = Trainer(
            model,
            model.optimizer,
            self._strategy,
            batch_size,
            seed=self.seed,
            jit_compile=self.jit_compile,
        )
        # Dropout depends on the step.
        done = trainer.step if trainer else model.optimizer.iterations
        self.trainer.step.assign(tf.cast(done, tf.int64))

    def prepare(self, function, dataset):
        """Drops a function of the model that was traced for other sizes."""
        # Otherwise Keras would trace it again without static sizes.
        shape = dataset.element_spec["inputs"].shape
        if self._shapes.get(function) != shape:
            setattr(self.model, function, None)
            self._shapes[function] = shape
        return self.check_rows(dataset)

    def check_rows(self, dataset):
        """Returns the batch size, unless replicas cannot share the rows."""
        batch_size = dataset.element_spec["inputs"].shape[0]
        # TensorFlow would give several workers the same rows.
        workers = tf.distribute.MultiWorkerMirroredStrategy
        is_short = batch_size < self._strategy.num_replicas_in_sync
        if is_short or isinstance(self._strategy, workers):
            replica_batch_size(batch_size, self._strategy)
        return batch_size

    def train_step(self, batch):
        """Trains on the rows of one replica, for the model's `train_step`."""
        rows = self.trainer.memory.batch_size
        batch = {
            name: tf.ensure_shape(value, (rows, *value.shape[1:]))
            for name, value in batch.items()
        }
        batch["num_targets"] = batch["num_targets"][0]
        nll = self.trainer.scored_step(batch)[1]
        if self.model.compute_dtype == "float16":
            batch = _without_overflows(batch, nll)
        return self._count(nll, batch)

    def test_step(self, batch):
        """Evaluates the rows of one replica, for the model's `test_step`."""
        # Not compiled by XLA: the variables take the size of the data.
        stack = self.model._inference_memory
        memory = stack.read(keras.ops.shape(batch["inputs"])[0])
        nll, memory = self._compiled_score(batch, memory)
        stack.write(memory)
        return self._count(
            nll, {**batch, "num_targets": batch["num_targets"][0]}
        )

    def _score(self, batch, memory):
        """Returns the losses and the new memory, for XLA to compile."""
        inputs, targets = batch["inputs"], batch["targets"]
        return self.model.score(inputs, targets, memory, batch["reset"])

    def _count(self, nll, batch):
        """Updates the metrics with the losses of one replica; returns them."""
        weights = batch["weights"]
        for metric in self.metrics:
            metric.update_from_nll(nll, weights, batch["targets"])
        share = batch["num_targets"] / self._strategy.num_replicas_in_sync
        total = tf.reduce_sum(tf.math.multiply_no_nan(nll, weights))
        loss = tf.math.divide_no_nan(total, share)
        for metric in self.model.metrics:
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=share)
        results = self.model.get_metrics_result()
        if isinstance(
            self._strategy, tf.distribute.MultiWorkerMirroredStrategy
        ):  # Keras reduces their results along the first axis
            results = {name: value[None] for name, value in results.items()}
        return results


def _without_overflows(batch, nll):
    """Leaves out targets whose loss overflowed, unless all did."""
    # Such a step may be skipped, but an epoch in which a whole batch overflowed
    # must not look like a good one.
    is_finite = tf.math.is_finite(nll)
    is_finite |= ~tf.reduce_any(is_finite & (batch["weights"] != 0))
    weights = tf.where(is_finite, batch["weights"], 0.0)
    share = tf.math.divide_no_nan(
        tf.reduce_sum(weights), tf.reduce_sum(batch["weights"])
    )
    num_targets = batch["num_targets"] * share
    return {**batch, "weights": weights, "num_targets": num_targets}
