"""Bits and perplexity, from nats."""

import math

import keras


def bits_per_token(nll):
    """Converts a mean negative log-likelihood from nats to bits.

    Args:
        nll: Float or tensor, nats a token. Of tokens that are characters or
            bytes these bits are bits per character, bpc.

    Returns:
        The same in bits.
    """
    return nll / math.log(2)


def perplexity(nll):
    """Converts a mean negative log-likelihood to perplexity.

    Args:
        nll: Float, nats a token.

    Returns:
        Float, `exp(nll)`; infinite where that overflows.
    """
    try:
        return math.exp(nll)
    except OverflowError:
        return math.inf


@keras.saving.register_keras_serializable(package="txl_keras")
class BitsPerCharacter(keras.metrics.MeanMetricWrapper):
    """Mean bits that a model needs a character, for `compile`.

    Args:
        name: String.
        dtype: Dtype of the computation.

    Call arguments:
        y_true: Integer targets of shape `(B, T)`.
        y_pred: Logits of shape `(B, T, V)`.

    Example:

    ```python
    import numpy as np
    from txl_keras.metrics import BitsPerCharacter

    metric = BitsPerCharacter()
    metric.update_state(np.array([[1, 3]]), np.zeros((1, 2, 4)))
    metric.result()  # 2.0: four characters, all as likely
    ```
    """

    def __init__(self, name="bits_per_character", dtype=None):
        super().__init__(_bits, name=name, dtype=dtype)

    def get_config(self):
        return {"name": self.name, "dtype": self.dtype}


def _bits(y_true, y_pred):
    nll = keras.losses.sparse_categorical_crossentropy(
        y_true, y_pred, from_logits=True
    )
    return bits_per_token(nll)
