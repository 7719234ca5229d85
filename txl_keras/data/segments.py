"""Cuts a stream of tokens in segments for recurrent training and evaluation.

`B` rows of a batch, `T` tokens of a segment, `P` predictions of the stream.
"""

import numpy as np
import tensorflow as tf

from txl_keras.checks import check_integer

_NO_END = np.iinfo(np.int64).max


class Segments:
    """A token stream as batches of segments, a pure function of the step.

    A stream of P + 1 tokens has P predictions: prediction p reads token p and
    its target is token p + 1. The first token has nothing before it and is
    never a target. Row r of B takes the predictions from `r * P // B` up to
    `(r + 1) * P // B`, and step after step reads its next T. So a model that
    keeps memory by row reads B long texts at once:

    ```
    20 tokens, B = 2, T = 4          step 0        step 1        step 2
    inputs of row 0              0  1  2  3    4  5  6  7    8  .  .  .
    inputs of row 1              9 10 11 12   13 14 15 16   17 18  .  .
    ```

    The steps of an epoch repeat without end, and step s of any size is
    computed at once, without reading the steps before it. Nothing is shuffled.

    Args:
        tokens: Integer array of shape `(P + 1,)`, of any integer dtype. It may
            be a `np.memmap`: only what a step needs is read.
        batch_size: Integer B, over all replicas.
        segment_length: Integer T.
        drop_remainder: Boolean. True, for training: an epoch ends when the
            shortest row has no complete segment left. False, for evaluation:
            it ends when every prediction was made once; what is missing at the
            end of a row is padded with token 0 and weight 0.

    A batch is a dict of:
        inputs: `(B, T)` int32.
        targets: `(B, T)` int32, the token after each input.
        weights: `(B, T)` float32, 1, or 0 where padded.
        reset: `(B,)` bool, True where a row begins anew, which is every row in
            the first step of an epoch. Memory must be forgotten there.

    Raises:
        ValueError: If the tokens are not a 1-D integer array, if a size is not
            a positive integer, or if there are too few tokens.

    Example:

    >>> segments = Segments(np.arange(20), 2, 4, drop_remainder=False)
    >>> len(segments)
    3
    >>> segments.batch(2)["targets"].tolist()
    [[9, 0, 0, 0], [18, 19, 0, 0]]
    """

    def __init__(self, tokens, batch_size, segment_length, drop_remainder):
        tokens = np.asarray(tokens)
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise ValueError(
                "`tokens` must be integers of shape (n,). "
                f"Received: shape {tokens.shape}, dtype {tokens.dtype}"
            )
        self.tokens = tokens
        self.batch_size = check_integer("batch_size", batch_size, 1)
        self.segment_length = check_integer("segment_length", segment_length, 1)
        self.drop_remainder = drop_remainder
        self._check_enough_tokens()
        # Row r has the predictions [bounds[r], bounds[r + 1]).
        rows = np.arange(batch_size + 1, dtype=np.int64)
        self._bounds = rows * self.num_predictions // batch_size  # [B + 1]

    @property
    def num_predictions(self):
        """P, the number of tokens that have a token before them."""
        return len(self.tokens) - 1

    @property
    def steps_per_epoch(self):
        """Steps until the rows begin anew."""
        shortest = self.num_predictions // self.batch_size
        if self.drop_remainder:
            return shortest // self.segment_length
        longest = -(-self.num_predictions // self.batch_size)
        return -(-longest // self.segment_length)

    def __len__(self):
        return self.steps_per_epoch

    def batch(self, step, first_row=0, num_rows=None):
        """Computes the batch of a step, or some of its rows.

        Args:
            step: Integer, 0 or more. Steps beyond an epoch begin it again.
            first_row: Integer.
            num_rows: Optional integer. Defaults to all rows from `first_row`.

        Returns:
            Dict of arrays with the keys and dtypes listed at the class, for
            the rows from `first_row` on.

        Raises:
            ValueError: If the step is negative or a row is not in the batch.
        """
        step = check_integer("step", step, 0)
        num_rows = self._check_rows(first_row, num_rows)
        segment = step % self.steps_per_epoch
        shape = (num_rows, self.segment_length)
        inputs = np.zeros(shape, np.int32)
        targets = np.zeros(shape, np.int32)
        weights = np.zeros(shape, np.float32)
        for row in range(num_rows):
            window = self._window(segment, first_row + row)
            count = len(window) - 1
            inputs[row, :count] = window[:-1]
            targets[row, :count] = window[1:]
            weights[row, :count] = 1.0
        return {
            "inputs": inputs,
            "targets": targets,
            "weights": weights,
            "reset": np.full(num_rows, segment == 0),
        }

    def arrays(self):
        """Lays out one epoch for `model.fit`, in one piece in memory.

        Successive batches of B samples, in order, continue each other row by
        row: `model.fit(x, y, batch_size=B, shuffle=False)`.

        Returns:
            Tuple `(x, y)` of int32 arrays of shape `(steps_per_epoch * B, T)`,
            inputs and targets.

        Raises:
            ValueError: If the segments were not made with
                `drop_remainder=True`, as `fit` would learn from padding.

        Example:

        >>> x, y = Segments(np.arange(20), 2, 4, drop_remainder=True).arrays()
        >>> x[2].tolist(), y[2].tolist()  # row 0 of the second batch
        ([4, 5, 6, 7], [5, 6, 7, 8])
        """
        if not self.drop_remainder:
            raise ValueError(
                "`arrays()` has no place for weights and needs segments "
                "without padding. Received: drop_remainder=False"
            )
        length = self.steps_per_epoch * self.segment_length
        rows = [self.tokens[b : b + length + 1] for b in self._bounds[:-1]]
        rows = np.stack(rows).astype(np.int32)  # [B, steps * T + 1]
        return self._by_step(rows[:, :-1]), self._by_step(rows[:, 1:])

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

    def distribute(self, strategy, first_step=0, num_steps=None):
        """Makes a distributed dataset with row r always on the same replica.

        With R replicas, replica k gets the rows from `k * B // R` up to
        `(k + 1) * B // R` in every step, whichever host it is on.

        Args:
            strategy: A `tf.distribute.Strategy`.
            first_step: Integer, 0 or more.
            num_steps: Optional integer. None is without end.

        Returns:
            A `tf.distribute.DistributedDataset` of dicts, one step an element.

        Raises:
            ValueError: If the rows do not divide by the replicas.
        """
        replicas = strategy.num_replicas_in_sync
        rows = replica_batch_size(self.batch_size, strategy)

        def worker_dataset(context):
            local = replicas // context.num_input_pipelines
            first_row = context.input_pipeline_id * local * rows
            return self._dataset(first_step, num_steps, first_row, local, rows)

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

    def _signature(self, num_rows):
        shape = (num_rows, self.segment_length)
        return {
            "inputs": tf.TensorSpec(shape, tf.int32),
            "targets": tf.TensorSpec(shape, tf.int32),
            "weights": tf.TensorSpec(shape, tf.float32),
            "reset": tf.TensorSpec((num_rows,), tf.bool),
        }

    def _window(self, segment, row):
        """The tokens of a segment and the one after: at most T + 1."""
        row_end = self._bounds[row + 1]
        start = self._bounds[row] + segment * self.segment_length
        start = min(start, row_end)
        end = min(start + self.segment_length, row_end)
        return self.tokens[start : end + 1]

    def _by_step(self, rows):
        """`(B, steps * T)` to `(steps * B, T)`."""
        rows = rows.reshape(self.batch_size, -1, self.segment_length)
        return rows.swapaxes(0, 1).reshape(-1, self.segment_length)

    def _check_enough_tokens(self):
        needed = 2
        if self.drop_remainder:
            needed = self.batch_size * self.segment_length + 1
        if len(self.tokens) < needed:
            raise ValueError(
                f"The text has {len(self.tokens)} tokens, and {needed} are "
                "needed for one step. Use a longer text, or lower "
                "--batch_size or --segment_length. Received: "
                f"batch_size={self.batch_size}, "
                f"segment_length={self.segment_length}"
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
