"""Honest scores: every token once, in order.

Letters: `B` batch over all replicas, `T` segment, `M` memory, `L` layers.
"""

import numpy as np
import tensorflow as tf

from txl_keras.data.feed import Feed
from txl_keras.data.segments import replica_batch_size
from txl_keras.metrics import bits_per_token
from txl_keras.metrics import perplexity
from txl_keras.models.segment_reader import SegmentReader
from txl_keras.training.stopping import StopRequest
from txl_keras.training.strategy import compile_replica_function
from txl_keras.training.strategy import host_loop


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
        self._strategy = strategy
        self._model = model
        self._stop = stop or StopRequest()
        with strategy.scope():
            self._reader = SegmentReader(
                model.backbone,
                replica_batch_size(batch_size, strategy),
                segment_length,
                memory_length,
            )
        self._compiled_sums = compile_replica_function(self._sums, strategy)
        self._compiled_remember = compile_replica_function(
            self._reader.remember, strategy
        )
        self._run = host_loop(
            strategy,
            self._replica_step,
            ("nll", "num_tokens"),
            self._stop.variable,
        )

    def evaluate(self, segments, steps_per_execution=20, on_progress=None):
        """Scores all targets of a text.

        Args:
            segments: `Segments` with `drop_remainder=False`, which say where
                memory is reset. The first token of the text, and with
                `reset_documents` of each document, is never a target.
            steps_per_execution: Integer, segments between two looks of the
                host.
            on_progress: Optional function of the segments done and in all.

        Returns:
            Dictionary: `nll` (nats a token), `bits_per_token`,
            `perplexity`, `num_tokens`; or `None` if it was stopped.
        """
        self._reader.begin()
        feed = Feed(segments, self._strategy, num_steps=len(segments))
        nll, num_tokens, done = 0.0, 0.0, 0
        while done < len(segments):
            steps = min(steps_per_execution, len(segments) - done)
            sums = self._run(feed.next(steps), tf.constant(steps))
            if sums["stop"].numpy().any():
                return None
            # float64: float32 sums of millions of tokens lose digits.
            nll += np.sum(sums["nll"].numpy(), dtype=np.float64)
            num_tokens += np.sum(sums["num_tokens"].numpy(), dtype=np.float64)
            done += steps
            if on_progress:
                on_progress(done, len(segments))
        mean = float(nll / num_tokens)
        return {
            "nll": mean,
            "bits_per_token": bits_per_token(mean),
            "perplexity": perplexity(mean),
            "num_tokens": int(num_tokens),
        }

    def _replica_step(self, batch, stop):
        self._reader.reset_rows(batch["reset"])
        sums, entries = self._compiled_sums(batch)
        self._compiled_remember(*entries)
        sums = tf.distribute.get_replica_context().all_reduce(
            "SUM", tf.stack([*sums, stop])
        )
        nll, num_tokens, stop = tf.unstack(sums)
        return {"nll": nll, "num_tokens": num_tokens, "stop": stop}

    def _sums(self, batch):
        """This replica's part of the sums over a segment of all rows."""
        hidden, entries = self._reader.read(batch["inputs"])
        nll = self._model.softmax(hidden, batch["targets"])
        weights = batch["weights"]
        sums = tf.reduce_sum(nll * weights), tf.reduce_sum(weights)
        return sums, entries


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

    Example:

    >>> from txl_keras.models import TransformerXLCausalLM
    >>> model = TransformerXLCausalLM.from_preset(
    ...     "quickstart", num_layers=3, memory_length=100
    ... )
    >>> warmup_segments(model.backbone, segment_length=64)
    6
    """
    if memory_length is None:
        memory_length = backbone.memory_length
    return backbone.num_layers * -(-memory_length // segment_length)
