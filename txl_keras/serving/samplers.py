"""How the next token is drawn.

Letters: `B` batch, `V` vocabulary, `N` some of its words, `C` clusters after
the first.
"""

import dataclasses
import numbers

import numpy as np
import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.layers.compute.dropout import fold_in

# The value of a parameter that changes nothing; None does the same.
_OFF = {
    "temperature": 1,
    "top_k": 0,
    "top_p": 1,
    "typical_p": 1,
    "repetition_penalty": 1,
}
_INFINITY = float("inf")
_FLOAT32 = np.finfo(np.float32)
# Two sums of the same float32 probabilities, in another order, are closer.
_SUMS_DIFFER_BY = 1e-3


@dataclasses.dataclass(frozen=True, eq=False)
class Sampler:
    """Draws from the distribution of the next token, sharpened or cut.

    Applied in this order: repetition penalty, temperature, top-k, top-p,
    typical. What is left is made to sum to 1 before each of the last two.

    Every parameter is a number, or a scalar tensor where it is known at run
    time only, as an input of a SavedModel. A number that is out of its range
    raises here. A tensor raises when the graph runs that the sampler was built
    in; XLA has no assertions, so build it outside of what XLA compiles, or
    look for the id -1.

    Args:
        temperature: Float, at least 0. Log-probabilities are divided by it;
            0 takes the most likely token (greedy), of equally likely ones
            that of the lowest id.
        top_k: Optional integer, at least 1. Only the `top_k` most likely
            tokens remain, and those as likely as the last of them. As a
            tensor, 0 keeps all.
        top_p: Optional float in `(0, 1]`. Of the tokens in falling order
            only the fewest that together reach `top_p` remain, and those as
            likely as the last of them (Holtzman et al., 2020,
            https://arxiv.org/abs/1904.09751). 1 keeps all.
        typical_p: Optional float in `(0, 1]`. The same, but in the order of
            how far a token's information `-log p` is from the entropy: what
            is too likely goes too (Meister et al., 2023, locally typical
            sampling, https://arxiv.org/abs/2202.00666). 1 keeps all.
        repetition_penalty: Optional float, at least 1. Log-probabilities of
            tokens already seen are multiplied by it: `p` becomes `p` to this
            power, whatever constant the logits had. (The penalty of Keskar et
            al., 2019, https://arxiv.org/abs/1909.05858, section 4.1, divides
            logits, and rewards a token whose logit is negative.) 1 changes
            nothing.

    Call arguments:
        log_probs: Float tensor of shape `(B, V)`, log-probabilities.
        seeds: uint32 tensor of shape `(B,)`, one a row. A row's draw depends
            on its own seed and log-probabilities alone. Give every step
            another seed: `fold_in(seed of the row, step)`.
        seen: Boolean tensor of shape `(B, V)`, the tokens that are penalized.
            Needed with `repetition_penalty`, without effect otherwise.

    Returns:
        int32 tensor of shape `(B,)`. It is -1, which is no token, where
        nothing can be drawn: a log-probability of the row is NaN or positive
        infinity, or all are negative infinity, or a parameter that is a
        tensor is out of its range.

    Raises:
        ValueError: If a number is out of its range, a tensor no scalar, or
            `seen` missing.
        tf.errors.InvalidArgumentError: If a tensor is out of its range.

    Example:

    ```python
    import tensorflow as tf
    from txl_keras.serving import Sampler

    sampler = Sampler(temperature=0.9, top_p=0.95)
    seeds = tf.constant([1, 2], tf.uint32)
    ids = sampler(tf.math.log([[0.1, 0.9], [0.5, 0.5]]), seeds)
    ```
    """

    temperature: float | tf.Tensor = 1.0
    top_k: int | tf.Tensor | None = None
    top_p: float | tf.Tensor | None = None
    typical_p: float | tf.Tensor | None = None
    repetition_penalty: float | tf.Tensor | None = None

    def __post_init__(self):
        for name in _OFF:
            value = getattr(self, name)
            if tf.is_tensor(value):
                _check_tensor(name, value)
            elif value is not None or name == "temperature":
                _check_number(name, value)

    def __call__(self, log_probs, seeds, seen=None):
        token_ids = tf.range(tf.shape(log_probs)[-1])
        log_probs = self._penalized(tf.cast(log_probs, tf.float32), seen)
        temperature = self._value("temperature")
        if not tf.is_tensor(temperature) and temperature == 0:
            scores = log_probs
        else:
            scores = self._filtered(log_probs) + _gumbel(seeds, token_ids)
            if tf.is_tensor(temperature):
                scores = tf.where(temperature == 0, log_probs, scores)
        return tf.where(self._is_in_range, _best(scores, token_ids), -1)

    def __eq__(self, other):
        return type(other) is Sampler and self._key() == other._key()

    def __hash__(self):
        return hash(self._key())

    def _key(self):
        """Tensors have no equality and no hash: each is equal to itself."""
        values = [getattr(self, name) for name in _OFF]
        return tuple(v.ref() if tf.is_tensor(v) else v for v in values)

    @staticmethod
    def draw(log_probs, seeds, token_ids):
        """Draws with the probabilities as they are, whatever the parameters.

        Args:
            log_probs: Float32 tensor of shape `(B, N)`, of any sum: they may
                be logits.
            seeds: As for the call.
            token_ids: int32 tensor of shape `(N,)`, what is drawn from. The
                noise of each is made of its id and the seed.

        Returns:
            int32 tensor of shape `(B,)`: ids, or -1 as for the call.
        """
        return _best(log_probs + _gumbel(seeds, token_ids), token_ids)

    @property
    def is_plain(self):
        """Whether `draw` does the same: boolean, or scalar boolean tensor."""
        return self._is_off(*_OFF)

    def needed_tails(self, words, tails, seen=None):
        """Which clusters may hold a token that is not cut off.

        The others need not be computed: with negative infinity in the place
        of their log-probabilities the call returns the same ids. None of
        their words is more likely than the cluster, so none is kept where
        words of the first cluster that are more likely than all of it are

        - `top_k` words at least, or one where the temperature is 0;
        - without `top_k`, words that together reach `top_p`. The sum of all
          probabilities must be known to be 1, as it is not any more after
          the temperature or a penalty.

        Args:
            words: Float32 tensor of shape `(B, N)`, log-probabilities of the
                first cluster.
            tails: Float32 tensor of shape `(B, C)`, those of the others, each
                as a whole.
            seen: As for the call; required under the same conditions.

        Returns:
            Boolean tensor of shape `(C,)`: whether a row needs the cluster.
        """
        if seen is not None:
            seen = seen[:, : tf.shape(words)[1]]
        words = self._penalized(words, seen)
        # A word as likely as the last one kept is kept too, hence no `>=`.
        above = words[:, None, :] > tails[..., None]  # [B, C, N]
        enough = tf.zeros_like(tails, tf.bool)
        num_kept = self._num_kept()
        if num_kept is not None:
            num_above = tf.reduce_sum(tf.cast(above, tf.int32), axis=-1)
            enough |= (num_kept > 0) & (num_above >= num_kept)
        top_p = self._value("top_p")
        if top_p is not None and self._sum_is_one is not False:
            likely = tf.where(above, tf.exp(words)[:, None, :], 0.0)
            reached = tf.reduce_sum(likely, axis=-1) - _SUMS_DIFFER_BY
            enough |= self._sum_is_one & (reached >= top_p)
        return ~tf.reduce_all(enough, axis=0)

    def _value(self, name):
        """A parameter: number, tensor, or None where it is known to be off."""
        value = getattr(self, name)
        if tf.is_tensor(value):
            return tf.cast(value, tf.int32 if name == "top_k" else tf.float32)
        return None if value == _OFF[name] else value

    def _is_off(self, *names):
        """Whether all are: Python boolean, or tensor where one is a tensor."""
        values = {name: self._value(name) for name in names}
        values = {name: v for name, v in values.items() if v is not None}
        if not all(tf.is_tensor(value) for value in values.values()):
            return False
        is_off = True
        for name, value in values.items():
            is_off &= value == _OFF[name]
        return is_off

    @property
    def _sum_is_one(self):
        """Whether probabilities still sum to 1 before top-p is applied."""
        return self._is_off("temperature", "top_k", "repetition_penalty")

    @property
    def _is_in_range(self):
        """Whether all tensors are, for where no assertion was run."""
        is_in_range = tf.constant(True)
        for name in _OFF:
            if tf.is_tensor(getattr(self, name)):
                is_in_range &= _in_range(name, self._value(name))
        return is_in_range

    def _num_kept(self):
        """How many tokens top-k keeps; 0, or None, where there is no limit."""
        temperature, top_k = self._value("temperature"), self._value("top_k")
        if tf.is_tensor(temperature):
            return tf.where(temperature == 0, 1, 0 if top_k is None else top_k)
        return 1 if temperature == 0 else top_k

    def _penalized(self, log_probs, seen):
        penalty = self._value("repetition_penalty")
        if penalty is None:
            return log_probs
        if seen is None:
            raise ValueError(
                "`seen` must say which tokens `repetition_penalty` is for. "
                "Received: seen=None"
            )
        return tf.where(seen, log_probs * penalty, log_probs)

    def _filtered(self, log_probs):
        """Logits, negative infinity for what is cut off."""
        logits = log_probs
        # No temperature changes the order. To cut first is exact: two numbers
        # may become one by the division.
        top_k = self._value("top_k")
        if top_k is not None:
            logits = _keep_top_k(logits, top_k)
        temperature = self._value("temperature")
        if temperature is not None:
            logits = _divide(logits, temperature)
        top_p = self._value("top_p")
        if top_p is not None:
            logits = _keep_top_p(logits, top_p, self._sum_is_one)
        typical_p = self._value("typical_p")
        if typical_p is not None:
            logits = _keep_typical(logits, typical_p)
        return logits


_RANGES = {
    "temperature": "at least 0 and finite in float32",
    "top_k": "at least 0",
    "top_p": "in (0, 1]",
    "typical_p": "in (0, 1]",
    "repetition_penalty": "at least 1 and finite in float32",
}


def _in_range(name, value):
    """Of a number a boolean, of a tensor a tensor. NaN is in no range."""
    if name in ("top_p", "typical_p"):
        # Smaller ones are 0 to float32, of which nothing would be kept.
        return (value >= float(_FLOAT32.tiny)) & (value <= 1)
    least = 1 if name == "repetition_penalty" else 0
    if name == "top_k":
        return value >= least
    return (value >= least) & (value <= float(_FLOAT32.max))


def _check_number(name, value):
    if name == "top_k":
        check_integer("top_k", value, 1, np.iinfo(np.int32).max)
        return
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not _in_range(name, value):
        or_none = "" if name == "temperature" else " or None"
        raise ValueError(
            f"`{name}` must be {_RANGES[name]}{or_none}. "
            f"Received: {name}={value!r}"
        )


def _check_tensor(name, value):
    expected = "integer" if name == "top_k" else "floating"
    if value.shape.rank not in (0, None) or not getattr(
        value.dtype, f"is_{expected}"
    ):
        raise ValueError(
            f"`{name}` must be a number or a scalar {expected} tensor. "
            f"Received: shape {value.shape}, dtype {value.dtype.name}"
        )
    tf.debugging.Assert(
        _in_range(name, value),
        [f"`{name}` must be {_RANGES[name]}. Received: {name}=", value],
    )


def _keep_top_k(logits, k):
    return _keep_first(logits, logits, 1.0, k, k == 0)


def _divide(logits, temperature):
    # The largest is 0, so that no temperature makes all of them infinite, nor
    # does one that float32 takes for 0 make it NaN.
    largest = tf.reduce_max(logits, axis=-1, keepdims=True)
    divisor = tf.maximum(tf.cast(temperature, tf.float32), _FLOAT32.tiny)
    divided = (logits - largest) / divisor
    if tf.is_tensor(temperature):  # as they were, if it turns out to be off
        return tf.where(temperature == 1, logits, divided)
    return divided


def _keep_top_p(logits, p, sum_is_one):
    log_sum = 0.0
    # A sum that is known to be 1 is not computed: it would be another one
    # where tails were left out.
    if sum_is_one is not True:
        log_sum = tf.reduce_logsumexp(logits, axis=-1, keepdims=True)
        log_sum = tf.where(sum_is_one, 0.0, log_sum)
    return _keep_first(logits, logits, tf.exp(logits - log_sum), p, p == 1)


def _keep_typical(logits, p):
    log_probs = tf.nn.log_softmax(logits)
    probs = tf.exp(log_probs)
    # 0 log 0 is 0.
    entropy = -tf.reduce_sum(
        tf.math.multiply_no_nan(log_probs, probs), axis=-1, keepdims=True
    )
    return _keep_first(logits, -tf.abs(log_probs + entropy), probs, p, p == 1)


def _keep_first(logits, order, weights, enough, is_off):
    """Cuts off what comes after those that together weigh enough.

    Args:
        logits: Float32 tensor of shape `(B, V)`.
        order: Float32 tensor of shape `(B, V)`, the larger the earlier. All
            that are as large as the last one kept are kept.
        weights: Float32 tensor of shape `(B, V)`, or a number.
        enough: Number or scalar tensor. If all weigh less, all are kept.
        is_off: Boolean or scalar boolean tensor, whether to keep all.

    Returns:
        Float32 tensor of shape `(B, V)`.
    """
    keys = _with_order_of_integers(tf.bitcast(order, tf.int32))
    enough = tf.cast(enough, tf.float32)

    # The largest key that is low enough, bit by bit. To sort 4 rows of 267735
    # takes XLA 200 ms on a CPU, this 6 ms.
    def next_bit(i, least):
        higher = least + tf.bitwise.left_shift(1, 31 - i)
        weight = tf.reduce_sum(
            tf.where(keys >= higher, weights, 0.0), axis=-1, keepdims=True
        )
        return i + 1, tf.where(weight >= enough, higher, least)

    lowest = tf.fill((tf.shape(order)[0], 1), tf.int32.min)
    _, least = tf.while_loop(lambda i, _: i < 32, next_bit, (0, lowest))
    # Of floats, so that NaN is not cut off; the lowest key is one itself.
    least = tf.bitcast(_with_order_of_integers(least), tf.float32)
    is_cut = (order < least) & tf.logical_not(is_off)
    return tf.where(is_cut, -_INFINITY, logits)


def _with_order_of_integers(bits):
    """Bits of floats to integers of the same order, and back."""
    return tf.where(bits < 0, bits ^ tf.int32.max, bits)


def _gumbel(seeds, token_ids):
    """Gumbel noise `(B, N)`: a hash of the row's seed and the token's id.

    The largest of logits plus Gumbel noise is a draw from their softmax.
    """
    bits = fold_in(
        tf.cast(seeds, tf.uint32)[:, None],
        tf.cast(token_ids, tf.uint32)[None],
    )
    # In (0, 1). The noise is largest for the smallest numbers, which float32
    # holds to the last of the 32 bits: with 24, one in 60 draws from 2**18
    # equally likely words would be a tie.
    uniform = (tf.cast(bits, tf.float32) + 0.5) * 2.0**-32
    uniform = tf.minimum(uniform, 1 - 2.0**-24)
    return -tf.math.log(-tf.math.log1p(-uniform))


def _best(scores, token_ids):
    """Id of the largest score, of several the lowest; -1 if there is none."""
    best = tf.reduce_max(scores, axis=-1, keepdims=True)
    # `tf.argmax` promises nothing about ties.
    ids = tf.where(scores == best, token_ids, tf.int32.max)
    # Not so for NaN either, whatever the largest is said to be then.
    are_numbers = tf.reduce_all(scores < _INFINITY, axis=-1)
    is_any = are_numbers & (best[:, 0] > -_INFINITY)
    return tf.where(is_any, tf.reduce_min(ids, axis=-1), -1)
