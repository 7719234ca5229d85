"""Scores of permutation language modelling.

Letters: `B` batch over all replicas, `T` segment, `P` targets of a row, `M`
memory.
"""

import numpy as np
import tensorflow as tf

from txl_keras.data.feed import Feed
from txl_keras.data.step_batches import replica_batch_size
from txl_keras.metrics import bits_per_token
from txl_keras.metrics import perplexity
from txl_keras.training.stopping import StopRequest
from txl_keras.training.strategy import compile_replica_function
from txl_keras.training.strategy import host_loop

_SUMS = ("nll", "num_correct", "num_tokens")


class PermutationEvaluator:
    """Scores the targets of permuted segments, with a memory of its own.

    What is scored is what was drawn: with the same seed the same tokens, from
    the same others. Another seed gives a score a little different, and so
    does another number of rows, as a row begins without memory.

    Args:
        model: `XLNetPermutationLM`.
        strategy: The `tf.distribute.Strategy`.
        batch_size: Integer `B`.
        memory_length: Optional integer `M`; by default the model's own.
        stop: Optional `StopRequest`: scoring ends where it was heard.

    Example:

    ```python
    import numpy as np
    import tensorflow as tf
    from txl_keras.data import PermutedSegments, Segments
    from txl_keras.evaluation import PermutationEvaluator
    from txl_keras.models import XLNetBackbone, XLNetPermutationLM

    model = XLNetPermutationLM(
        XLNetBackbone(
            vocabulary_size=256, num_layers=1, num_heads=2, hidden_dim=16,
            intermediate_dim=32, memory_length=12,
        )
    )
    text = np.frombuffer(b"to be or not to be, that is", "uint8")
    segments = PermutedSegments(Segments(text, 2, 12, drop_remainder=False))
    strategy = tf.distribute.get_strategy()
    scores = PermutationEvaluator(model, strategy, 2).evaluate(segments)
    print(scores["nll"], scores["accuracy"])  # about 5.5, and 0.0
    ```
    """

    def __init__(
        self, model, strategy, batch_size, memory_length=None, stop=None
    ):
        self._model = model
        self._strategy = strategy
        self._stop = stop or StopRequest()
        with strategy.scope():
            self._memory = model.backbone.memory_stack(
                replica_batch_size(batch_size, strategy), memory_length
            )
        self._compiled_score = compile_replica_function(self._score, strategy)
        self._run = host_loop(
            strategy, self._replica_step, _SUMS, self._stop.variable
        )

    def evaluate(self, segments, steps_per_execution=20):
        """Scores an epoch.

        Args:
            segments: `PermutedSegments`, of `Segments` with
                `drop_remainder=False` to leave no token out.
            steps_per_execution: Integer, segments between two looks of the
                host.

        Returns:
            Dictionary: `nll` (nats a target), `bits_per_token`, `perplexity`,
            `accuracy` (the share of targets that are the most likely token),
            `num_tokens` (the targets); or `None` if it was stopped.

        Raises:
            ValueError: If the model remembers other tokens of a segment than
                the segments go on from, or there is no target.
        """
        _check_reuse_length(self._model, segments)
        sums = dict.fromkeys(_SUMS, 0.0)
        feed = Feed(segments, self._strategy, num_steps=len(segments))
        for done in range(0, len(segments), steps_per_execution):
            steps = min(steps_per_execution, len(segments) - done)
            found = self._run(feed.next(steps), tf.constant(steps))
            if found["stop"].numpy().any():
                return None
            for name in sums:
                sums[name] += np.sum(found[name], dtype=np.float64)
        if not sums["num_tokens"]:
            raise ValueError(
                "`segments` must have targets. Received: segments in which "
                "every token that was drawn is one of `not_predicted`"
            )
        mean = float(sums["nll"] / sums["num_tokens"])
        return {
            "nll": mean,
            "bits_per_token": bits_per_token(mean),
            "perplexity": perplexity(mean),
            "accuracy": float(sums["num_correct"] / sums["num_tokens"]),
            "num_tokens": int(sums["num_tokens"]),
        }

    def _replica_step(self, batch, stop):
        sums = tf.distribute.get_replica_context().all_reduce(
            "SUM", tf.stack([*self._compiled_score(batch), stop])
        )
        names = (*_SUMS, "stop")
        return dict(zip(names, tf.unstack(sums), strict=True))

    def _score(self, batch):
        """The sums of `_SUMS` of this replica's rows."""
        log_probs, memory = self._model.log_probs(
            batch["inputs"],
            batch["permutation_mask"],
            batch["target_mapping"],
            memory=self._memory.read(),
            reset=batch["reset"],
        )
        self._memory.write(memory)
        targets, weights = batch["targets"], batch["weights"]
        nll = -tf.gather(log_probs, targets, axis=-1, batch_dims=2)  # [B, P]
        best = tf.argmax(log_probs, axis=-1, output_type=targets.dtype)
        is_correct = tf.cast(best == targets, tf.float32)
        return (
            tf.reduce_sum(nll * weights),
            tf.reduce_sum(is_correct * weights),
            tf.reduce_sum(weights),
        )


def _check_reuse_length(model, segments):
    """Checks that a model remembers what its segments go on from.

    Otherwise it would look into memory for what it is to predict, or take
    tokens for nearer than they are.

    Args:
        model: `XLNetPermutationLM`.
        segments: `PermutedSegments`.

    Raises:
        ValueError: If it does not.
    """
    expected, received = segments.reuse_length, model.backbone.reuse_length
    if expected != received:
        raise ValueError(
            "`reuse_length` of the backbone must be that of its segments, "
            f"{expected}. Received: reuse_length={received}"
        )
