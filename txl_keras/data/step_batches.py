"""Datasets of batches that are a pure function of the step, on any strategy."""

from concurrent import futures
from typing import Any

import numpy as np

from txl_keras.backend import tf
from txl_keras.checks import check_integer

_PREFETCHED_STEPS = 4


class StepBatches:
    """Base class of batches with `steps_per_epoch` and `batch_size`."""

    def __len__(self):
        return self.steps_per_epoch

    def batch(
        self, step: int, first_row: int = 0, num_rows: int | None = None
    ) -> dict:
        """Computes the batch of a step, or some of its rows.

        Args:
            step: Integer, 0 or more. Steps beyond the first epoch belong to
                later epochs.
            first_row: Integer.
            num_rows: Optional integer. Defaults to all rows from `first_row`.
        """
        step = check_integer("step", step, 0)
        check_integer("first_row", first_row, 0)
        if num_rows is None:
            num_rows = self.batch_size - first_row
        check_integer("num_rows", num_rows, 1, self.batch_size - first_row)
        return self._batch(step, slice(first_row, first_row + num_rows))

    def _batch(self, step, rows):
        """Computes the rows of a slice, after `batch` has checked it."""
        raise NotImplementedError

    def dataset(
        self,
        first_step: int = 0,
        num_steps: int | None = None,
        first_row: int = 0,
        num_rows: int | None = None,
    ) -> "tf.data.Dataset":
        """Makes a dataset of batches that starts directly at a step.

        By default it is infinite. Rows are chosen as in `batch`.
        """
        start, end = check_integer("first_step", first_step, 0), None
        if num_steps is not None:
            end = start + check_integer("num_steps", num_steps, 1)
        # All batches have the keys, dtypes and shapes of the first batch.
        first = self.batch(start, first_row, num_rows)
        spec = tf.nest.map_structure(tf.type_spec_from_value, first)
        return dataset_of(
            lambda step: self.batch(step, first_row, num_rows), spec, start, end
        )

    def distribute(
        self,
        strategy: "tf.distribute.Strategy",
        first_step: int = 0,
        num_steps: int | None = None,
        in_memory: bool = False,
    ) -> Any:
        """Makes a distributed dataset with row r always on the same replica.

        With R replicas, replica k gets the rows from `k * B // R` up to
        `(k + 1) * B // R` in every step, on any host.

        Args:
            strategy: A `tf.distribute.Strategy`.
            first_step: Integer, 0 or more.
            num_steps: Optional integer. None makes an infinite dataset.
            in_memory: Boolean. True: all steps are read immediately and sent to
                the hosts; `num_steps` must be given. False: each host reads
                its own rows in Python, which must run there. See `Feed`.
        """
        rows = replica_batch_size(self.batch_size, strategy)
        replicas = strategy.num_replicas_in_sync

        def worker_dataset(context):
            # TensorFlow gives all workers the same number of replicas.
            local = replicas // context.num_input_pipelines
            read = self._in_memory if in_memory else self.dataset
            first_row = context.input_pipeline_id * local * rows
            dataset = read(first_step, num_steps, first_row, local * rows)
            if local == 1:
                return dataset

            def per_replica(value):
                if value.shape.rank == 0:
                    return tf.fill([local], value)
                return tf.reshape(value, (local, rows, *value.shape[1:]))

            return dataset.map(
                lambda batch: tf.nest.map_structure(per_replica, batch)
            ).unbatch()

        return strategy.distribute_datasets_from_function(worker_dataset)

    def _in_memory(self, first_step, num_steps, *rows):
        """Reads all batches of `dataset` immediately."""
        check_integer("num_steps", num_steps, 1)
        steps = range(first_step, first_step + num_steps)
        batches = [self.batch(step, *rows) for step in steps]
        return tf.data.Dataset.from_tensor_slices(
            {key: np.stack([b[key] for b in batches]) for key in batches[0]}
        )


class Feed:
    """Provides iterators over the next steps of a text, on any strategy."""

    # If this program runs on the hosts of all replicas, each host reads its own
    # rows in the background with one infinite iterator. If another machine
    # drives a TPU slice, the slice's hosts run TensorFlow but no Python. Then
    # this machine reads the requested steps and sends each host its rows. While
    # a host consumes them, it sends as many steps in advance.

    def __init__(self, segments, strategy, first_step=0, num_steps=None):
        self._segments = segments
        self._strategy = strategy
        self._step = first_step
        self._iterator = None
        has_hosts_without_python = (
            isinstance(strategy, tf.distribute.TPUStrategy)
            and "/job:localhost" not in strategy.extended.worker_devices[0]
        )
        if not has_hosts_without_python:
            self._iterator = iter(
                segments.distribute(strategy, first_step, num_steps)
            )
            return
        self._end = None if num_steps is None else first_step + num_steps
        self._sender = futures.ThreadPoolExecutor(1)
        self._ahead = None, None  # first step and number, future iterator

    def next(self, num_steps):
        """Returns an iterator over the next steps; all must be consumed."""
        if self._iterator is not None:
            return self._iterator
        steps, sent = self._ahead
        # The guess is wrong only if the loop stops early.
        if steps != (self._step, num_steps):
            sent = self._sender.submit(self._send, self._step, num_steps)
        self._step += num_steps
        if self._end is None or self._step < self._end:
            steps = self._step, num_steps
            self._ahead = steps, self._sender.submit(self._send, *steps)
        return sent.result()

    def _send(self, first_step, num_steps):
        # Leaving the scope waits for the hosts: otherwise a step could run
        # before its host has made the iterator, and fail.
        with tf.experimental.async_scope():
            return iter(
                self._segments.distribute(
                    self._strategy, first_step, num_steps, in_memory=True
                )
            )


def dataset_of(batch, spec, start=0, end=None):
    """Makes a dataset of `batch(i)` from `start` on, of the type `spec`."""
    # `from_generator` would undo `txl_keras.training.keep_freed_memory`.
    specs = tf.nest.flatten(spec)

    def load(index):
        arrays = tf.numpy_function(
            lambda index: tf.nest.flatten(batch(int(index))),
            [index],
            [part.dtype for part in specs],
        )
        for array, part in zip(arrays, specs, strict=True):
            array.set_shape(part.shape)
        return tf.nest.pack_sequence_as(spec, arrays)

    indices = tf.data.Dataset.counter(start)
    if end is not None:
        indices = tf.data.Dataset.range(start, end)
    dataset = indices.map(load).prefetch(_PREFETCHED_STEPS)
    # There is nothing to tune, and when an iterator ends it would wait up to
    # half a second for the tuning thread.
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def replica_batch_size(batch_size, strategy, name="batch_size"):
    """Returns the per-replica batch size; `name` is for the error message."""
    replicas = strategy.num_replicas_in_sync
    if batch_size % replicas:
        raise ValueError(
            f"`{name}` must be divisible by the number of replicas. "
            f"Received: {name}={batch_size}, {replicas} replicas"
        )
    return batch_size // replicas
