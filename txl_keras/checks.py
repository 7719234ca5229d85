"""Checks of arguments."""

import math
import numbers
import reprlib

import numpy as np
import tensorflow as tf

_SHORT = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


def shown(value):
    """Returns a `repr` for error messages: short, and never an error itself.

    Foreign data may be nested or long beyond what `repr` can write.
    """
    try:
        if isinstance(value, bytes):
            cut = f"... ({len(value)} bytes)" if len(value) > 80 else ""
            return repr(value[:80]) + cut
        return _SHORT.repr(value)
    except (ValueError, RecursionError):
        return f"an object of type {type(value).__name__}"


def check_number(name, value, minimum, maximum=math.inf, exclusive=False):
    """Checks that an argument is a finite number in its range.

    Args:
        name: String, the argument's name.
        value: The value passed.
        minimum, maximum: Numbers. The value may equal them.
        exclusive: Boolean. The value must exceed `minimum`, and `maximum`
            must exceed the value.

    Returns:
        The value.

    Raises:
        ValueError: If it is no real number (booleans are none), NaN, infinite
            or out of the range.
    """
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    is_inside = (
        is_number
        and math.isfinite(value)
        and minimum <= value <= maximum
        and not (exclusive and value in (minimum, maximum))
    )
    if not is_inside:
        low, high = (
            ("above", "below") if exclusive else ("of at least", "at most")
        )
        bounds = f"{low} {minimum}"
        if maximum != math.inf:
            bounds += f" and {high} {maximum}"
        raise ValueError(
            f"`{name}` must be a finite number {bounds}. "
            f"Received: {name}={shown(value)}"
        )
    return value


def check_integer(name, value, minimum, maximum=None):
    """Checks that an argument is an integer in its range.

    Args:
        name: String, the argument's name.
        value: What was passed.
        minimum: Integer.
        maximum: Optional integer.

    Returns:
        The value, as a Python integer.

    Raises:
        ValueError: If it is no integer (booleans are none), too small or too
            large.
    """
    is_integer = isinstance(value, numbers.Integral)
    is_large = is_integer and maximum is not None and value > maximum
    if not is_integer or isinstance(value, bool) or value < minimum or is_large:
        at_most = "" if maximum is None else f" and at most {maximum}"
        raise ValueError(
            f"`{name}` must be an integer of at least {minimum}{at_most}. "
            f"Received: {name}={shown(value)}"
        )
    return int(value)


def check_head_dim(head_dim, hidden_dim, num_heads):
    """Checks how hidden states are split into heads.

    Args:
        head_dim: Integer, or `None` for `hidden_dim / num_heads`.
        hidden_dim, num_heads: Integers, checked.

    Returns:
        The size of a head.

    Raises:
        ValueError: If `hidden_dim` is odd, or is not divisible where it must
            be.
    """
    if hidden_dim % 2:
        raise ValueError(
            "`hidden_dim` must be even: half of the position encoding are "
            f"sines, half cosines. Received: hidden_dim={hidden_dim}"
        )
    if head_dim is not None:
        return check_integer("head_dim", head_dim, 1)
    if hidden_dim % num_heads:
        raise ValueError(
            "`hidden_dim` must be divisible by `num_heads`, or `head_dim` "
            f"be given. Received: hidden_dim={hidden_dim}, "
            f"num_heads={num_heads}"
        )
    return hidden_dim // num_heads


def check_shape(name, tensor, expected):
    """Checks the sizes of a tensor that are known.

    Args:
        name: String, the argument's name.
        tensor: Tensor or array, may be symbolic.
        expected: Tuple of sizes; an integer, or `None` for any.

    Raises:
        ValueError: If the rank or a known size is another.
    """
    shape = tuple(tensor.shape)
    if len(shape) != len(expected) or any(
        None not in pair and pair[0] != pair[1]
        for pair in zip(shape, expected, strict=True)
    ):
        raise ValueError(
            f"`{name}` must have the shape {expected}. "
            f"Received: {name}.shape={shape}"
        )


def check_vocabulary(tokenizer, vocabulary_size):
    """Checks that a tokenizer is one for a model.

    Args:
        tokenizer: The tokenizer.
        vocabulary_size: Integer, the model's.

    Raises:
        ValueError: If it has another number of symbols.
    """
    if tokenizer.vocabulary_size != vocabulary_size:
        raise ValueError(
            "`tokenizer` must have the vocabulary of the model, "
            f"{vocabulary_size} symbols. Received: "
            f"{tokenizer.vocabulary_size} symbols"
        )


def check_token_ids(name, token_ids, vocabulary_size):
    """Checks ids that are at hand: eager tensors and arrays.

    Symbolic ones are not; what uses them must not go wrong in silence.

    Args:
        name: String, the argument's name.
        token_ids: Integer tensor or array of any shape.
        vocabulary_size: Integer.

    Raises:
        ValueError: If an id is not in `[0, vocabulary_size)`.
    """
    if not isinstance(token_ids, (np.ndarray, tf.__internal__.EagerTensor)):
        return
    ids = np.asarray(token_ids)
    if ids.size and (ids.min() < 0 or ids.max() >= vocabulary_size):
        raise ValueError(
            f"`{name}` must hold ids in [0, {vocabulary_size}). Received ids "
            f"from {ids.min()} to {ids.max()}."
        )
