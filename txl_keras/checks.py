"""Checks of arguments."""

import math
import numbers
import reprlib

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

# What has its values already.
_AT_HAND = (np.ndarray, tf.__internal__.EagerTensor)
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


def shown(value):
    """Returns a `repr` for error messages: short, and never an error itself.

    Foreign data may be nested or long beyond what `repr` can write.
    """
    try:
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            kind = type(value).__name__
            return f"{kind} of shape {value.shape}, dtype {value.dtype}"
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
        exclusive: Boolean. The value must be above `minimum`.

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
        and not (exclusive and value == minimum)
    )
    if not is_inside:
        low = "above" if exclusive else "of at least"
        high = "" if maximum == math.inf else f" and at most {maximum}"
        raise ValueError(
            f"`{name}` must be a finite number {low} {minimum}{high}. "
            f"Received: {name}={shown(value)}"
        )
    return value


def check_dropout(name, rate):
    """Returns a dropout rate; raises `ValueError` unless it is in `[0, 1)`."""
    if check_number(name, rate, 0, 1) == 1:
        raise ValueError(f"`{name}` must be below 1. Received: {name}={rate}")
    return rate


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


def check_dtype_policy(policy):
    """Raises `ValueError` unless weights are float32 and products a float.

    Args:
        policy: `keras.dtype_policies.DTypePolicy`.
    """
    if policy.variable_dtype != "float32" or policy.compute_dtype not in (
        "float32",
        "bfloat16",
        "float16",
    ):
        raise ValueError(
            "`dtype` must be a policy of float32 weights: 'float32', "
            "'mixed_bfloat16' or 'mixed_float16'. Received: "
            f"dtype={policy.name!r}"
        )


def check_list(name, values):
    """Raises `ValueError` unless an argument is a list, a tuple or an array."""
    try:
        is_list = len(values) >= 0 and not isinstance(
            values, (str, bytes, dict)
        )
    except TypeError:
        is_list = False
    if not is_list:
        raise ValueError(
            f"`{name}` must be a list. Received: {name}={shown(values)}"
        )


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


def check_shape(name, tensor, expected, remedy=""):
    """Checks the sizes of a tensor that are known.

    Args:
        name: String, the argument's name.
        tensor: Tensor or array, may be symbolic.
        expected: Tuple of sizes; an integer, or anything else where the size
            is not known.
        remedy: String, to end the message.

    Raises:
        ValueError: If the rank or a known size is another.
    """
    expected = tuple(
        size if isinstance(size, int) else None for size in expected
    )
    shape = getattr(tensor, "shape", None)
    if shape is None:
        raise ValueError(
            f"`{name}` must be a tensor of the shape {expected}. "
            f"Received: {name}={shown(tensor)}"
        )
    if isinstance(shape, tf.TensorShape) and shape.rank is None:
        return
    shape = tuple(shape)
    if len(shape) != len(expected) or any(
        None not in pair and pair[0] != pair[1]
        for pair in zip(shape, expected, strict=True)
    ):
        raise ValueError(
            f"`{name}` must have the shape {expected}. "
            f"Received: {name}.shape={shape}" + (remedy and f". {remedy}")
        )


def check_shape_in_graph(name, tensor, expected, broadcasts=False, remedy=""):
    """Checks the sizes of a tensor, and makes a graph check the others.

    Sizes of a `tf.function` that are known when it runs are checked then, with
    an `InvalidArgumentError`; XLA, which cannot raise errors, drops that check.

    Args:
        name, tensor: See `check_shape`.
        expected: Tuple of sizes; an integer, a scalar tensor, or `None` for
            any.
        broadcasts: Boolean. A size may be 1 where another is expected.
        remedy: String, to end the message.

    Returns:
        The tensor, which depends on the check where there is one.

    Raises:
        ValueError: As of `check_shape`.
    """
    check_shape(name, tensor, expected, remedy)
    if not isinstance(tensor, tf.Tensor) or tensor.shape.rank is None:
        return tensor
    if _is_compiled_by_xla():
        return tensor
    sizes = _sizes_at_run(tensor)
    fits = [
        (sizes[axis] == size) | ((sizes[axis] == 1) & broadcasts)
        for axis, size in enumerate(expected)
        if size is not None
        and (tf.is_tensor(size) or tensor.shape[axis] is None)
    ]
    if not fits:
        return tensor
    limits = [-1 if size is None else size for size in expected]
    expects = [f"`{name}` must have the shape", tf.stack(limits)]
    message = [*expects, "Received:", sizes, *filter(None, [remedy])]
    return _checked(tensor, tf.reduce_all(fits), message)


def _sizes_at_run(tensor):
    """Returns the sizes of a tensor, such that a graph does not assume them.

    Grappler takes it that tensors fit where they meet, and drops a check of
    that. It does not look through this op; no values pass it, only a shape.
    """
    empty = tensor[..., None][..., :0]
    unknown = tf.TensorShape([None] * empty.shape.rank)
    empty = tf.raw_ops.PlaceholderWithDefault(input=empty, shape=unknown)
    return tf.shape(empty)[:-1]


def _checked(tensor, condition, message):
    """Returns a tensor, of which a graph raises an error on a condition."""
    check = tf.debugging.Assert(condition, message)
    with tf.control_dependencies([check]):
        return tf.identity(tensor)


def check_seeds(dropout_seed, expected):
    """Raises `ValueError` unless seeds are integers of a shape."""
    seeds = _as_array_or_tensor("dropout_seed", dropout_seed)
    dtype = keras.backend.standardize_dtype(seeds.dtype)
    if "int" not in dtype:
        raise ValueError(
            "`dropout_seed` must be of integers, uint32. Received: dtype "
            f"{dtype}"
        )
    check_shape("dropout_seed", seeds, expected)


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


def check_token_ids(name, token_ids, vocabulary_size, first=0):
    """Checks ids of tokens or other integers, and makes a graph check them.

    Values that are at hand, those of arrays and eager tensors, are checked at
    once. Those of a `tf.function` are checked when it runs, with an
    `InvalidArgumentError`; XLA, which cannot raise errors, drops that check.

    Args:
        name: String, the argument's name.
        token_ids: Integer tensor or array of any shape, or nested lists.
        vocabulary_size: Integer, or scalar tensor.
        first: Integer, the lowest id.

    Returns:
        The ids: an array where an array or lists were passed, a tensor that
        depends on the check where a tensor was.

    Raises:
        ValueError: If they are no integers (booleans are none) or, where that
            is known, not in `[first, vocabulary_size)`.
    """
    token_ids = _as_array_or_tensor(name, token_ids)
    dtype = keras.backend.standardize_dtype(token_ids.dtype)
    is_symbolic = tf.is_tensor(vocabulary_size)
    last = "its limit" if is_symbolic else vocabulary_size
    limits = f"`{name}` must hold integers in [{first}, {last})."
    if "int" not in dtype:
        raise ValueError(
            f"{limits} Received: dtype {dtype}. Cast what are whole numbers, "
            f"such as by `ops.cast({name}, 'int32')`; a `keras.Input` of ids "
            "needs dtype='int32'."
        )
    if isinstance(token_ids, keras.KerasTensor):
        return token_ids
    if isinstance(token_ids, _AT_HAND):
        ids = np.asarray(token_ids)
        if ids.size and (ids.min() < first or ids.max() >= vocabulary_size):
            raise ValueError(
                f"{limits} Received: from {ids.min()} to {ids.max()}"
            )
        return token_ids
    if _is_compiled_by_xla():
        return token_ids
    ids = tf.cast(token_ids, tf.int64)  # 256 is no uint8
    limit = tf.cast(vocabulary_size, tf.int64)
    received = [tf.reduce_min(ids), "to", tf.reduce_max(ids)]
    if is_symbolic:
        received += ["where that is", limit]
    return _checked(
        token_ids,
        tf.reduce_all((ids >= first) & (ids < limit)),
        [f"{limits} Received: from", *received],
    )


def _is_compiled_by_xla():
    """Tells whether XLA, which cannot raise errors, compiles what is traced."""
    # Of TensorFlow's own, not public: a test fails where it is gone.
    return control_flow_util.GraphOrParentsInXlaContext(
        tf.compat.v1.get_default_graph()
    )


def check_mask(name, mask, shape, broadcasts=False):
    """Checks a mask and returns it as booleans.

    Args:
        name: String, the argument's name.
        mask: Boolean tensor or array; or one of the integers 0 and 1; or
            `None`, which is returned.
        shape: Tuple of sizes; an integer, or `None` for any.
        broadcasts: Boolean. The mask may broadcast to `shape`.

    Returns:
        Boolean tensor, which in a graph depends on the checks of what is not
        known before it runs; XLA drops them.

    Raises:
        ValueError: If it holds anything else, such as the numbers of an
            additive mask, or has another shape.
    """
    if mask is None:
        return None
    mask = _as_array_or_tensor(name, mask)
    dtype = keras.backend.standardize_dtype(mask.dtype)
    is_mask = dtype == "bool" or "int" in dtype
    received = f"dtype {dtype}"
    if "int" in dtype and isinstance(mask, _AT_HAND):
        values = np.unique(mask)
        is_mask = np.isin(values, (0, 1)).all()
        received = f"values such as {shown(values.tolist())}"
    limits = (
        f"`{name}` must be boolean, True where a position may be attended to."
    )
    remedy = (
        "An additive mask of 0 and large negative numbers becomes one by "
        f"`{name} > -1`."
    )
    if not is_mask:
        raise ValueError(f"{limits} Received: {received}. {remedy}")
    is_open = dtype != "bool" and isinstance(mask, tf.Tensor)
    if is_open and not isinstance(mask, _AT_HAND):
        mask = _check_zeros_and_ones(mask, limits, remedy)
    if broadcasts:
        rank = len(mask.shape)
        shape = shape[max(len(shape) - rank, 0) :]
        shape = (
            tuple(
                1 if size == 1 else expected
                for size, expected in zip(mask.shape, shape, strict=False)
            )
            + shape[rank:]
        )
    check_shape(name, mask, shape)
    mask = tf.cast(mask, tf.bool)
    return check_shape_in_graph(name, mask, shape, broadcasts)


def _check_zeros_and_ones(mask, limits, remedy):
    """Makes a graph check the values of an integer mask."""
    if _is_compiled_by_xla():
        return mask
    values = tf.cast(mask, tf.int64)
    return _checked(
        mask,
        tf.reduce_all((values == 0) | (values == 1)),
        [
            f"{limits} Received: from",
            tf.reduce_min(values),
            "to",
            tf.reduce_max(values),
            remedy,
        ],
    )


def _as_array_or_tensor(name, value):
    """Converts lists and scalars to an array; tensors stay as they are."""
    if isinstance(value, (keras.KerasTensor, tf.Tensor)):
        return value
    if isinstance(value, (keras.Variable, tf.Variable)):
        return tf.convert_to_tensor(value)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError):  # rows of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "biufc":
        raise ValueError(
            f"`{name}` must be a tensor or an array of numbers. Received: "
            f"{name}={shown(value)}"
        )
    return array
