"""Cuts a token stream into batches of segments for training and evaluation."""

import numpy as np

from txl_keras.checks import check_integer
from txl_keras.checks import check_number
from txl_keras.checks import check_one_of
from txl_keras.checks import check_token_ids
from txl_keras.data.layouts import Layout
from txl_keras.data.layouts import concatenated
from txl_keras.data.layouts import document_lengths
from txl_keras.data.layouts import draw
from txl_keras.data.layouts import equal_texts
from txl_keras.data.step_batches import StepBatches

ORDERS = ("sequential", "roll", "shuffle")
NUM_IDS = 1 << 31  # ids that fit in int32, for any vocabulary


class Segments(StepBatches):
    """Serves a token stream as batches of segments, computed from the step.

    A stream of P + 1 tokens has P predictions: prediction p reads token p and
    its target is token p + 1. The first token has no context and is never a
    target. In training, row r of B reads the predictions from `r * P // B` up
    to `(r + 1) * P // B`, T per step, so that a model that keeps memory per row
    reads B long texts in parallel. In evaluation, segments begin at multiples
    of T, so their content does not depend on B. With `warmup_segments`, the
    content of memory does not depend on B either.

    Steps count through all epochs without end. The batch of any step is
    computed directly. All random choices depend only on the seed and the epoch.

    Args:
        tokens: Integer array of shape `(P + 1,)` and any integer dtype, a
            `np.memmap`, or any object with a length, a `dtype`, and slices that
            are arrays. Each step reads only the tokens that it needs.
        batch_size: Integer B, the global batch size over all replicas.
        segment_length: Integer T.
        drop_remainder: Boolean. True, for training: an epoch ends when the
            shortest row has no complete segment left. False, for evaluation: an
            epoch scores every prediction once, and the ends of rows are padded
            with token 0 and weight 0.
        documents: Optional integer array of shape `(D,)`, the positions where
            documents begin, starting with 0, for `order="shuffle"` and
            `reset_documents`.
        order: String. `"sequential"`: as described above. `"roll"`, for
            training: in each epoch a row begins at a random place and wraps
            around, where memory is reset. `"shuffle"`, for training: each
            epoch concatenates the `documents` in a new order, as the original
            code does for the One Billion Word corpus.
        reset_documents: Boolean. True: memory is reset at the start of each
            document. Each document begins a segment, and its last segment is
            padded.
        warmup_segments: Integer, number of segments that a row reads before its
            own, with weight 0, to fill its memory. For evaluation only; see
            `txl_keras.evaluation.evaluator.warmup_segments`.
        half_loss: Boolean. True, for training only: the first half of each
            segment is read but not scored, because it has less context ("half
            losses" in section 4.2 of Dai et al., 2019).
        cold_starts: Float from 0 to 1, for training only: the share of
            segments, drawn at random, before which memory is reset, so that a
            model also learns to read short prompts.
        seed: Integer, the seed of all random choices.

    A batch is a dict of:
        inputs: `(B, T)` int32.
        targets: `(B, T)` int32, the token after each input.
        weights: `(B, T)` float32, 1, or 0 where padded or not scored.
        reset: `(B,)` bool, True where memory must be reset before the step: in
            the first step of an epoch, and where `order`, `documents` or
            `warmup_segments` require it.
        num_targets: float32, the sum of the weights of all B rows, even if
            fewer rows were requested. The loss is a mean over this number.

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
        tokens: np.ndarray,
        batch_size: int,
        segment_length: int,
        drop_remainder: bool,
        *,
        documents: np.ndarray | None = None,
        order: str = "sequential",
        reset_documents: bool = False,
        warmup_segments: int = 0,
        half_loss: bool = False,
        cold_starts: float = 0.0,
        seed: int = 0,
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
        self.half_loss = half_loss
        self.cold_starts = check_number("cold_starts", cold_starts, 0, 1)
        self.seed = check_integer("seed", seed, 0)
        if documents is not None:
            documents = _check_integers("documents", documents)
        self._check_combination(documents)
        if reset_documents or order == "shuffle":
            documents = documents.astype(np.int64, copy=False)
        self._shuffled = None
        self._layout = self._make_layout(documents)

    @property
    def num_predictions(self) -> int:
        """Returns P, the number of tokens that have a token before them."""
        return len(self.tokens) - 1

    @property
    def steps_per_epoch(self) -> int:
        """Returns the number of steps per epoch."""
        return self._layout.steps_per_epoch

    def _batch(self, step, rows):
        epoch, step = divmod(step, self.steps_per_epoch)
        read = self._layout.rows(epoch, step)
        if self.cold_starts:
            drawn = draw(self.seed, epoch, step, np.arange(self.batch_size))
            is_cold = drawn * 2.0**-64 < self.cold_starts
            read = read._replace(reset=read.reset | is_cold)
        # Inputs before these positions have no target.
        firsts = read.counts // 2 if self.half_loss else 0 * read.counts
        num_targets = (read.counts - firsts)[read.scored].sum()
        starts, counts, scored, reset, firsts = (
            array[rows] for array in (*read, firsts)
        )
        tokens = self._read(epoch, starts, counts, self._layout.length)
        index = np.arange(self._layout.length)
        is_read = index < counts[:, None]
        is_target = is_read & (index >= firsts[:, None]) & scored[:, None]
        return {
            "inputs": np.where(is_read, tokens[:, :-1], 0),
            "targets": np.where(is_read, tokens[:, 1:], 0),
            "weights": is_target.astype(np.float32),
            "reset": reset,
            "num_targets": np.float32(num_targets),
        }

    def target_positions(self, step: int) -> np.ndarray:
        """Returns the stream positions of a step's targets, in evaluation.

        Returns:
            int64 array of shape `(B, T)`: the position among the tokens of
            every target that is scored, and -1 where the weight is 0.

        Example:

        >>> segments = Segments(np.arange(20), 2, 4, drop_remainder=False)
        >>> segments.target_positions(2).tolist()
        [[-1, -1, -1, -1], [17, 18, 19, -1]]
        """
        rule = "`target_positions()` needs `drop_remainder=False`"
        check_rules(self, {rule: self.drop_remainder})  # may be shuffled
        step = check_integer("step", step, 0) % self.steps_per_epoch
        rows = self._layout.rows(0, step)
        index = np.arange(self._layout.length)
        is_scored = (index < rows.counts[:, None]) & rows.scored[:, None]
        return np.where(is_scored, rows.starts[:, None] + 1 + index, -1)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns one epoch as two arrays in memory, for `model.fit`.

        Row b of each batch of B samples continues row b of the previous batch,
        so use `model.fit(x, y, batch_size=B, shuffle=False)`.

        Returns:
            Tuple `(x, y)` of int32 arrays of shape `(steps_per_epoch * B, T)`,
            inputs and targets.

        Raises:
            ValueError: If the segments have weights or resets, which `fit`
                would ignore.
        """
        is_plain = self.drop_remainder and self.order == "sequential"
        others = self.reset_documents, self.half_loss, self.cold_starts
        rule = (
            "`arrays()` returns no weights and resets: the segments must have "
            "`drop_remainder=True`, `order='sequential'` and no other option"
        )
        check_rules(self, {rule: not is_plain or any(others)})
        batches = [self.batch(step) for step in range(self.steps_per_epoch)]
        return tuple(
            np.concatenate([batch[key] for batch in batches])
            for key in ("inputs", "targets")
        )

    def _read(self, epoch, starts, counts, width):
        """Returns inputs and the token after them, `(rows, width + 1)`."""
        tokens = np.zeros((len(starts), width + 1), np.int64)
        for row, start, count in zip(
            tokens, starts.tolist(), counts.tolist(), strict=True
        ):
            if count:  # an idle row reads nothing, not even a last target
                spans = self._spans(epoch, start, start + count + 1)
                parts = [self.tokens[begin:end] for begin, end in spans]
                row[: count + 1] = np.concatenate(parts)
        check_token_ids("tokens", tokens, NUM_IDS)
        return tokens.astype(np.int32)

    def _spans(self, epoch, start, stop):
        """Returns the token ranges of `[start, stop)` of the stream."""
        if self._shuffled is None:
            return [(start, stop)]
        order, offsets = self._shuffled(epoch)
        first = np.searchsorted(offsets, start, "right") - 1
        last = np.searchsorted(offsets, stop, "left")
        shift = self._documents[order[first:last]] - offsets[first:last]
        starts = np.maximum(offsets[first:last], start) + shift
        stops = np.minimum(offsets[first + 1 : last + 1], stop) + shift
        return list(zip(starts.tolist(), stops.tolist(), strict=True))

    def _make_layout(self, documents):
        num_tokens, length = len(self.tokens), self.segment_length
        order = self.order
        if self.reset_documents:
            texts = documents, document_lengths(documents, num_tokens) - 1
        elif not self.drop_remainder:  # the whole text is one
            texts = np.zeros(1, np.int64), np.array([max(num_tokens - 1, 0)])
        else:
            spare = length - 1 if order == "roll" else 0  # the largest offset
            texts = equal_texts(num_tokens, self.batch_size, length, spare)
            if order == "shuffle":
                # Rows read the documents as one stream.
                lengths = document_lengths(documents, num_tokens)
                self._shuffled = concatenated(lengths, self.seed)
                self._documents, order = documents, "sequential"
        return Layout(
            *texts,
            self.batch_size,
            length,
            self.drop_remainder,
            self.warmup_segments,
            order,
            self.seed,
        )

    def _check_combination(self, documents):
        check_one_of("order", self.order, ORDERS)
        needs_documents = self.order == "shuffle" or self.reset_documents
        is_for_training = (
            self.order != "sequential" or self.half_loss or self.cold_starts
        )
        rules = {
            "`order`, `half_loss` and `cold_starts` are for training, "
            "`drop_remainder=True`": (
                is_for_training and not self.drop_remainder
            ),
            "`warmup_segments` is for evaluation, `drop_remainder=False`": (
                self.warmup_segments and self.drop_remainder
            ),
            "`reset_documents` excludes `order='roll'`": (
                self.reset_documents and self.order == "roll"
            ),
            "`order='shuffle'` and `reset_documents` need `documents`": (
                needs_documents and documents is None
            ),
        }
        check_rules(self, rules, has_documents=documents is not None)


def check_rules(segments, rules, **options):
    """Raises ValueError for the first of some rules that is broken."""
    names = (
        "segment_length", "drop_remainder", "order", "reset_documents",
        "warmup_segments", "half_loss", "cold_starts",
    )  # fmt: skip
    options = {name: getattr(segments, name) for name in names} | options
    received = ", ".join(f"{k}={value!r}" for k, value in options.items())
    for rule, is_broken in rules.items():
        if is_broken:
            raise ValueError(f"{rule}. Received: {received}")


def _check_integers(name, values):
    """Checks that `values` are integers, `(n,)`, without reading them."""
    if isinstance(values, (list, tuple)):
        values = np.asarray(values)
    shape = getattr(values, "shape", (None,))
    dtype = getattr(values, "dtype", None)
    if len(shape) != 1 or dtype is None or np.dtype(dtype).kind not in "iu":
        raise ValueError(
            f"`{name}` must be integers of shape (n,). Received: "
            f"{type(values).__name__}, shape {shape}, dtype {dtype}"
        )
    # Slicing a memmap is slower than slicing a plain array over it.
    return np.asarray(values) if isinstance(values, np.ndarray) else values
