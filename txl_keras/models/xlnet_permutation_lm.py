"""The XLNet language model, trained by permutation language modeling.

More letters: `P` targets of a row.
"""

from typing import Any

import keras

from txl_keras.checks import check_shape
from txl_keras.checks import check_token_ids
from txl_keras.checks import shown
from txl_keras.extending import register
from txl_keras.keras_internals import build_and_stay_open
from txl_keras.layers.adaptive_softmax import AdaptiveSoftmax
from txl_keras.layers.memory import Memory
from txl_keras.models.preset_model import BackboneModel
from txl_keras.models.xlnet_backbone import XLNetBackbone
from txl_keras.models.xlnet_backbone import causal_mask
from txl_keras.types import Tensor


@keras.saving.register_keras_serializable(package="txl_keras")
class XLNetPermutationLM(BackboneModel):
    """Predicts tokens from other tokens, in the order of a permutation.

    For a factorization order `z` the log-likelihood of the targets of a
    segment is (equations 3 to 5 of Yang et al., 2019)

        sum over targets t of  log p(x[z_t] | x[z_<t])
        p(x | x[z_<t]) = softmax(E g[z_t] + b)

    with `g` the query stream of `XLNetBackbone`, `E` the token embedding, which
    the softmax shares, and `b` a bias. The permutation mask encodes the order,
    and the target mapping selects the targets; `PermutedSegments` draws both.

    `score`, which `Trainer` calls, takes the memory of earlier segments as a
    value. `fit`, `evaluate`, `predict` and direct calls read every segment
    without memory.

    Args:
        backbone: An `XLNetBackbone`.
        tie_embeddings: Boolean, the softmax shares the token embedding.
        tokenizer: Optional tokenizer of `txl_keras.data`. It is saved with the
            model.

    Call arguments:
        batch: Dictionary of `inputs`, ids `(B, T)`, and optionally
            `permutation_mask` `(B, T, T)` and `target_mapping` `(B, P, T)`,
            see `XLNetBackbone`. By default every token is a target and is
            predicted from the tokens before it.
        training: Boolean, for dropout.

    Returns:
        Logits of the targets, float32 tensor of shape `(B, P, V)`.

    Example:

    ```python
    import keras
    import numpy as np
    from txl_keras.data import PermutedSegments, Segments
    from txl_keras.models import XLNetBackbone, XLNetPermutationLM

    backbone = XLNetBackbone(
        vocabulary_size=256, num_layers=1, num_heads=2, hidden_dim=16,
        intermediate_dim=32, memory_length=24,
    )
    model = XLNetPermutationLM(backbone)
    text = np.frombuffer(b"to be or not to be, " * 50, "uint8")
    segments = PermutedSegments(
        Segments(text, batch_size=4, segment_length=24, drop_remainder=True)
    )
    batch = segments.batch(0)
    nll, memory = model.score(
        batch["inputs"],
        batch["targets"],
        permutation_mask=batch["permutation_mask"],
        target_mapping=batch["target_mapping"],
    )  # (4, 4): one of 6 tokens is a target
    loss = (nll * batch["weights"]).numpy().sum() / batch["num_targets"]

    # Train with `fit`, without memory.
    def features(batch):
        names = ("inputs", "permutation_mask", "target_mapping")
        x = {name: batch[name] for name in names}
        return x, batch["targets"], batch["weights"]

    crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", crossentropy)
    model.fit(segments.dataset(num_steps=3).map(features), verbose=0)
    ```

    Reference:
        [Yang et al., 2019](https://arxiv.org/abs/1906.08237), section 2.
    """

    presets = trained_presets = {}
    backbone_classes = (XLNetBackbone,)

    def __init__(
        self,
        backbone: keras.Model,
        tie_embeddings: bool = True,
        tokenizer: Any = None,
        **kwargs,
    ):
        super().__init__(backbone, tokenizer, **kwargs)
        self.softmax = AdaptiveSoftmax(
            backbone.token_embedding,
            tie_embeddings=tie_embeddings,
            kernel_initializer=backbone.kernel_initializer(),
            dtype=self.dtype_policy,
            name="softmax",
        )
        build_and_stay_open(self)
        backbone.freeze_for_lora()

    def build(self, token_ids_shape):
        self.softmax.build()

    def call(self, batch, training=None):
        if not (isinstance(batch, dict) and "inputs" in batch):
            raise ValueError(
                "`batch` must be a dict with the key 'inputs', and optionally "
                "other arguments of `score`. Received: " + shown(batch)
            )
        # A batch of `PermutedSegments` also has what the loss needs.
        labels = "targets", "weights", "num_targets"
        batch = {k: x for k, x in batch.items() if k not in labels}
        query, _ = self._query_stream(**batch, training=training)
        return self.softmax.logits(query)

    def score(
        self,
        inputs: Tensor,
        targets: Tensor,
        permutation_mask: Tensor | None = None,
        target_mapping: Tensor | None = None,
        **kwargs,
    ) -> tuple[Tensor, Memory]:
        """Computes the negative log-likelihood of every target.

        Args:
            inputs: Integer tensor of shape `(B, T)`.
            targets: Integer tensor of shape `(B, P)`, the tokens at the
                positions that `target_mapping` selects.
            permutation_mask, target_mapping: See `XLNetBackbone`. Without a
                `target_mapping` every token is a target, and P is T. Without a
                `permutation_mask` the order is the order of the text.
            **kwargs: Other call arguments of `XLNetBackbone`, such as `memory`,
                `reset` and `training`.

        Returns:
            The pair `(nll, memory)`: float32 `(B, P)` in nats, and the new
            `Memory`.
        """
        kwargs.setdefault("training", False)
        query, memory = self._query_stream(
            inputs, permutation_mask, target_mapping, **kwargs
        )
        check_shape("targets", targets, tuple(query.shape[:2]))
        return self.softmax(query, targets), memory

    def log_probs(
        self,
        inputs: Tensor,
        permutation_mask: Tensor | None = None,
        target_mapping: Tensor | None = None,
        **kwargs,
    ) -> tuple[Tensor, Memory]:
        """Computes the log-probabilities of all tokens at every target.

        Args:
            inputs, permutation_mask, target_mapping, **kwargs: See `score`.

        Returns:
            The pair `(log_probs, memory)`: float32 `(B, P, V)` and the new
            `Memory`.
        """
        query, memory = self._query_stream(
            inputs, permutation_mask, target_mapping, **kwargs
        )
        return self.softmax.log_probs(query), memory

    def _query_stream(
        self, inputs, permutation_mask=None, target_mapping=None, **kwargs
    ):
        """Returns the targets' hidden states `(B, P, D)` and the memory."""
        check_token_ids("inputs", inputs, self.backbone.vocabulary_size)
        batch_size, length = keras.ops.shape(inputs)
        if target_mapping is None:
            target_mapping = keras.ops.broadcast_to(
                keras.ops.eye(length, dtype=self.compute_dtype),
                (batch_size, length, length),
            )
        if permutation_mask is None:
            # If all tokens attended to a target, they would reveal it to the
            # query stream from the second layer on.
            permutation_mask = causal_mask(batch_size, length)
        _, query, memory = self.backbone(
            inputs,
            permutation_mask=permutation_mask,
            target_mapping=target_mapping,
            **kwargs,
        )
        return query, memory


register("model", permutation_lm=XLNetPermutationLM)
