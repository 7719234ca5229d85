"""Metrics of language models."""

import math
import reprlib
from typing import Any

import keras
import numpy as np
from keras import ops

from txl_keras.checks import check_shape
from txl_keras.keras_internals import get_keras_mask
from txl_keras.types import DType
from txl_keras.types import Tensor


def bits_per_token(nll: float | Tensor) -> float | Tensor:
    """Converts a mean negative log-likelihood from nats to bits.

    Args:
        nll: Float or tensor, nats per token.

    Returns:
        The value in bits per token: bits per byte if tokens are bytes, bits per
        character (bpc) if tokens are characters.
    """
    return nll / math.log(2)


def perplexity(nll: Tensor) -> float:
    """Converts a mean negative log-likelihood to perplexity.

    Args:
        nll: Float, nats per token.

    Returns:
        Float, `exp(nll)`, or infinity if that overflows.
    """
    try:
        return math.exp(nll)
    except OverflowError:
        return math.inf


class NllMetric(keras.metrics.Mean):
    """Base class of metrics of the mean negative log-likelihood.

    Sums over all targets of an epoch are divided once, in `result`, so batches
    of different lengths count by their targets. Targets of weight 0 do not
    count and may have any value. A subclass overrides `units` or `result`.

    Call arguments:
        y_true: Integer targets of shape `(B, T)`, or `(B,)`.
        y_pred: Logits or log-probabilities of shape `(B, T, V)`, or `(B, V)`.
        sample_weight: Optional weights of shape `(B, T)` or `(B,)`.
    """

    default_name = "nll"

    def __init__(self, name: str | None = None, dtype: DType | None = None):
        super().__init__(name=name or self.default_name, dtype=dtype)

    def update_state(
        self,
        y_true: Tensor,
        y_pred: Tensor,
        sample_weight: Tensor | None = None,
    ) -> None:
        """Adds a batch."""
        mask = get_keras_mask(y_pred)
        y_pred = ops.cast(y_pred, self.dtype)
        expected = y_pred.shape[:-1]
        y_true = _without_last_axis(ops.cast(y_true, "int32"), len(expected))
        check_shape("y_true", y_true, expected)
        weights = self._weights(sample_weight, y_true)
        if mask is not None:
            weights = weights * ops.cast(mask, self.dtype)
        # Targets that do not count may have any value, such as -1.
        targets = ops.where(weights != 0, y_true, 0)
        nll = keras.losses.sparse_categorical_crossentropy(
            targets, y_pred, from_logits=True
        )
        self.update_from_nll(nll, weights, targets)

    def update_from_nll(
        self,
        nll: Tensor,
        sample_weight: Tensor | None = None,
        targets: Tensor | None = None,
    ) -> None:
        """Adds a batch whose logits were not computed.

        Args:
            nll: Float tensor `(B, T)`, nats per target.
            sample_weight: Optional weights that broadcast to `(B, T)`, or one
                per row, `(B,)`.
            targets: Integer tensor `(B, T)`. Only `BitsPerByte` needs them.
        """
        nll = ops.cast(nll, self.dtype)
        weights = self._weights(sample_weight, nll)
        counts = weights != 0
        # Not multiplied by 0, because 0 times NaN is NaN.
        nll = ops.where(counts, nll, 0)
        self.total.assign_add(ops.sum(nll * weights))
        self.count.assign_add(ops.sum(weights * self.units(targets, counts)))

    def _weights(self, sample_weight, like):
        """Returns weights in the shape of a tensor, 1 by default."""
        weights = ops.cast(
            1 if sample_weight is None else sample_weight, self.dtype
        )
        rank = len(like.shape)
        weights = _without_last_axis(weights, rank)
        if len(weights.shape) == 1 < rank:
            weights = weights[:, None]
        return ops.broadcast_to(weights, ops.shape(like))

    def units(self, targets: Tensor, counts: Tensor) -> Tensor:
        """Returns the number of units per target, in a shape like `counts`.

        `counts` is false at targets of weight 0.
        """
        del targets
        return ops.ones_like(counts, dtype=self.dtype)


def _without_last_axis(tensor, rank):
    """Removes a last axis of size 1 from a tensor with one axis too many."""
    # Keras's losses accept it, too.
    has_more = len(tensor.shape) == rank + 1 and tensor.shape[-1] == 1
    return tensor[..., 0] if has_more else tensor


@keras.saving.register_keras_serializable(package="txl_keras")
class BitsPerToken(NllMetric):
    """Computes the mean bits per token of a language model, for `compile`.

    If tokens are bytes, the result is in bits per byte; if they are characters,
    in bits per character. The mean is over all targets of an epoch, weighted by
    `sample_weight`, even if batches differ in length.

    Args:
        name: String.
        dtype: Dtype of the computation.

    Example:

    ```python
    import numpy as np
    from txl_keras.metrics import BitsPerToken

    metric = BitsPerToken()
    metric.update_state(np.array([[1, 3]]), np.zeros((1, 2, 4)))
    metric.result()  # 2.0: four tokens of equal probability
    ```
    """

    default_name = "bits_per_token"

    def result(self):
        return bits_per_token(super().result())


@keras.saving.register_keras_serializable(package="txl_keras")
class Perplexity(NllMetric):
    """Computes the perplexity of a language model, for `compile`.

    The result is `exp` of the mean negative log-likelihood over all targets of
    an epoch, weighted by `sample_weight`. (It is not the mean of the batches'
    perplexities.)

    Args:
        name: String.
        dtype: Dtype of the computation.

    Example:

    ```python
    import numpy as np
    from txl_keras.metrics import Perplexity

    metric = Perplexity()
    metric.update_state(np.array([[1, 3]]), np.zeros((1, 2, 4)))
    metric.result()  # 4.0: four tokens of equal probability
    ```
    """

    default_name = "perplexity"

    def result(self):
        return ops.exp(super().result())


@keras.saving.register_keras_serializable(package="txl_keras")
class BitsPerByte(BitsPerToken):
    """Computes the bits per byte of a language model's text, for `compile`.

    It can compare models of different vocabularies. It is the bits of all
    targets of an epoch, divided by the bytes of their text, both weighted by
    `sample_weight`.

    Args:
        bytes_per_token: The bytes of text per token: a number for all tokens,
            or a sequence of V numbers, one per token id.
        name: String.
        dtype: Dtype of the computation.

    Example:

    ```python
    import numpy as np
    from txl_keras.metrics import BitsPerByte

    symbols = [b"a", b"e", b"the ", b"and "]
    metric = BitsPerByte([len(symbol) for symbol in symbols])
    metric.update_state(np.array([[1, 3]]), np.zeros((1, 2, 4)))
    metric.result()  # 0.8: 4 bits for the 5 bytes of "eand "
    ```
    """

    default_name = "bits_per_byte"

    def __init__(
        self,
        bytes_per_token: Any,
        name: str | None = None,
        dtype: DType | None = None,
    ):
        super().__init__(name, dtype)
        sizes = np.asarray(bytes_per_token)
        is_valid = (
            sizes.dtype.kind in "iuf"
            and sizes.ndim <= 1
            and np.isfinite(sizes).all()
            and (sizes >= 0).all()
            and sizes.sum() > 0
        )
        if not is_valid:
            raise ValueError(
                "`bytes_per_token` must be a number above 0, or one number of "
                "at least 0 per token id, not all of them 0. Received: "
                f"bytes_per_token={reprlib.repr(bytes_per_token)}"
            )
        self._sizes = sizes

    def units(self, targets, counts):
        sizes = ops.cast(self._sizes, self.dtype)
        if self._sizes.ndim == 0:
            return ops.where(counts, sizes, 0)
        if targets is None:
            raise ValueError(
                "`targets` must be given, because `bytes_per_token` has one "
                "number per token id. Received: targets=None"
            )
        targets = ops.where(counts, ops.cast(targets, "int32"), 0)
        num_ids = len(self._sizes)
        is_known = (targets >= 0) & (targets < num_ids)
        sizes = ops.take(sizes, ops.clip(targets, 0, num_ids - 1), axis=0)
        return ops.where(is_known, sizes, float("nan"))

    def get_config(self):
        return {
            **super().get_config(),
            "bytes_per_token": self._sizes.tolist(),
        }


_BY_NAME = {"bits_per_token": BitsPerToken, "perplexity": Perplexity}


def get(identifier: Any, tokenizer: Any = None) -> Any:
    """Returns a new metric for a name; returns other objects unchanged."""
    if identifier == "bits_per_byte":
        if tokenizer is None or not tokenizer.is_lossless:
            raise ValueError(
                "`weighted_metrics` may only name bits_per_byte for a model "
                "with a lossless tokenizer. Pass "
                "`BitsPerByte(bytes_per_token)` for other models. Received: "
                f"tokenizer={type(tokenizer).__name__}"
            )
        ids = range(tokenizer.vocabulary_size)
        return BitsPerByte([len(tokenizer.decode_bytes([i])) for i in ids])
    is_name = isinstance(identifier, str) and identifier in _BY_NAME
    return _BY_NAME[identifier]() if is_name else identifier
