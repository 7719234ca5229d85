"""Samplers of the next token: random draws, beam search, and names.

More letters: `N` candidate tokens, `C` tail clusters of an adaptive softmax.
"""

import contextlib
import dataclasses
from typing import Any

import keras
import numpy as np
from keras import ops

from txl_keras.backend import ON_TENSORFLOW
from txl_keras.backend import tf
from txl_keras.checks import check_integer
from txl_keras.checks import check_number
from txl_keras.checks import shown
from txl_keras.layers.compute.dropout import SEED_DTYPE
from txl_keras.layers.compute.dropout import fold_in
from txl_keras.types import Tensor

# Values at which a parameter has no effect; None has no effect, either.
NO_EFFECT = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
}
_INFINITY = float("inf")
_FLOAT32 = np.finfo(np.float32)
_INT32 = np.iinfo(np.int32)
# The limits of each parameter, and whether the minimum is excluded.
_LIMITS = {
    "temperature": (0, _FLOAT32.max, False),
    "top_k": (0, _INT32.max, False),
    "top_p": (0, 1, True),
    "repetition_penalty": (1, _FLOAT32.max, False),
}


@keras.saving.register_keras_serializable(package="txl_keras")
@dataclasses.dataclass(frozen=True, eq=False)
class Sampler:
    """Draws the next token from its distribution, with optional filters.

    The parameters are applied in this order: repetition penalty, top-k,
    temperature, top-p. Top-p uses the normalized probabilities of the remaining
    tokens.

    Each parameter is a number, or a scalar tensor if its value is known only at
    run time, such as an input of a SavedModel. A number out of range raises an
    error in the constructor. A tensor out of range raises one when the graph
    runs in which the sampler was built, unless XLA compiles the graph.

    Args:
        temperature: Float, at least 0. Log-probabilities are divided by it. 0
            selects the most likely token (greedy), with ties the lowest id.
        top_k: Optional integer, at least 1. Keeps the `top_k` most likely
            tokens, and ties with the last of them. As a tensor, 0 keeps all
            tokens.
        top_p: Optional float in `(0, 1]`. Keeps the fewest most likely tokens
            whose probabilities sum to at least `top_p`, and ties with the last
            of them (nucleus sampling; Holtzman et al., 2020,
            https://arxiv.org/abs/1904.09751). 1 keeps all tokens.
        repetition_penalty: Optional float, at least 1; 1 has no effect. The
            log-probabilities of the tokens in `seen` are multiplied by it, so
            `p` becomes `p ** repetition_penalty`. The penalty of Keskar et al.,
            2019 (https://arxiv.org/abs/1909.05858, section 4.1) divides logits.
            Unlike it, this penalty does not depend on a constant added to the
            logits, and never makes a token more likely.

    Call arguments:
        log_probs: Float tensor of shape `(B, V)`, log-probabilities.
        seeds: uint32 tensor of shape `(B,)`, one per row. The draw of a row
            depends only on its own seed and log-probabilities. Use a new seed
            in each step, such as `fold_in(seed of the row, step)`.
        seen: Boolean tensor of shape `(B, V)`, the tokens to penalize.
            Required with `repetition_penalty`, otherwise ignored.

    Returns:
        int32 tensor of shape `(B,)`, token ids. The id is -1 if no token can be
        drawn: if a log-probability of the row is NaN or positive infinity, or
        if all of them are negative infinity.

    Example:

    ```python
    import numpy as np
    from txl_keras.samplers import Sampler

    sampler = Sampler(temperature=0.9, top_p=0.95)
    ids = sampler(np.log([[0.1, 0.9], [0.5, 0.5]]), np.uint32([1, 2]))
    ```
    """

    temperature: float | Tensor = 1.0
    top_k: int | Tensor | None = None
    top_p: float | Tensor | None = None
    repetition_penalty: float | Tensor | None = None

    def __post_init__(self):
        for name, (least, most, is_above) in _LIMITS.items():
            value = getattr(self, name)
            if ops.is_tensor(value):
                is_right = value > least if is_above else value >= least
                than = "above" if is_above else "at least"
                _check_tensor(
                    is_right & (value <= most),
                    f"`{name}` must be {than} {least} and at most {most:g}. "
                    f"Received: {name}=",
                    value,
                )
            elif value is not None or name == "temperature":
                if name == "top_k":
                    check_integer(name, value, 1, most)
                else:
                    check_number(name, value, least, float(most), is_above)

    def __call__(self, log_probs, seeds, seen=None):
        token_ids = ops.arange(ops.shape(log_probs)[-1])
        log_probs = self._penalized(ops.cast(log_probs, "float32"), seen)
        temperature, top_k, top_p = map(
            self._value, ("temperature", "top_k", "top_p")
        )
        logits = log_probs
        # Temperature does not change the order. Top-k comes first, because
        # division may round different numbers to equal ones.
        if top_k is not None:
            logits = keep_first(logits, 1.0, top_k, top_k == 0)
        if temperature is not None:
            logits = _divide(logits, temperature)
        if top_p is not None:
            probabilities = ops.softmax(logits)
            logits = keep_first(logits, probabilities, top_p, top_p == 1)
        scores = logits + gumbel(seeds, token_ids)
        if temperature is not None:
            scores = ops.where(temperature == 0, log_probs, scores)
        return _best(scores, token_ids)

    def __eq__(self, other):
        if not type(self) is type(other) is Sampler:
            return self is other  # a subclass may have parameters of its own
        return self._key() == other._key()

    def __hash__(self):
        return hash(self._key())

    def get_config(self):
        """Returns the parameters, for saving."""
        config = {}
        for name in NO_EFFECT:
            value = getattr(self, name)
            if ops.is_tensor(value):
                raise ValueError(
                    f"`{name}` must be a number in the sampler of a model. "
                    f"Received: {name}={shown(value)}"
                )
            number = int if name == "top_k" else float
            config[name] = None if value is None else number(value)
        return config

    @classmethod
    def from_config(cls, config):
        return cls(**config)

    def _key(self):
        """Returns the parameters; a tensor is equal only to itself."""
        values = (getattr(self, name) for name in NO_EFFECT)
        return tuple((id(v),) if ops.is_tensor(v) else v for v in values)

    @staticmethod
    def draw(log_probs: Tensor, seeds: Tensor, token_ids: Tensor) -> Tensor:
        """Draws one of the candidates with ids `(N,)` by logits `(B, N)`."""
        return _best(log_probs + gumbel(seeds, token_ids), token_ids)

    @property
    def is_plain(self) -> bool:
        """Returns whether no parameter has an effect: boolean or tensor."""
        # A subclass may draw in another way.
        is_plain = type(self).__call__ is Sampler.__call__
        for name, off in NO_EFFECT.items():
            value = self._value(name)
            if ops.is_tensor(getattr(self, name)):
                is_plain &= value == off
            elif value is not None:
                return False
        return is_plain

    def needed_tails(
        self, words: Tensor, tails: Tensor, seen: Tensor | None = None
    ) -> Tensor:
        """Returns whether a token of each tail cluster may be drawn, `(C,)`."""
        # `words` (B, N) are log-probabilities of words in the first cluster,
        # `tails` (B, C) of whole clusters. No word is more likely than its
        # cluster. So a tail is not needed if `num_kept` words are more likely.
        temperature, num_kept = self._value("temperature"), self._value("top_k")
        if temperature is not None:
            num_kept = 0 if num_kept is None else num_kept
            num_kept = ops.where(temperature == 0, 1, num_kept)
        if num_kept is None:
            return ops.ones(ops.shape(tails)[1:], "bool")
        if seen is not None:
            seen = seen[:, : ops.shape(words)[1]]
        words = self._penalized(words, seen)
        # Not `>=`, because ties with the last word kept are kept, too.
        above = words[:, None, :] > tails[..., None]  # [B, C, N]
        num_above = ops.sum(above, axis=-1)
        is_needed = (num_kept == 0) | (num_above < num_kept)
        return ops.any(is_needed, axis=0)

    def _value(self, name):
        """Returns a scalar tensor, or None for a number without effect."""
        value = getattr(self, name)
        if not ops.is_tensor(value) and value in (None, NO_EFFECT[name]):
            return None
        return ops.cast(value, "int32" if name == "top_k" else "float32")

    def _penalized(self, log_probs, seen):
        penalty = self._value("repetition_penalty")
        if penalty is None:
            return log_probs
        if seen is None:
            raise ValueError(
                "`seen` must be given to a sampler with `repetition_penalty`. "
                "Received: seen=None"
            )
        return ops.where(seen, log_probs * penalty, log_probs)


@keras.saving.register_keras_serializable(package="txl_keras")
@dataclasses.dataclass(frozen=True)
class BeamSampler:
    """Searches for the most likely text with `num_beams` beams.

    In each step it keeps the `num_beams` texts with the largest sums of
    log-probabilities. A text that has ended competes with an unchanged sum, so
    there is no preference for long texts. The best text is returned. With one
    beam this is greedy search.

    Args:
        num_beams: Integer, at least 1.

    Example:

    ```python
    from txl_keras.models import TransformerXLCausalLM
    from txl_keras.samplers import BeamSampler

    model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
    model.compile(sampler=BeamSampler(num_beams=3))
    ids = model.generate([5, 6, 7], max_new_tokens=4)  # (7,)
    ```
    """

    num_beams: int = 5

    def __post_init__(self):
        check_integer("num_beams", self.num_beams, 1)

    def get_config(self):
        """Returns the parameters, for saving."""
        return {"num_beams": int(self.num_beams)}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


_NAMED = {
    "random": Sampler(),
    "greedy": Sampler(temperature=0),
    "top_k": Sampler(top_k=5),
    "top_p": Sampler(top_p=0.1),
    "beam": BeamSampler(num_beams=5),
}


def get(sampler: Any) -> Any:
    """Returns a sampler by name, or the equivalent of a KerasHub sampler.

    The names and their parameters are the same as in `keras_hub.samplers`:

    - `"random"`: `Sampler()`, draws from the distribution of the model
    - `"greedy"`: `Sampler(temperature=0)`
    - `"top_k"`: `Sampler(top_k=5)`
    - `"top_p"`: `Sampler(top_p=0.1)`
    - `"beam"`: `BeamSampler(num_beams=5)`

    A `GreedySampler`, `RandomSampler`, `TopKSampler`, `TopPSampler` or
    `BeamSampler` of KerasHub is converted with its parameters, but without its
    seed.

    Args:
        sampler: One of these names; one of these KerasHub objects; or a
            `Sampler` or `BeamSampler`, which is returned unchanged.

    Returns:
        A `Sampler` or a `BeamSampler`.

    Example:

    >>> get("greedy").temperature
    0
    """
    if isinstance(sampler, str) and sampler in _NAMED:
        return _NAMED[sampler]
    if type(sampler).__module__.partition(".")[0] == "keras_hub":
        sampler = _from_keras_hub(sampler)
    if not isinstance(sampler, (Sampler, BeamSampler)):
        raise ValueError(
            f"`sampler` must be one of {', '.join(_NAMED)}; a Sampler or "
            "BeamSampler of `txl_keras.samplers`; or a GreedySampler, "
            "RandomSampler, TopKSampler, TopPSampler or BeamSampler of "
            f"`keras_hub.samplers`. Received: sampler={shown(sampler)}"
        )
    return sampler


def _from_keras_hub(sampler):
    """Converts a KerasHub sampler; returns other objects unchanged."""
    name, config = type(sampler).__name__, sampler.get_config()
    if name == "GreedySampler":
        return Sampler(temperature=0)
    if name == "BeamSampler":
        return BeamSampler(config["num_beams"])
    if name in ("RandomSampler", "TopKSampler", "TopPSampler"):
        return Sampler(config["temperature"], config.get("k"), config.get("p"))
    return sampler


def _check_tensor(condition, message, value):
    """Checks a tensor; in a TensorFlow graph the check happens at run time."""
    if ON_TENSORFLOW:
        tf.debugging.Assert(condition, [message, value])
        return
    # JAX raises this for a value that is not known yet.
    with contextlib.suppress(TypeError):
        if not condition:
            raise ValueError(f"{message}{value}")


def _divide(logits, temperature):
    # The largest logit becomes 0, so that no temperature makes all logits
    # infinite. The minimum divisor avoids 0 / 0 for temperatures that are 0 in
    # float32.
    largest = ops.max(logits, axis=-1, keepdims=True)
    divided = (logits - largest) / ops.maximum(temperature, _FLOAT32.tiny)
    return ops.where(temperature == 1, logits, divided)


def keep_first(logits, weights, enough, is_off):
    """Keeps the largest logits whose weights sum to `enough`, with ties.

    The other logits `(B, N)` become minus infinity unless it `is_off`.
    """
    # An axis of size 1, because `ops.view` needs a static last size.
    bits = ops.view(logits[..., None], "int32")[..., 0]
    keys = _with_order_of_integers(bits)
    weights, enough = (ops.cast(x, "float32") for x in (weights, enough))

    # Finds the largest threshold that keeps enough, bit by bit. For 4 rows of
    # 267,735 logits on a CPU, this takes 6 ms; sorting by XLA takes 200 ms.
    def next_bit(i, least):
        higher = least + ops.left_shift(1, 31 - i)
        weight = ops.sum(
            ops.where(keys >= higher, weights, 0.0), axis=-1, keepdims=True
        )
        return i + 1, ops.where(weight >= enough, higher, least)

    lowest = ops.full((ops.shape(logits)[0], 1), _INT32.min, "int32")
    _, least = ops.while_loop(lambda i, _: i < 32, next_bit, (0, lowest))
    # Floats are compared, so that NaN is kept; the lowest key is NaN, too.
    least = ops.view(_with_order_of_integers(least), "float32")
    is_cut = (logits < least) & ops.logical_not(is_off)
    return ops.where(is_cut, -_INFINITY, logits)


def _with_order_of_integers(bits):
    """Converts the bits of floats to integers of the same order, and back."""
    return ops.where(bits < 0, bits ^ _INT32.max, bits)


def gumbel(seeds, token_ids):
    """Computes Gumbel noise `(B, N)` by hashing row seeds and token ids."""
    # The argmax of logits plus Gumbel noise is a draw from their softmax.
    bits = fold_in(ops.cast(seeds, SEED_DTYPE)[:, None], token_ids[None])
    # In (0, 1). The smallest numbers give the largest noise, and float32
    # represents them with all 32 bits. With 24 bits, one in 60 draws from
    # 2**18 equally likely words would be a tie.
    uniform = (ops.cast(bits, "float32") + 0.5) * 2.0**-32
    uniform = ops.minimum(uniform, 1 - 2.0**-24)
    return -ops.log(-ops.log1p(-uniform))


def _best(scores, token_ids):
    """Returns the id of the largest score, the lowest of ties, or -1."""
    best = ops.max(scores, axis=-1, keepdims=True)
    # `ops.argmax` does not specify which of several ties it returns.
    ids = ops.where(scores == best, token_ids, _INT32.max)
    # False for rows with NaN, for which the result of `ops.max` is unspecified.
    are_numbers = ops.all(scores < _INFINITY, axis=-1)
    is_any = are_numbers & (best[:, 0] > -_INFINITY)
    return ops.where(is_any, ops.min(ids, axis=-1), -1)
