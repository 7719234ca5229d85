"""Keras's own steps for a language model, on JAX and PyTorch.

Letters: `B` batch, `T` segment.
"""

import itertools

import keras
import numpy as np
from keras import ops

from txl_keras.checks import check_shape
from txl_keras.checks import check_token_ids
from txl_keras.models.fit_data import check_iterable
from txl_keras.models.fit_data import check_trainable
from txl_keras.models.fit_data import entries_of
from txl_keras.models.fit_data import first_of
from txl_keras.weights import takes_weight_decay


class KerasSteps:
    """Computes loss and metrics from losses of targets instead of logits."""

    trainer = jit_compile = None

    def __init__(self, model, metrics):
        self.model = model
        # Keras's own metric is a mean of batch means, whatever their sizes.
        self.loss = keras.metrics.Mean(name="loss")
        self.metrics = metrics
        model.train_function = model.test_function = None
        optimizer = model.optimizer
        if optimizer is not None and optimizer.weight_decay:
            optimizer.exclude_from_weight_decay(
                [w for w in model.weights if not takes_weight_decay(w)]
            )

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


class Batches(keras.utils.PyDataset):
    """Completes batches of token ids, read in order.

    An item is a triple: a dict of `inputs` and `targets`, int32 `(B, T)`, and
    `reset`, `(B,)`; the number of targets, for each row; and weights `(B, T)`.
    """

    def __init__(self, source, vocabulary_size, steps=None, begins_cold=True):
        super().__init__()
        self._vocabulary_size = vocabulary_size
        self._begins_cold = begins_cold
        self._is_short = False
        if hasattr(source, "as_numpy_iterator"):  # of tf.data
            number = int(source.cardinality())
            self._read = source.as_numpy_iterator
        else:
            check_iterable(source)
            number = getattr(source, "num_batches", None)
            if hasattr(source, "__len__"):
                number = len(source)
            self._read = lambda: iter(source)
        if steps is None and (number == -1 or self._read() is source):
            raise ValueError(
                "`steps_per_epoch`, `validation_steps` or `steps` must be "
                "given with a dataset that has no end, and with a generator"
            )
        if steps is None and (number is None or number < 0):
            number = sum(1 for _ in self._read())
        # Data without an end is read on from epoch to epoch.
        self._num_batches = number if steps is None else None
        iterator = self._read()
        first = first_of(iterator)
        # A generator is read once; other data is read again in each epoch.
        self._given = iterator is source and itertools.chain([first], source)
        inputs = np.asarray(entries_of(first)["inputs"])
        check_shape("x", inputs, (None, None), "Each batch must be (B, T)")
        self._shape = inputs.shape
        self.batch_size = inputs.shape[0]

    @property
    def num_batches(self):
        return self._num_batches

    def __getitem__(self, index):
        batch = next(self._iterator, None) if index else None
        is_first = batch is None
        if is_first:
            self._iterator = self._given or self._read()
            batch = next(self._iterator, None)
            if batch is None:
                raise ValueError(
                    "`x` must have batches for every epoch: a generator can be "
                    "read only once."
                )
        return self._complete(batch, is_first)

    def _complete(self, batch, is_first):
        given = entries_of(batch)
        inputs, targets = (
            np.asarray(
                check_token_ids(name, ids, self._vocabulary_size), "int32"
            )
            for name, ids in (("x", given["inputs"]), ("y", given["targets"]))
        )
        check_shape("y", targets, inputs.shape)
        weights = np.asarray(given.get("weights", 1.0), "float32")
        if not np.isfinite(weights).all():
            raise ValueError(
                "`sample_weight` must be finite. Received: NaN or infinity"
            )
        if weights.ndim == 1:
            weights = weights[:, None]
        weights = np.broadcast_to(weights, inputs.shape)
        sizes, expected = inputs.shape, self._shape
        was_short = self._is_short and not is_first
        self._is_short = sizes[0] < expected[0]
        if sizes[0] > expected[0] or sizes[1:] != expected[1:] or was_short:
            raise ValueError(
                f"All batches must have the shape {expected} of the first one; "
                f"only the last may have fewer rows. Received: {sizes}"
            )
        num_targets = inputs.size  # as in `keras.losses`
        if isinstance(batch, dict):
            num_targets = given.get("num_targets", weights.sum())
        reset = np.asarray(given.get("reset", np.zeros(sizes[0])), bool)
        missing = expected[0] - sizes[0]

        def pad(x):
            return np.pad(x, [(0, missing), *[(0, 0)] * (x.ndim - 1)])

        arrays = {"inputs": inputs, "targets": targets, "reset": reset}
        arrays = {name: pad(x) for name, x in arrays.items()}
        if is_first and self._begins_cold:
            arrays["reset"] = np.ones_like(arrays["reset"])
        num_targets = np.full(expected[0], np.max(num_targets), "float32")
        return arrays, num_targets, pad(weights)
