"""Keras's own steps for a language model, on JAX and PyTorch."""

import keras
from keras import ops

from txl_keras.models.fit_data import check_trainable
from txl_keras.weights import takes_weight_decay


class KerasSteps:
    """Computes loss and metrics from losses of targets instead of logits."""

    trainer = None

    def __init__(self, model, metrics):
        self.model = model
        # Keras's own metric is a mean of batch means, whatever their sizes.
        self.loss = keras.metrics.Mean(name="loss")
        self.metrics = metrics
        model.train_function = model.test_function = None
        # In float16 Keras wraps the optimizer.
        optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        if optimizer is not None and optimizer.weight_decay:
            excluded = [
                weight
                for weight in model.weights
                if not takes_weight_decay(weight)
                or not optimizer._use_weight_decay(weight)
            ]
            if any(map(optimizer._use_weight_decay, excluded)):
                optimizer.exclude_from_weight_decay(excluded)

    def prepare_training(self, batches):
        """Sizes the memory for the data, so that a step compiles only once."""
        check_trainable(self.model)
        _grow(self.model._training_memory, batches.batch_size)

    def prepare(self, function, batches):
        """Sizes the memory of evaluation for the data."""
        _grow(self.model._inference_memory, batches.batch_size)

    def compute_loss(self, num_targets, nll, weights):
        """Returns the mean loss of a batch plus the losses of layers."""
        loss = _total(nll, weights) / ops.maximum(num_targets[0], 1e-9)
        return sum(self.model.losses, loss)

    def update_metrics(self, batch, num_targets, nll, weights):
        """Adds the losses of a batch."""
        self.loss.total.assign_add(_total(nll, weights))
        self.loss.count.assign_add(num_targets[0])
        for metric in self.metrics:
            metric.update_from_nll(nll, weights, batch["targets"])


def _total(nll, weights):
    weights = ops.cast(weights, nll.dtype)  # PyTorch leaves them arrays
    return ops.sum(ops.where(weights != 0, nll * weights, 0.0))


def _grow(stack, rows):
    stack.write(stack.read(rows))


class KerasBatches(keras.utils.PyDataset):
    """Reads `Batches` as triples for Keras's own steps.

    They are a dict of `inputs` and `targets`, int32 `(B, T)`, and `reset`,
    `(B,)`; the number of targets, for each row; and weights `(B, T)`.
    """

    def __init__(self, batches):
        super().__init__()
        self._batches = batches
        self.batch_size = batches.shape[0]

    @property
    def num_batches(self):
        return self._batches.number

    def __getitem__(self, index):
        if index == 0:
            self._iterator = iter(self._batches)
        batch = next(self._iterator)
        num_targets, weights = batch.pop("num_targets"), batch.pop("weights")
        return batch, num_targets, weights
