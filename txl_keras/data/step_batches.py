"""Batches that are a pure function of the step, as datasets.

`B` rows of a batch.
"""

import numpy as np
import tensorflow as tf

from txl_keras.checks import check_integer

_NO_END = np.iinfo(np.int64).max


class StepBatches:
    """What `Segments` and what is made of them have in common.

    Attributes:
        batch_size: Integer B, over all replicas.
        steps_per_epoch: Integer, steps until the rows begin anew.
        segment_length: Integer T, tokens of a row.
    """

    def __len__(self):
        return self.steps_per_epoch

    def batch(self, step, first_row=0, num_rows=None):
        """Computes the batch of a step, or some of its rows.

        Args:
            step: Integer, 0 or more. Steps beyond an epoch begin it again.
            first_row: Integer.
            num_rows: Optional integer. Defaults to all rows from `first_row`.

        Returns:
            Dict of arrays.
        """
        raise NotImplementedError

    def _signature(self, num_rows):
        """Dict of the `tf.TensorSpec` of `num_rows` rows of a batch."""
        raise NotImplementedError

    def dataset(self, first_step=0, num_steps=None, first_row=0, num_rows=None):
        """Makes a dataset of batches that starts at a step at once.

        Args:
            first_step: Integer, 0 or more.
            num_steps: Optional integer. None is without end.
            first_row: Integer.
            num_rows: Optional integer. Defaults to all rows from `first_row`.

        Returns:
            A `tf.data.Dataset` of dicts with static shapes.

        Raises:
            ValueError: If a step is negative or a row is not in the batch.
        """
        num_rows = self._check_rows(first_row, num_rows)
        return self._dataset(first_step, num_steps, first_row, 1, num_rows)

    def distribute(
        self, strategy, first_step=0, num_steps=None, in_memory=False
    ):
        """Makes a distributed dataset with row r always on the same replica.

        With R replicas, replica k gets the rows from `k * B // R` up to
        `(k + 1) * B // R` in every step, whichever host it is on.

        Args:
            strategy: A `tf.distribute.Strategy`.
            first_step: Integer, 0 or more.
            num_steps: Optional integer. None is without end.
            in_memory: Boolean. True: all steps are read here and now, and
                sent to the hosts. Otherwise each host reads its own by
                Python, which must run there. See `Feed`.

        Returns:
            A `tf.distribute.DistributedDataset` of dicts, one step an element.

        Raises:
            ValueError: If the rows do not divide by the replicas, or the
                replicas by the workers.
        """
        replicas = strategy.num_replicas_in_sync
        rows = replica_batch_size(self.batch_size, strategy)

        def worker_dataset(context):
            local, rest = divmod(replicas, context.num_input_pipelines)
            if rest:
                raise ValueError(
                    "All workers must have as many replicas. Received: "
                    f"{replicas} replicas on {context.num_input_pipelines} "
                    "workers"
                )
            first_row = context.input_pipeline_id * local * rows
            make = self._dataset_in_memory if in_memory else self._dataset
            return make(first_step, num_steps, first_row, local, rows)

        return strategy.distribute_datasets_from_function(worker_dataset)

    def _dataset(self, first_step, num_steps, first_row, num_parts, num_rows):
        """Yields `num_parts` elements of `num_rows` rows for each step.

        Consecutive elements of a worker go to its consecutive replicas.
        """
        check_integer("first_step", first_step, 0)
        end = _NO_END
        if num_steps is not None:
            check_integer("num_steps", num_steps, 1)
            end = (first_step + num_steps) * num_parts

        signature = self._signature(num_rows)
        dtypes = [spec.dtype for spec in signature.values()]

        def element(index):
            step, part = divmod(int(index), num_parts)
            batch = self.batch(step, first_row + part * num_rows, num_rows)
            return [batch[key] for key in signature]

        def load(index):
            arrays = tf.numpy_function(element, [index], dtypes)
            return {
                key: tf.ensure_shape(array, signature[key].shape)
                for key, array in zip(signature, arrays, strict=True)
            }

        dataset = tf.data.Dataset.range(first_step * num_parts, end)
        return dataset.map(load).prefetch(tf.data.AUTOTUNE)

    def _dataset_in_memory(
        self, first_step, num_steps, first_row, num_parts, num_rows
    ):
        """The elements of `_dataset`, as tensors on the device of the host."""
        signature = self._signature(num_rows)
        steps = range(first_step, first_step + num_steps)
        batches = [
            self.batch(step, first_row + part * num_rows, num_rows)
            for step in steps
            for part in range(num_parts)
        ]
        return tf.data.Dataset.from_tensor_slices(
            {
                key: np.stack([batch[key] for batch in batches])
                for key in signature
            }
        )

    def _check_rows(self, first_row, num_rows):
        check_integer("first_row", first_row, 0)
        if num_rows is None:
            num_rows = self.batch_size - first_row
        check_integer("num_rows", num_rows, 1)
        if first_row + num_rows > self.batch_size:
            raise ValueError(
                "`first_row` and `num_rows` must be within the batch. "
                f"Received: first_row={first_row}, num_rows={num_rows}, "
                f"batch_size={self.batch_size}"
            )
        return num_rows


def replica_batch_size(batch_size, strategy, name="batch_size"):
    """Rows of a replica.

    Args:
        batch_size: Integer, rows over all replicas.
        strategy: The `tf.distribute.Strategy`.
        name: String, what the caller calls `batch_size`.

    Returns:
        Integer.

    Raises:
        ValueError: If the rows do not divide over the replicas.
    """
    replicas = strategy.num_replicas_in_sync
    if batch_size % replicas:
        raise ValueError(
            f"`{name}` must be divisible by the number of replicas. "
            f"Received: {name}={batch_size}, {replicas} replicas"
        )
    return batch_size // replicas
