"""Honest scores: every token once, in order.

Letters: `B` batch over all replicas, `T` segment, `M` memory, `L` layers.
"""

import numpy as np
import tensorflow as tf

from txl_keras.data.segments import replica_batch_size
from txl_keras.metrics import bits_per_token
from txl_keras.metrics import perplexity
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
        memory_length: Optional integer `M`; by default the model's own.
    """

    def __init__(self, model, strategy, batch_size, memory_length=None):
        self._strategy = strategy
        self._model = model
        with strategy.scope():
            self._memory = model.backbone.memory_stack(
                replica_batch_size(batch_size, strategy), memory_length
            )
        self._run = host_loop(
            strategy,
            compile_replica_function(self._replica_step, strategy),
            ("nll", "num_tokens"),
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
            `perplexity`, `num_tokens`.
        """
        iterator = iter(
            segments.distribute(self._strategy, num_steps=len(segments))
        )
        nll, num_tokens, done = 0.0, 0.0, 0
        while done < len(segments):
            steps = min(steps_per_execution, len(segments) - done)
            sums = self._run(iterator, tf.constant(steps))
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

    def _replica_step(self, batch):
        nll, memory = self._model.score(
            batch["inputs"],
            batch["targets"],
            memory=self._memory.read(),
            reset=batch["reset"],
        )
        self._memory.write(memory)
        return {
            "nll": tf.reduce_sum(nll * batch["weights"]),
            "num_tokens": tf.reduce_sum(batch["weights"]),
        }


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
