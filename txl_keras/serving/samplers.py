"""How the next token is drawn.

Letters: `B` batch, `V` vocabulary.
"""

import dataclasses

import tensorflow as tf

from txl_keras.checks import check_integer


@dataclasses.dataclass(frozen=True)
class Sampler:
    """Draws from the distribution of the next token, sharpened or cut.

    Applied in this order: temperature, top-k, top-p.

    Args:
        temperature: Float, at least 0. Log-probabilities are divided by it;
            0 takes the most likely token (greedy).
        top_k: Optional integer, at least 1. Only the `top_k` most likely
            tokens remain, and those as likely as the last of them.
        top_p: Optional float in `(0, 1]`. Of the tokens in falling order
            only the fewest that together reach `top_p` remain (Holtzman et
            al., 2020, https://arxiv.org/abs/1904.09751).

    Call arguments:
        log_probs: Float tensor of shape `(B, V)`.
        seed: int32 tensor of shape `(2,)`.

    Returns:
        int32 tensor of shape `(B,)`.

    Raises:
        ValueError: If an argument is out of its range.

    Example:

    ```python
    import tensorflow as tf
    from txl_keras.serving import Sampler

    draw = Sampler(temperature=0.9, top_p=0.95)
    ids = draw(tf.math.log([[0.1, 0.9]]), seed=tf.constant([0, 1]))
    ```
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self):
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(
                "`temperature` must be at least 0 and finite. "
                f"Received: temperature={self.temperature}"
            )
        if self.top_k is not None:
            check_integer("top_k", self.top_k, 1)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(
                "`top_p` must be in (0, 1] or None. "
                f"Received: top_p={self.top_p}"
            )

    def __call__(self, log_probs, seed):
        if self.temperature == 0:
            return tf.argmax(log_probs, axis=-1, output_type=tf.int32)
        # The largest is 0, so that no temperature makes all of them infinite.
        largest = tf.reduce_max(log_probs, axis=-1, keepdims=True)
        logits = (log_probs - largest) / self.temperature
        if self.top_k is not None:
            logits = _keep_top_k(logits, self.top_k)
        if self.top_p is not None:
            logits = _keep_top_p(logits, self.top_p)
        # The largest of logits plus Gumbel noise is a draw from their
        # softmax; unlike `stateless_categorical` it compiles under XLA.
        uniform = tf.random.stateless_uniform(
            tf.shape(logits), seed, minval=1e-20, maxval=1.0
        )
        gumbel = -tf.math.log(-tf.math.log(uniform))
        return tf.argmax(logits + gumbel, axis=-1, output_type=tf.int32)


def _keep_top_k(logits, k):
    k = min(k, logits.shape[-1])
    least = tf.math.top_k(logits, k).values[:, -1:]  # [B, 1]
    return tf.where(logits < least, -float("inf"), logits)


def _keep_top_p(logits, p):
    falling = tf.sort(logits, direction="DESCENDING")  # [B, V]
    # A token stays while those before it have not reached p: the first does
    # always.
    before = tf.cumsum(tf.nn.softmax(falling), axis=-1, exclusive=True)
    least = tf.reduce_min(
        tf.where(before < p, falling, float("inf")), axis=-1, keepdims=True
    )
    return tf.where(logits < least, -float("inf"), logits)
