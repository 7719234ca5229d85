"""Evaluation of permutation language models.

More letters: `P` targets per row.
"""

import tensorflow as tf

from txl_keras.compilation import compile_layers
from txl_keras.evaluation.evaluator import Evaluator


class PermutationEvaluator(Evaluator):
    """Scores the targets of permuted segments, with its own memory.

    The segments draw targets and permutations at random; the same seed gives
    the same targets. The score changes slightly with the seed. It also changes
    with the batch size, because each row begins without memory.

    `evaluate` takes `PermutedSegments`. To cover every token, their `Segments`
    must have `drop_remainder=False`. It returns means over the targets, whose
    number is `num_tokens`. It also returns `accuracy`, the share of targets for
    which the most likely token is correct. It takes no `token_nll`.

    Args:
        model: `XLNetPermutationLM`.
        strategy, batch_size, segment_length, memory_length, stop: See
            `Evaluator`.

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
    scores = PermutationEvaluator(model, strategy, 2, 12).evaluate(segments)
    print(scores["nll"], scores["accuracy"])  # about 5.5, and 0.0
    ```
    """

    def build(self, rows: int) -> None:
        """Creates the memory of one replica; see `Evaluator.build`."""
        self._memory = self.model.backbone.memory_stack(
            rows, self.memory_length
        )
        self._score = compile_layers(self._compute, self.strategy)

    def begin(self) -> None:
        """Does nothing: the first segment of a text resets memory."""

    def score_segment(self, batch: dict) -> dict:
        """Scores `nll` and `accuracy` `(rows, P)` of the targets of a segment.

        See `Evaluator.score_segment`.
        """
        values, memory = self._score(batch, self._memory.read())
        self._memory.write(memory)
        return values

    def _compute(self, batch, memory):
        log_probs, memory = self.model.log_probs(
            batch["inputs"],
            batch["permutation_mask"],
            batch["target_mapping"],
            memory=memory,
            reset=batch["reset"],
        )
        targets = batch["targets"]
        best = tf.argmax(log_probs, axis=-1, output_type=targets.dtype)
        values = {
            "nll": -tf.gather(log_probs, targets, axis=-1, batch_dims=2),
            "accuracy": tf.cast(best == targets, tf.float32),
        }
        return values, memory

    def _check(self, segments):
        # Otherwise memory could contain targets, or positions be wrong.
        expected = segments.reuse_length
        received = self.model.backbone.reuse_length
        if expected != received:
            raise ValueError(
                "`reuse_length` of the backbone must equal the `segments`' "
                f"{expected}. Received: reuse_length={received}"
            )
        super()._check(segments)
