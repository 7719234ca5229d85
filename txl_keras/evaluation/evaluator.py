"""Evaluation of a text: every token is scored once, in order.

More letters: `P` predictions of the text, which has `P + 1` tokens.
"""

import collections
import time
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.checks import check_shape
from txl_keras.data.segments import Segments
from txl_keras.data.sliding_windows import SlidingWindows
from txl_keras.data.step_batches import Feed
from txl_keras.data.step_batches import replica_batch_size
from txl_keras.metrics import bits_per_token
from txl_keras.metrics import perplexity
from txl_keras.models.segment_reader import SegmentReader
from txl_keras.training.stopping import StopRequest
from txl_keras.training.strategy import gather_integers
from txl_keras.training.strategy import host_loop


class Evaluator:
    """Scores text with its own memory, separate from the memory of training.

    A subclass that scores in another way, or changes the model between
    segments, overrides `build`, `begin` and `score_segment`: see
    docs/extending.md.

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

    # A `Backup` with which a subclass resumes. The caller removes it when the
    # scores are written.
    backup = None

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
        self.model = model
        self.strategy = strategy
        self.batch_size = batch_size
        self.segment_length = segment_length
        self.memory_length = memory_length
        self._stop = stop
        with strategy.scope():
            self.build(replica_batch_size(batch_size, strategy))
        self._run = host_loop(strategy, self.replica_step, ("token_nll",))

    def build(self, rows: int) -> None:
        """Creates the memory of one replica and compiles its functions.

        Args:
            rows: Integer, the rows of one replica.
        """
        self._reader = SegmentReader(
            self.model.backbone, rows, self.segment_length, self.memory_length
        )
        self._read = self._reader.compile_segments(self._nll)

    def begin(self) -> None:
        """Prepares to read a text with the current weights."""
        self._reader.begin()

    def score_segment(self, batch: dict) -> dict:
        """Scores a segment on one replica, and remembers it.

        Args:
            batch: Dictionary of tensors, the rows of one replica in a batch of
                the evaluated segments.

        Returns:
            Dictionary of float32 tensors of the shape of `batch["targets"]`:
            `nll`, in nats, and optionally others. The mean of each tensor over
            the targets becomes a score of the text.
        """
        self._reader.reset_rows(batch["reset"])
        return {"nll": self._read(None, batch["inputs"], batch)}

    def _nll(self, hidden, batch):
        if "target_places" in batch:  # windows score only their last tokens
            hidden = tf.gather(
                hidden, batch["target_places"], axis=1, batch_dims=1
            )
        return self.model.softmax(hidden, batch["targets"])

    def replica_step(self, batch: dict) -> dict:
        """Runs one step on a replica; public so that it can be lowered."""
        found, weights = self.score_segment(batch), batch["weights"]
        sums = [tf.reduce_sum(value * weights) for value in found.values()]
        context = tf.distribute.get_replica_context()
        sums = tf.stack([*sums, tf.reduce_sum(weights)])
        sums = tf.unstack(context.all_reduce("SUM", sums))
        sums = zip((*found, "num_tokens"), sums, strict=True)
        return {**dict(sums), "token_nll": found["nll"]}

    @property
    def num_bytes(self) -> int:
        """Returns the size of the memory on one replica in bytes."""
        return self._reader.num_bytes

    def evaluate(
        self,
        segments: Segments,
        steps_per_execution: int | None = 20,
        on_progress: Callable | None = None,
        token_nll: np.ndarray | None = None,
        first: int = 0,
    ) -> dict | None:
        """Scores all targets of a text.

        Args:
            segments: `Segments` with `drop_remainder=False`. They determine
                where memory is reset. The first token of the text is never a
                target; with `reset_documents`, nor is each document's first.
            steps_per_execution: Integer, the number of segments per call from
                the host; `None` chooses as many as take about one second.
            on_progress: Optional function, called with the number of segments
                scored so far and their total number.
            token_nll: Optional float32 array of shape `(P + 1,)`, to fill with
                the negative log-likelihood of every token in nats, given the
                preceding tokens in its segment and in memory. It is NaN for
                tokens without a score: the first token of the text and, with
                `reset_documents`, of each document.
            first: Integer, the segment to begin with. If it is not 0, memory
                and `token_nll` continue from the segment before.

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
        self._check(segments)
        if steps_per_execution is not None:
            check_integer("steps_per_execution", steps_per_execution, 1)
        if token_nll is not None:
            if isinstance(
                self.strategy, tf.distribute.MultiWorkerMirroredStrategy
            ):
                raise ValueError(
                    "`token_nll` must be None on several workers, because each "
                    "worker reads only some rows of the text"
                )
            shape = (segments.num_predictions + 1,)
            check_shape("token_nll", token_nll, shape)
        if not first:
            self.begin()
            if token_nll is not None:
                token_nll[:] = np.nan
        total = len(segments)
        feed = Feed(segments, self.strategy, first, total - first)
        # In float64, because float32 sums over millions of tokens lose digits.
        sums = collections.defaultdict(float)
        steps, done = steps_per_execution or 1, first
        while done < total:
            start = time.monotonic()
            steps = min(steps, total - done)
            results = self._run(feed.next(steps), tf.constant(steps))
            found = results.pop("token_nll").numpy()  # [steps, B, T]
            for name, values in results.items():
                sums[name] += np.sum(values, dtype=np.float64)
            if token_nll is not None:
                for step, nll in enumerate(found, done):
                    positions = segments.target_positions(step)
                    is_scored = positions >= 0
                    positions, nll = positions[is_scored], nll[is_scored]
                    check_finite(nll, positions)
                    token_nll[positions] = nll
            done += len(found)
            if on_progress:
                on_progress(done, total)
            # On any worker.
            if done < total and self._stop:
                signals = gather_integers(
                    self.strategy, bool(self._stop.signal)
                )
                if signals.any():
                    return None
            if steps_per_execution is None:
                # As many as take a second. The limit keeps the compile time of
                # the first steps from distorting it.
                seconds = max(time.monotonic() - start, 1e-6)
                steps = max(1, min(2 * steps, int(steps / seconds)))
        num_tokens = sums.pop("num_tokens")
        if not num_tokens:
            raise ValueError("`segments` must have at least one target.")
        scores = scores_of(sums.pop("nll"), num_tokens)
        return scores | {k: float(x / num_tokens) for k, x in sums.items()}

    def _check(self, segments):
        if isinstance(segments, SlidingWindows):
            check_slides(self.model.backbone, self.memory_length)
        rows, length = segments.batch(0)["inputs"].shape
        if rows != self.batch_size or length > self.segment_length:
            raise ValueError(
                "`segments` must fit the evaluator, with batch_size="
                f"{self.batch_size} and at most segment_length="
                f"{self.segment_length}. Received: batch_size={rows}, "
                f"segment_length={length}"
            )


def scores_of(nll, num_tokens):
    """Returns the scores of a text from the sum of its losses in nats."""
    mean = float(nll / num_tokens)
    return {
        "nll": mean,
        "bits_per_token": bits_per_token(mean),
        "perplexity": perplexity(mean),
        "num_tokens": int(num_tokens),
    }


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
    same_length = getattr(backbone, "same_length", False)
    if not backbone.has_attention or memory_length or same_length:
        raise ValueError(
            "`stride` must be None except for a model with attention, "
            "memory_length=0 and same_length=False: a sliding window contains "
            f"the whole context of its targets. Received: "
            f"{type(backbone).__name__}, memory_length={memory_length}, "
            f"same_length={same_length}"
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
    segments, and each of these depends on as many earlier segments. So a score
    depends on `L * ceil(M / T)` earlier segments. With only `ceil(M / T)`
    warm-up segments, memory is full, but its entries were computed from
    truncated contexts.

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
            "`backbone` must have a finite reach: its memory depends on all "
            "earlier segments, or on where reading began, so no "
            "number of warm-up segments is enough. "
            f"Received: {type(backbone).__name__}"
        )
    check_integer("segment_length", segment_length, 1)
    return backbone.num_layers * segments_in_memory(
        backbone, segment_length, memory_length
    )
