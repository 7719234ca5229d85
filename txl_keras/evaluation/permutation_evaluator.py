"""Evaluation of permutation language models.

Letters: `B` batch over all replicas, `T` segment, `P` targets per row, `M`
memory.
"""

import keras
import tensorflow as tf

from txl_keras.data.permutation import PermutedSegments
from txl_keras.data.step_batches import replica_batch_size
from txl_keras.evaluation.evaluator import SegmentSums
from txl_keras.evaluation.evaluator import scores_of
from txl_keras.training.compilation import compile_layers
from txl_keras.training.stopping import StopRequest


class PermutationEvaluator:
    """Scores the targets of permuted segments, with its own memory.

    The targets and permutations are drawn at random by the segments, and are
    the same for the same seed. The score changes slightly with the seed. It
    also changes with the batch size, because each row begins without memory.

    Args:
        model: `XLNetPermutationLM`.
        strategy, memory_length, stop: See `Evaluator`.
        batch_size: Integer `B`, over all replicas.

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
        self,
        model: keras.Model,
        strategy: tf.distribute.Strategy,
        batch_size: int,
        memory_length: int | None = None,
        stop: StopRequest | None = None,
    ):
        self._model = model
        with strategy.scope():
            self._memory = model.backbone.memory_stack(
                replica_batch_size(batch_size, strategy), memory_length
            )
        self._compiled_score = compile_layers(self._score, strategy)
        self._sum = SegmentSums(
            strategy,
            ("nll", "num_correct", "num_tokens"),
            lambda batch: (self._compiled_score(batch), {}),
            stop,
        )

    def evaluate(
        self, segments: PermutedSegments, steps_per_execution: int = 20
    ) -> dict | None:
        """Scores one epoch.

        Args:
            segments: `PermutedSegments`. To cover every token, their
                `Segments` must have `drop_remainder=False`.
            steps_per_execution: Integer, the number of segments per call from
                the host.

        Returns:
            Dictionary of `nll` (nats per target), `bits_per_token`,
            `perplexity`, `accuracy` (the share of targets that are the most
            likely token) and `num_tokens` (the number of targets); or `None`
            if a stop was requested.
        """
        # Otherwise memory could contain targets, or positions be wrong.
        expected = segments.reuse_length
        received = self._model.backbone.reuse_length
        if expected != received:
            raise ValueError(
                "`reuse_length` of the backbone must equal that of `segments`, "
                f"{expected}. Received: reuse_length={received}"
            )
        sums = self._sum(segments, steps_per_execution)
        if sums is None:
            return None
        nll, num_correct, num_tokens = sums
        if not num_tokens:
            raise ValueError(
                "`segments` must have at least one target. Received: segments "
                "in which all drawn tokens are in `not_predicted`"
            )
        return {
            **scores_of(nll, num_tokens),
            "accuracy": num_correct / num_tokens,
        }

    def _score(self, batch):
        """Computes the sums over the rows of this replica."""
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
