"""Cuts a stream of tokens in segments for recurrent training and evaluation.

`B` rows of a batch, `T` tokens of a segment, `P` predictions of the stream.
"""

import numpy as np
import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.checks import check_token_ids
from txl_keras.data.layouts import DocumentSegments
from txl_keras.data.layouts import Roll
from txl_keras.data.layouts import Sequential
from txl_keras.data.layouts import Shuffle
from txl_keras.data.layouts import TextSegments
from txl_keras.data.layouts import VaryingLength
from txl_keras.data.layouts import WholeSegments
from txl_keras.data.step_batches import StepBatches

ORDERS = ("sequential", "roll", "shuffle")
NUM_IDS = 1 << 31  # those that int32 can hold, whatever the vocabulary


class Segments(StepBatches):
    """A token stream as batches of segments, a pure function of the step.

    A stream of P + 1 tokens has P predictions: prediction p reads token p and
    its target is token p + 1. The first token has nothing before it and is
    never a target. In training row r of B takes the predictions from
    `r * P // B` up to `(r + 1) * P // B`, and step after step reads its next
    T. So a model that keeps memory by row reads B long texts at once:

    ```
    20 tokens, B = 2, T = 4          step 0        step 1
    inputs of row 0              0  1  2  3    4  5  6  7
    inputs of row 1              9 10 11 12   13 14 15 16
    ```

    In evaluation rows take whole segments of T, those at the multiples of T,
    so that what a segment is does not depend on B; and with
    `warmup_segments` what is in memory does not either.

    The steps of an epoch repeat without end, and step s of any size is
    computed at once, without reading the steps before it. What is random is
    drawn from the seed and the epoch.

    Args:
        tokens: Integer array of shape `(P + 1,)`, of any integer dtype; or a
            `np.memmap`, or what else has a length, a `dtype`, and slices that
            are arrays: only what a step needs is read.
        batch_size: Integer B, over all replicas.
        segment_length: Integer T.
        drop_remainder: Boolean. True, for training: an epoch ends when the
            shortest row has no complete segment left. False, for evaluation:
            it ends when every prediction was made once; what is missing at the
            end of a row is padded with token 0 and weight 0.
        documents: Optional integer array of shape `(D,)`, the positions where
            documents begin, the first one 0. It may be a `np.memmap`. Only
            `order="shuffle"` and `reset_documents` look at it.
        order: String. `"sequential"`: as above. In training also `"roll"`:
            every row begins at another token in each epoch and goes around,
            see `layouts.Roll`; and `"shuffle"`: `documents` come in another
            order in each epoch, see `layouts.Shuffle`.
        reset_documents: Boolean. True: memory never crosses from one of the
            `documents` to the next. Each begins a segment, and its last one is
            padded.
        warmup_segments: Integer, segments that a row reads before its own, of
            weight 0. For evaluation only; see
            `txl_keras.evaluation.evaluator.warmup_segments`.
        varlen: Boolean. True, in training only: the steps have segments of
            varying length around T, see `layouts.VaryingLength`.
        half_loss: Boolean. True, in training only: of each segment the first
            half is read and not scored, as it has less before it ("half
            losses" of section 4.2 of Dai et al., 2019). With the order
            `"roll"` all tokens are targets in some epoch, but a few where the
            part of a row begins and ends.
        seed: Integer, of all that is drawn.

    A batch is a dict of:
        inputs: `(B, T)` int32.
        targets: `(B, T)` int32, the token after each input.
        weights: `(B, T)` float32, 1, or 0 where padded or not to be scored.
        reset: `(B,)` bool, True where memory must be forgotten, as a row begins
            anew: in the first step of an epoch, and where `order`, `documents`
            and `warmup_segments` say so.
        num_targets: float32, the sum of the weights of all B rows, whichever
            rows were asked for. The loss is a mean over so many.
        bucket: int32, with `varlen` only: the segments of this step have
            `segment_lengths[bucket]` tokens, and T is the longest of these.

    Raises:
        ValueError: If the tokens are not 1-D integers, if a size is not a
            positive integer, if there are too few tokens, or on arguments that
            exclude each other.

    Example:

    >>> segments = Segments(np.arange(20), 2, 4, drop_remainder=False)
    >>> len(segments)
    3
    >>> segments.batch(2)["targets"].tolist()
    [[0, 0, 0, 0], [17, 18, 19, 0]]
    >>> float(segments.batch(2)["num_targets"])
    3.0
    """

    def __init__(
        self,
        tokens,
        batch_size,
        segment_length,
        drop_remainder,
        *,
        documents=None,
        order="sequential",
        reset_documents=False,
        warmup_segments=0,
        varlen=False,
        half_loss=False,
        seed=0,
    ):
        self.tokens = _check_integers("tokens", tokens)
        self.batch_size = check_integer("batch_size", batch_size, 1)
        self.segment_length = check_integer("segment_length", segment_length, 1)
        self.drop_remainder = drop_remainder
        self.order = order
        self.reset_documents = reset_documents
        self.warmup_segments = check_integer(
            "warmup_segments", warmup_segments, 0
        )
        self.varlen = varlen
        self.half_loss = half_loss
        self.seed = check_integer("seed", seed, 0)
        if documents is not None:
            documents = _check_integers("documents", documents)
            documents = documents.astype(np.int64, copy=False)
        self._check_combination(documents)
        self._layout = self._make_layout(documents)

    @property
    def num_predictions(self):
        """P, the number of tokens that have a token before them."""
        return len(self.tokens) - 1

    @property
    def steps_per_epoch(self):
        """Steps until the rows begin anew."""
        return self._layout.steps_per_epoch

    @property
    def segment_lengths(self):
        """Tuple of the lengths that segments have: more with `varlen`."""
        return self._layout.lengths

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
            ValueError: If the step is negative, a row is not in the batch, or
                a token is negative or more than int32 can hold.
        """
        step = check_integer("step", step, 0)
        num_rows = self._check_rows(first_row, num_rows)
        epoch, step = divmod(step, self.steps_per_epoch)
        rows = self._layout.rows(epoch, step)
        # Before them nothing is a target.
        firsts = rows.counts // 2 if self.half_loss else 0 * rows.counts
        num_targets = (rows.counts - firsts)[rows.scored].sum()
        starts, counts, scored, reset, firsts = (
            array[first_row : first_row + num_rows] for array in (*rows, firsts)
        )
        tokens = self._read(epoch, starts, counts, self._width)
        index = np.arange(self._width)
        is_read = index < counts[:, None]
        is_target = is_read & (index >= firsts[:, None]) & scored[:, None]
        batch = {
            "inputs": np.where(is_read, tokens[:, :-1], 0),
            "targets": np.where(is_read, tokens[:, 1:], 0),
            "weights": is_target.astype(np.float32),
            "reset": reset,
            "num_targets": np.float32(num_targets),
        }
        if self.varlen:
            bucket = self.segment_lengths.index(rows.counts[0])
            batch["bucket"] = np.int32(bucket)
        return batch

    def target_positions(self, step):
        """Where the targets of a step are in the stream, in evaluation.

        Args:
            step: Integer, 0 or more. Steps beyond an epoch begin it again.

        Returns:
            int64 array of shape `(B, T)`: the position among the tokens of
            every target that is scored, and -1 where weights are 0.

        Raises:
            ValueError: If the segments are for training, or the step is
                negative.

        Example:

        >>> segments = Segments(np.arange(20), 2, 4, drop_remainder=False)
        >>> segments.target_positions(2).tolist()
        [[-1, -1, -1, -1], [17, 18, 19, -1]]
        """
        if self.drop_remainder:  # where a stream may be shuffled
            raise ValueError(
                "`target_positions()` needs segments for evaluation, "
                f"`drop_remainder=False`. Received: {self._describe()}"
            )
        step = check_integer("step", step, 0) % self.steps_per_epoch
        rows = self._layout.rows(0, step)
        index = np.arange(self._width)
        is_scored = (index < rows.counts[:, None]) & rows.scored[:, None]
        return np.where(is_scored, rows.starts[:, None] + 1 + index, -1)

    def arrays(self):
        """Lays out one epoch for `model.fit`, in one piece in memory.

        Successive batches of B samples, in order, continue each other row by
        row: `model.fit(x, y, batch_size=B, shuffle=False)`.

        Returns:
            Tuple `(x, y)` of int32 arrays of shape `(steps_per_epoch * B, T)`,
            inputs and targets.

        Raises:
            ValueError: If the segments have weights or resets that `fit`
                would not know of: they need `drop_remainder=True`, and the
                default order.

        Example:

        >>> x, y = Segments(np.arange(20), 2, 4, drop_remainder=True).arrays()
        >>> x[2].tolist(), y[2].tolist()  # row 0 of the second batch
        ([4, 5, 6, 7], [5, 6, 7, 8])
        """
        is_plain = self.drop_remainder and self.order == "sequential"
        others = self.reset_documents, self.varlen, self.half_loss
        if not is_plain or any(others):
            raise ValueError(
                "`arrays()` has no place for weights and resets, and needs "
                "segments without. Received: " + self._describe()
            )
        batches = [self.batch(step) for step in range(self.steps_per_epoch)]
        return tuple(
            np.concatenate([batch[key] for batch in batches])
            for key in ("inputs", "targets")
        )

    def _signature(self, num_rows):
        shape = (num_rows, self._width)
        signature = {
            "inputs": tf.TensorSpec(shape, tf.int32),
            "targets": tf.TensorSpec(shape, tf.int32),
            "weights": tf.TensorSpec(shape, tf.float32),
            "reset": tf.TensorSpec((num_rows,), tf.bool),
            "num_targets": tf.TensorSpec((), tf.float32),
        }
        if self.varlen:
            signature["bucket"] = tf.TensorSpec((), tf.int32)
        return signature

    @property
    def _width(self):
        """T, or the longest of varying lengths."""
        return self.segment_lengths[-1]

    def _read(self, epoch, starts, counts, width):
        """`(rows, width + 1)`: inputs of rows and the token after them."""
        is_int32 = np.can_cast(self.tokens.dtype, np.int32)
        dtype = np.int32 if is_int32 else np.int64
        tokens = np.zeros((len(starts), width + 1), dtype)
        spans = []
        for row, start, count in zip(
            tokens, starts.tolist(), counts.tolist(), strict=True
        ):
            if not count:
                continue  # an idle row has no last target either
            done = 0
            stop = start + count + 1
            for begin, end in self._layout.spans(epoch, start, stop):
                row[done : done + end - begin] = self.tokens[begin:end]
                done += end - begin
                spans.append((begin, end))
        if tokens.min() < 0 or tokens.max() >= NUM_IDS:
            for begin, end in spans:  # which names the place
                ids = self.tokens[begin:end]
                check_token_ids(f"tokens[{begin}:{end}]", ids, NUM_IDS)
        return tokens.astype(np.int32, copy=False)

    def _make_layout(self, documents):
        num_tokens, length = len(self.tokens), self.segment_length
        sizes = (num_tokens, self.batch_size, length)
        if self.reset_documents or not self.drop_remainder:
            if self.reset_documents:
                seed = self.seed if self.order == "shuffle" else None
                segments = DocumentSegments(documents, num_tokens, length, seed)
            else:
                segments = TextSegments(num_tokens, length)
            return WholeSegments(
                segments,
                self.batch_size,
                self.drop_remainder,
                self.warmup_segments,
            )
        if self.varlen:
            return VaryingLength(*sizes, self.seed)
        if self.order == "roll":
            return Roll(*sizes, self.seed)
        if self.order == "shuffle":
            return Shuffle(documents, *sizes, self.seed)
        return Sequential(*sizes)

    def _check_combination(self, documents):
        if self.order not in ORDERS:
            raise ValueError(
                f"`order` must be one of {ORDERS}. "
                f"Received: order={self.order!r}"
            )
        reorders = self.order != "sequential" or self.varlen
        goes_around = self.order == "roll" or self.varlen
        needs_documents = self.order == "shuffle" or self.reset_documents
        for broken, rule in (
            (
                reorders and not self.drop_remainder,
                "`order` and `varlen` are for training, `drop_remainder=True`",
            ),
            (
                self.half_loss and not self.drop_remainder,
                "`half_loss` is for training, `drop_remainder=True`",
            ),
            (
                self.warmup_segments and self.drop_remainder,
                "`warmup_segments` is for evaluation, `drop_remainder=False`",
            ),
            (
                self.varlen and self.order != "sequential",
                "`varlen` needs `order='sequential'`",
            ),
            (
                self.reset_documents and goes_around,
                "`reset_documents` excludes `order='roll'` and `varlen`",
            ),
            (
                needs_documents and documents is None,
                "`order='shuffle'` and `reset_documents` need `documents`",
            ),
        ):
            if broken:
                raise ValueError(
                    f"{rule}. Received: {self._describe()}, documents="
                    + ("None" if documents is None else "an array")
                )

    def _describe(self):
        names = (
            "drop_remainder",
            "order",
            "reset_documents",
            "warmup_segments",
            "varlen",
            "half_loss",
        )
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)


def _check_integers(name, values):
    """Checks that something is a sequence of integers, without reading it."""
    if isinstance(values, (list, tuple)):
        values = np.asarray(values)
    shape = getattr(values, "shape", (None,))
    dtype = getattr(values, "dtype", None)
    if len(shape) != 1 or dtype is None or np.dtype(dtype).kind not in "iu":
        raise ValueError(
            f"`{name}` must be integers of shape (n,). Received: "
            f"{type(values).__name__}, shape {shape}, dtype {dtype}"
        )
    # Slices of a memmap itself are slow to make.
    return np.asarray(values) if isinstance(values, np.ndarray) else values
