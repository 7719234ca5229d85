"""Honest scores: every token once, in order.

Letters: `B` batch over all replicas, `T` segment, `M` memory, `L` layers,
`P` predictions of the text, which has `P + 1` tokens.
"""

import time

import numpy as np
import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.data.feed import Feed
from txl_keras.data.sliding_windows import SlidingWindows
from txl_keras.data.step_batches import replica_batch_size
from txl_keras.metrics import bits_per_token
from txl_keras.metrics import perplexity
from txl_keras.models.segment_reader import SegmentReader
from txl_keras.training.stopping import StopRequest
from txl_keras.training.strategy import compile_layers
from txl_keras.training.strategy import compile_replica_function
from txl_keras.training.strategy import host_loop

_SUMS = ("nll", "num_tokens")


class Evaluator:
    """Scores text with a memory of its own, apart from training's.

    Args:
        model: `TransformerXLCausalLM`.
        strategy: The `tf.distribute.Strategy`.
        batch_size: Integer `B`, the streams that are read side by side. Each
            begins with an empty memory, so fewer streams score better, unless
            the segments have `warmup_segments`.
        segment_length: Integer `T`, of the longest segments that will come.
        memory_length: Optional integer `M`; by default the model's own.
        stop: Optional `StopRequest`: scoring ends where it was heard.
    """

    def __init__(
        self,
        model,
        strategy,
        batch_size,
        segment_length,
        memory_length=None,
        stop=None,
    ):
        if memory_length is None:
            memory_length = model.backbone.memory_length
        self._strategy = strategy
        self._model = model
        self._memory_length = memory_length
        self._batch_size = batch_size
        self._segment_length = segment_length
        self._stop = stop or StopRequest()
        with strategy.scope():
            self._reader = SegmentReader(
                model.backbone,
                replica_batch_size(batch_size, strategy),
                segment_length,
                memory_length,
            )
        self._compiled_score = compile_layers(
            self._score, strategy, model, training=False
        )
        self._compiled_remember = compile_replica_function(
            self._reader.remember, strategy
        )
        self._run = host_loop(
            strategy,
            self._replica_sums,
            _SUMS,
            self._stop.variable,
        )
        self._step_with_tokens = tf.function(
            self._step_of_all_replicas, reduce_retracing=True
        )

    @property
    def num_bytes(self):
        """Integer, what its memory takes on one replica."""
        return self._reader.num_bytes

    def evaluate(
        self,
        segments,
        steps_per_execution=20,
        on_progress=None,
        token_nll=None,
    ):
        """Scores all targets of a text.

        Args:
            segments: `Segments` with `drop_remainder=False`, which say where
                memory is reset. The first token of the text, and with
                `reset_documents` of each document, is never a target.
            steps_per_execution: Integer, segments between two looks of the
                host; or None, as many as take about a second.
            on_progress: Optional function of the segments done and in all.
            token_nll: Optional float32 array of shape `(P + 1,)` to fill with
                the nats of every token: see the method of this name. The
                scores are those that would be returned without it.

        Returns:
            Dictionary: `nll` (nats a token), `bits_per_token`,
            `perplexity`, `num_tokens`; or `None` if it was stopped.

        Raises:
            ValueError: If `segments` are not those of the evaluator's sizes,
                or `token_nll` has another shape or is of integers, or replicas
                are on other machines, whose scores never come here; or windows
                slide over a text for a model that remembers.
            FloatingPointError: If `token_nll` is given and a score is not
                finite, with the position of the token.
        """
        if isinstance(segments, SlidingWindows):
            check_slides(self._model.backbone, self._memory_length)
        self._check_sizes(segments)
        if token_nll is not None:
            self._check_token_nll(token_nll, segments)
            token_nll[:] = np.nan
        nll, num_tokens = 0.0, 0.0
        for done, sums in self._executions(
            segments, steps_per_execution, token_nll
        ):
            if sums["stop"].any():
                return None
            # float64: float32 sums of millions of tokens lose digits.
            nll += np.sum(sums["nll"], dtype=np.float64)
            num_tokens += np.sum(sums["num_tokens"], dtype=np.float64)
            if on_progress:
                on_progress(done, len(segments))
        mean = float(nll / num_tokens)
        return {
            "nll": mean,
            "bits_per_token": bits_per_token(mean),
            "perplexity": perplexity(mean),
            "num_tokens": int(num_tokens),
        }

    def token_nll(
        self, segments, steps_per_execution=None, on_progress=None, out=None
    ):
        """Nats of every token, in the order of the text.

        `evaluate` with an array of its own; give it the array instead to have
        the means of the same reading, too.

        Args:
            segments, steps_per_execution, on_progress: See `evaluate`.
            out: Optional float32 array of shape `(P + 1,)` to fill, such as a
                file by `create_token_file`, for text of any size.

        Returns:
            `out`, or a new array: `-log p(token | all before it that memory
            holds)`, NaN where there is no score: the first token of the text,
            and with `reset_documents` of each document. `None` if it was
            stopped.

        Raises:
            ValueError, FloatingPointError: See `evaluate`.

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
        nll = evaluator.token_nll(segments)
        print(nll.shape, nll[0], np.nanmean(nll))  # (27,) nan, about 5.5
        ```
        """
        if out is None:
            out = np.empty(segments.num_predictions + 1, np.float32)
        scores = self.evaluate(segments, steps_per_execution, on_progress, out)
        return None if scores is None else out

    def _executions(self, segments, steps_per_execution, token_nll):
        """Yields how many segments are done, and the sums of some of them."""
        self._reader.begin()
        feed = Feed(segments, self._strategy, num_steps=len(segments))
        steps, done = steps_per_execution or 1, 0
        while done < len(segments):
            start = time.monotonic()
            steps = min(steps, len(segments) - done)
            iterator = feed.next(steps)
            if token_nll is None:
                sums = self._run(iterator, tf.constant(steps))
                sums = {name: sums[name].numpy() for name in sums}
            else:
                sums, found = self._run_with_tokens(iterator, steps)
                for i, nll in enumerate(found):
                    positions = segments.target_positions(done + i)
                    _put(token_nll, positions, nll)
            done += steps
            yield done, sums
            if steps_per_execution is None:
                steps = _in_a_second(steps, time.monotonic() - start)

    def _run_with_tokens(self, iterator, num_steps):
        """As `host_loop`, and the nats `(B, T)` of every step."""
        # All are sent to the device before the first is waited for.
        results = [self._step_with_tokens(iterator) for _ in range(num_steps)]
        sums = {
            name: np.array([sums[name].numpy() for sums, _ in results])
            for name in (*_SUMS, "stop")
        }
        return sums, [nll.numpy() for _, nll in results]

    def _step_of_all_replicas(self, iterator):
        local = self._strategy.experimental_local_results
        stop = self._stop.variable.read_value()
        sums, nll = self._strategy.run(
            self.replica_step, args=(next(iterator), stop)
        )
        # Replica after replica, as `Segments.distribute` deals out the rows.
        nll = tf.concat(local(nll), axis=0)
        return {name: local(value)[0] for name, value in sums.items()}, nll

    def _replica_sums(self, batch, stop):
        return self.replica_step(batch, stop)[0]

    def replica_step(self, batch, stop):
        """One step of one replica.

        `evaluate` runs it on all replicas. Public for who compiles it
        elsewhere.

        Args:
            batch: Dictionary of tensors, a batch of `Segments` of the rows of
                one replica.
            stop: float32 scalar, `StopRequest.variable` of this worker.

        Returns:
            The pair of the sums of all replicas, a dictionary of float32
            scalars, and the nats of the targets of this one's rows.
        """
        self._reader.reset_rows(batch["reset"])
        nll, sums, entries = self._compiled_score(batch)
        self._compiled_remember(entries)
        sums = tf.distribute.get_replica_context().all_reduce(
            "SUM", tf.stack([*sums, stop])
        )
        names = (*_SUMS, "stop")
        return dict(zip(names, tf.unstack(sums), strict=True)), nll

    def _score(self, batch):
        """A segment of this replica's rows: nats, their sums, new entries."""
        hidden, entries = self._reader.read(batch["inputs"])
        if "target_places" in batch:  # of a window, its last tokens alone
            hidden = tf.gather(
                hidden, batch["target_places"], axis=1, batch_dims=1
            )
        nll = self._model.softmax(hidden, batch["targets"])
        weights = batch["weights"]
        sums = tf.reduce_sum(nll * weights), tf.reduce_sum(weights)
        return nll, sums, entries

    def _check_sizes(self, segments):
        rows, length = segments.batch(0)["inputs"].shape
        if rows != self._batch_size or length > self._segment_length:
            raise ValueError(
                f"`segments` must have batch_size={self._batch_size} and no "
                f"more than segment_length={self._segment_length}, as the "
                f"evaluator. Received: batch_size={rows}, "
                f"segment_length={length}"
            )

    def _check_token_nll(self, token_nll, segments):
        shape = (segments.num_predictions + 1,)
        if token_nll.shape != shape or token_nll.dtype.kind != "f":
            raise ValueError(
                f"`token_nll` must be floats of shape {shape}, one for each "
                f"token of the text. Received: shape {token_nll.shape}, dtype "
                f"{token_nll.dtype}"
            )
        if isinstance(
            self._strategy, tf.distribute.MultiWorkerMirroredStrategy
        ):
            raise ValueError(
                "`token_nll` needs all replicas on one machine: scores of "
                "other workers do not come here. Received: a strategy of "
                "several workers"
            )


def _put(token_nll, positions, nll):
    """Writes the nats `(B, T)` of a step where the tokens are."""
    is_scored = positions >= 0
    positions, nll = positions[is_scored], nll[is_scored]
    wrong = np.flatnonzero(~np.isfinite(nll))
    if wrong.size:
        first = wrong[np.argmin(positions[wrong])]
        raise FloatingPointError(
            f"The score of token {positions[first]} of the text (the first is "
            f"0) must be finite. Received: {nll[first]} nats. Weights that "
            "are not finite, or float16, may be the cause."
        )
    token_nll[positions] = nll


def _in_a_second(steps, seconds):
    """How many steps take a second where `steps` took so many.

    At most twice as many: the first ones wait for the compiler.
    """
    return max(1, min(2 * steps, int(steps / max(seconds, 1e-6))))


def check_slides(backbone, memory_length):
    """Checks that a model may read a text by `SlidingWindows`.

    Args:
        backbone: That of the model.
        memory_length: Integer M, how much it is to remember.

    Raises:
        ValueError: If it is to remember anything: then each window would hold
            again what is in memory. An LSTM always does.
    """
    if not backbone.has_attention:
        raise ValueError(
            "`stride` is for models that read a window at once: an LSTM goes "
            f"on from one state. Received: {type(backbone).__name__}"
        )
    if memory_length:
        raise ValueError(
            "`memory_length` must be 0 with `stride`: windows that slide hold "
            "all that a token is predicted from, and a model with memory "
            "needs none. Received: memory_length="
            f"{memory_length}"
        )
    if backbone.same_length:
        raise ValueError(
            "`same_length` must be False with `stride`: without memory a "
            "token would see itself alone. Received: "
            f"same_length={backbone.same_length}"
        )


def warmup_segments(backbone, segment_length, memory_length=None):
    """Segments to read before a stream's own, so that no score depends on B.

    The memory of a block holds `ceil(M / T)` segments of the outputs of the
    block below, and these were computed with as many segments before them. So
    L times as many determine a score, and with these read the number of
    streams changes nothing. `ceil(M / T)` alone fills the memory, but with
    states whose own past was cut.

    Args:
        backbone: `TransformerXLBackbone`.
        segment_length: Integer T.
        memory_length: Optional integer M; by default the backbone's own.

    Returns:
        Integer, for `Segments(..., warmup_segments=...)`.

    Raises:
        ValueError: If the backbone is an LSTM: what it reads first has an
            influence for ever; or `segment_length` is not positive.

    Example:

    >>> from txl_keras.models import TransformerXLCausalLM
    >>> model = TransformerXLCausalLM.from_preset(
    ...     "quickstart", num_layers=3, memory_length=100
    ... )
    >>> warmup_segments(model.backbone, segment_length=64)
    6
    """
    if not backbone.has_attention:
        raise ValueError(
            "`backbone` must have attention: no number of segments determines "
            f"the state of an LSTM. Received: {type(backbone).__name__}"
        )
    check_integer("segment_length", segment_length, 1)
    if memory_length is None:
        memory_length = backbone.memory_length
    return backbone.num_layers * -(-memory_length // segment_length)
