"""Evaluation of a text: every token is scored once, in order.

Letters: `B` batch over all replicas, `T` segment, `M` memory, `L` layers,
`P` predictions of the text, which has `P + 1` tokens.
"""

import time
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.checks import check_shape
from txl_keras.data.feed import Feed
from txl_keras.data.segments import Segments
from txl_keras.data.sliding_windows import SlidingWindows
from txl_keras.data.step_batches import replica_batch_size
from txl_keras.metrics import bits_per_token
from txl_keras.metrics import perplexity
from txl_keras.models.segment_reader import SegmentReader
from txl_keras.models.segment_reader import compile_segments
from txl_keras.training.stopping import StopRequest
from txl_keras.training.strategy import host_loop


class Evaluator:
    """Scores text with its own memory, separate from that of training.

    Args:
        model: `TransformerXLCausalLM`.
        strategy: The `tf.distribute.Strategy`.
        batch_size: Integer `B`, the number of streams into which the text is
            divided, over all replicas. Each stream begins with the initial
            memory, so larger batches score slightly worse unless the segments
            have `warmup_segments`.
        segment_length: Integer `T`, the length of the longest segment.
        memory_length: Optional integer `M`; by default the model's own.
        stop: Optional `StopRequest`. Evaluation ends early when a stop is
            requested.
    """

    def __init__(
        self,
        model: keras.Model,
        strategy: tf.distribute.Strategy,
        batch_size: int,
        segment_length: int,
        memory_length: int | None = None,
        stop: StopRequest | None = None,
    ):
        if memory_length is None:
            memory_length = model.backbone.memory_length
        self._strategy = strategy
        self._model = model
        self._memory_length = memory_length
        self._batch_size = batch_size
        self._segment_length = segment_length
        with strategy.scope():
            self._reader = SegmentReader(
                model.backbone,
                replica_batch_size(batch_size, strategy),
                segment_length,
                memory_length,
            )
            self._read = compile_segments(self._reader, model, self._score)
        self._sum = SegmentSums(
            strategy, ("nll", "num_tokens"), self._step, stop, ("token_nll",)
        )
        self.replica_step = self._sum.replica_step

    @property
    def num_bytes(self) -> int:
        """Returns the size of the memory on one replica in bytes."""
        return self._reader.num_bytes

    def evaluate(
        self,
        segments: Segments,
        steps_per_execution: int = 20,
        on_progress: Callable | None = None,
        token_nll: np.ndarray | None = None,
    ) -> dict | None:
        """Scores all targets of a text.

        Args:
            segments: `Segments` with `drop_remainder=False`. They determine
                where memory is reset. The first token of the text is never a
                target; with `reset_documents`, nor is that of any document.
            steps_per_execution: Integer, the number of segments per call from
                the host; `None` chooses as many as take about one second.
            on_progress: Optional function, called with the number of segments
                scored so far and their total number.
            token_nll: Optional float32 array of shape `(P + 1,)`, filled with
                the negative log-likelihood of every token in nats, given the
                preceding tokens in its segment and in memory. It is NaN for
                tokens without a score: the first token of the text and, with
                `reset_documents`, of each document. For long texts it may be
                a map of a file, such as `np.lib.format.open_memmap` makes.

        Returns:
            Dictionary of `nll` (nats per token), `bits_per_token`,
            `perplexity` and `num_tokens`; or `None` if a stop was requested.

        Raises:
            FloatingPointError: If `token_nll` is given and a score is not
                finite; the message names the position of the token.

        Example:

        ```python
        import numpy as np
        import tensorflow as tf
        from txl_keras.data import Segments
        from txl_keras.evaluation import Evaluator
        from txl_keras.models import TransformerXLCausalLM

        model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
        evaluator = Evaluator(
            model, tf.distribute.get_strategy(), batch_size=2, segment_length=8
        )
        text = np.frombuffer(b"to be or not to be, that is", "uint8")
        segments = Segments(text, 2, 8, drop_remainder=False)
        nll = np.empty(len(text), "float32")
        scores = evaluator.evaluate(segments, token_nll=nll)
        print(scores["nll"], nll[0], np.nanmean(nll))  # 5.5, nan, 5.5
        ```
        """
        if isinstance(segments, SlidingWindows):
            check_slides(self._model.backbone, self._memory_length)
        check_sizes(segments, self._batch_size, self._segment_length)
        if token_nll is not None:
            check_token_nll(token_nll, segments)
            if isinstance(
                self._strategy, tf.distribute.MultiWorkerMirroredStrategy
            ):
                raise ValueError(
                    "`token_nll` must be None with several workers: each "
                    "worker computes only the scores of its own replicas. "
                    "Received: a MultiWorkerMirroredStrategy"
                )
            token_nll[:] = np.nan

        def on_results(first, done, results):
            if token_nll is not None:
                for step, nll in enumerate(results["token_nll"].numpy(), first):
                    positions = segments.target_positions(step)
                    store_token_nll(token_nll, positions, nll)
            if on_progress:
                on_progress(done, len(segments))

        self._reader.begin()
        sums = self._sum(segments, steps_per_execution, on_results)
        return sums and scores_of(*sums)

    def _step(self, batch):
        """Runs one step on a replica, without the sums over replicas."""
        self._reader.reset_rows(batch["reset"])
        nll, sums = self._read(batch["inputs"], batch)
        return sums, {"token_nll": nll}  # in nats, (rows, T)

    def _score(self, hidden, batch):
        """Computes the losses of a segment and their sums."""
        if "target_places" in batch:  # windows score only their last tokens
            hidden = tf.gather(
                hidden, batch["target_places"], axis=1, batch_dims=1
            )
        nll = self._model.softmax(hidden, batch["targets"])
        weights = batch["weights"]
        return nll, (tf.reduce_sum(nll * weights), tf.reduce_sum(weights))


def check_sizes(segments, batch_size, segment_length):
    """Raises `ValueError` unless segments fit an evaluator of these sizes."""
    rows, length = segments.batch(0)["inputs"].shape
    if rows != batch_size or length > segment_length:
        raise ValueError(
            "`segments` must fit the evaluator, with batch_size="
            f"{batch_size} and at most segment_length={segment_length}. "
            f"Received: batch_size={rows}, segment_length={length}"
        )


def check_token_nll(token_nll, segments):
    """Raises `ValueError` unless an array has a number for each token."""
    check_shape("token_nll", token_nll, (segments.num_predictions + 1,))
    if token_nll.dtype.kind != "f":
        raise ValueError(
            f"`token_nll` must hold floats. Received: dtype {token_nll.dtype}"
        )


class SegmentSums:
    """Runs a step on all segments, and sums its scalars over all replicas."""

    # `step` takes a batch, and returns scalars in the order of `names`, and the
    # results by row that are named in `rows`.

    def __init__(self, strategy, names, step, stop=None, rows=()):
        self._strategy = strategy
        self._names = names
        self._step = step
        self._stop = stop or StopRequest()
        self._run = host_loop(
            strategy, self.replica_step, self._stop.variable, rows
        )

    def replica_step(self, batch, stop):
        """Runs one step on a replica; public for `--compile_only`."""
        values, of_rows = self._step(batch)
        context = tf.distribute.get_replica_context()
        sums = context.all_reduce("SUM", tf.stack([*values, stop]))
        names = (*self._names, "stop")
        return {**dict(zip(names, tf.unstack(sums), strict=True)), **of_rows}

    def __call__(self, segments, steps_per_execution, on_results=None):
        """Returns the sums over all segments; `None` if stopped."""
        if steps_per_execution is not None:
            check_integer("steps_per_execution", steps_per_execution, 1)
        feed = Feed(segments, self._strategy, num_steps=len(segments))
        # In float64, because float32 sums over millions of tokens lose digits.
        sums = np.zeros(len(self._names))
        steps, done = steps_per_execution or 1, 0
        while done < len(segments):
            start = time.monotonic()
            steps = min(steps, len(segments) - done)
            results = self._run(feed.next(steps), tf.constant(steps))
            if results["stop"].numpy().any():
                return None
            sums += [np.sum(results[n], dtype=np.float64) for n in self._names]
            if on_results:
                on_results(done, done + steps, results)
            done += steps
            if steps_per_execution is None:
                # As many as take a second. The limit keeps the compile time of
                # the first steps from distorting it.
                seconds = max(time.monotonic() - start, 1e-6)
                steps = max(1, min(2 * steps, int(steps / seconds)))
        return sums.tolist()


def scores_of(nll, num_tokens):
    """Returns the scores of a text from the sum of its losses in nats."""
    mean = float(nll / num_tokens)
    return {
        "nll": mean,
        "bits_per_token": bits_per_token(mean),
        "perplexity": perplexity(mean),
        "num_tokens": int(num_tokens),
    }


def store_token_nll(token_nll, positions, nll):
    """Writes the losses `(B, T)` of a step to the positions of their tokens."""
    is_scored = positions >= 0
    positions, nll = positions[is_scored], nll[is_scored]
    check_finite(nll, positions)
    token_nll[positions] = nll


def check_finite(nll, positions, given=""):
    """Raises `FloatingPointError` unless the losses of tokens are finite."""
    wrong = np.flatnonzero(~np.isfinite(nll))
    if wrong.size:
        first = wrong[np.argmin(positions[wrong])]
        raise FloatingPointError(
            f"The score of token {positions[first]} of the text (counted from "
            f"0){given} must be finite. Received: {nll[first]} nats. Weights "
            "that are not finite, or computation in float16, may be the cause."
        )


def check_slides(backbone, memory_length):
    """Raises `ValueError` unless a model can read `SlidingWindows`."""
    # Windows overlap, so a model with memory would read the same tokens twice.
    if not backbone.has_attention:
        raise ValueError(
            "`stride` must be None for an LSTM: it carries its state from one "
            "segment to the next. Sliding windows need a model with attention. "
            f"Received: {type(backbone).__name__}"
        )
    if memory_length:
        raise ValueError(
            "`memory_length` must be 0 with `stride`: each sliding window "
            "contains the whole context of its targets. Received: "
            f"memory_length={memory_length}"
        )
    if backbone.same_length:
        raise ValueError(
            "`same_length` must be False with `stride`: without memory each "
            "token would attend only to itself. Received: "
            f"same_length={backbone.same_length}"
        )


def segments_in_memory(backbone, segment_length, memory_length=None):
    """Returns how many segments fill the memory."""
    return -(-backbone.past_tokens(memory_length) // segment_length)


def warmup_segments(
    backbone: keras.Model, segment_length: int, memory_length: int | None = None
) -> int:
    """Returns the number of warm-up segments that make scores independent of B.

    Each stream reads these segments before its own, without scoring them. The
    memory of a block holds the outputs of the block below for `ceil(M / T)`
    segments, and each of these depends on as many earlier segments. A score
    therefore depends on `L * ceil(M / T)` earlier segments. With only
    `ceil(M / T)` warm-up segments, memory is full, but its entries were
    computed from truncated contexts.

    Args:
        backbone: `TransformerXLBackbone`.
        segment_length: Integer `T`.
        memory_length: Optional integer `M`; by default the backbone's own.

    Returns:
        Integer, for `Segments(..., warmup_segments=...)`.

    Example:

    >>> from txl_keras.models import TransformerXLCausalLM
    >>> model = TransformerXLCausalLM.from_preset(
    ...     "quickstart", num_layers=3, memory_length=100
    ... )
    >>> warmup_segments(model.backbone, segment_length=64)
    6
    """
    if not backbone.has_finite_reach:
        raise ValueError(
            "`backbone` must have a finite reach: what this one remembers "
            "depends on all earlier segments, or on where reading began, so no "
            "number of warm-up segments is enough. "
            f"Received: {type(backbone).__name__}"
        )
    check_integer("segment_length", segment_length, 1)
    return backbone.num_layers * segments_in_memory(
        backbone, segment_length, memory_length
    )
