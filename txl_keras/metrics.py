"""Metrics of language models and classifiers."""

import math

import keras
from keras import ops


def bits_per_token(nll):
    """Converts a mean negative log-likelihood from nats to bits.

    Args:
        nll: Float or tensor, nats per token.

    Returns:
        The same in bits per token: bits per byte if tokens are bytes, bits per
        character (bpc) if they are characters.
    """
    return nll / math.log(2)


def perplexity(nll):
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


@keras.saving.register_keras_serializable(package="txl_keras")
class BitsPerToken(keras.metrics.MeanMetricWrapper):
    """Computes the mean bits per token of a language model, for `compile`.

    If tokens are bytes, the result is in bits per byte; if they are characters,
    in bits per character.

    Args:
        name: String.
        dtype: Dtype of the computation.

    Call arguments:
        y_true: Integer targets of shape `(B, T)`.
        y_pred: Logits of shape `(B, T, V)`.

    Example:

    ```python
    import numpy as np
    from txl_keras.metrics import BitsPerToken

    metric = BitsPerToken()
    metric.update_state(np.array([[1, 3]]), np.zeros((1, 2, 4)))
    metric.result()  # 2.0: four tokens of equal probability
    ```
    """

    def __init__(self, name="bits_per_token", dtype=None):
        super().__init__(_bits, name=name, dtype=dtype)

    def update_from_nll(self, nll, sample_weight, targets):
        """Updates with losses instead of logits.

        Args:
            nll: Float tensor `(B, T)`, negative log-likelihoods in nats.
            sample_weight: Float tensor `(B, T)`.
            targets: Integer tensor `(B, T)`.
        """
        keras.metrics.Mean.update_state(
            self, bits_per_token(nll), sample_weight=sample_weight
        )

    def get_config(self):
        return {"name": self.name, "dtype": self.dtype}


def _bits(y_true, y_pred):
    nll = keras.losses.sparse_categorical_crossentropy(
        y_true, y_pred, from_logits=True
    )
    return bits_per_token(nll)


@keras.saving.register_keras_serializable(package="txl_keras")
class SparseF1Score(keras.metrics.F1Score):
    """Computes the macro-averaged F1 score for integer labels.

    F1 is the harmonic mean of precision and recall; the result is its mean over
    classes. Unlike `keras.metrics.F1Score`, this metric takes integer labels
    and not one-hot vectors.

    Args:
        num_classes: Integer `C`.
        name: String.
        dtype: Dtype of the computation.

    Call arguments:
        y_true: Integer labels of shape `(B,)`.
        y_pred: Logits or probabilities of shape `(B, C)`.

    Example:

    ```python
    import numpy as np
    from txl_keras.metrics import SparseF1Score

    metric = SparseF1Score(num_classes=2)
    logits = np.array([[0.1, 0.9], [0.2, 0.8], [0.7, 0.3]])
    metric.update_state(np.array([1, 0, 0]), logits)
    metric.result()  # 0.667, the F1 score of both classes
    ```
    """

    def __init__(self, num_classes, name="f1", dtype=None):
        super().__init__(average="macro", name=name, dtype=dtype)
        self.num_classes = num_classes

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true = ops.one_hot(
            ops.cast(ops.reshape(y_true, (-1,)), "int32"), self.num_classes
        )
        return super().update_state(y_true, y_pred, sample_weight)

    def get_config(self):
        return {
            "num_classes": self.num_classes,
            "name": self.name,
            "dtype": self.dtype,
        }
