"""Argument checks shared by all parts of the package."""

import collections.abc
import math
import numbers
import os
import pathlib
import re
import reprlib

import keras
import numpy as np
from keras import ops

from txl_keras.backend import ON_TENSORFLOW
from txl_keras.backend import ON_TORCH
from txl_keras.backend import tf
from txl_keras.keras_internals import symbolic_scope

_SHORT = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


def shown(value):
    """Returns a short `repr` for error messages that never raises."""
    # `repr` itself may fail on foreign data that is deeply nested or very long.
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
    """Returns `value` if it is a finite number in its range and no boolean."""
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
    """Returns `value` as a Python integer if it is in `[minimum, maximum]`."""
    is_integer = isinstance(value, numbers.Integral)
    is_large = is_integer and maximum is not None and value > maximum
    if not is_integer or isinstance(value, bool) or value < minimum or is_large:
        at_most = "" if maximum is None else f" and at most {maximum}"
        raise ValueError(
            f"`{name}` must be an integer of at least {minimum}{at_most}. "
            f"Received: {name}={shown(value)}"
        )
    return int(value)


def check_one_of(name, value, known):
    """Returns `value`; raises `ValueError` unless it is one of `known`."""
    if value not in tuple(known):
        raise ValueError(
            f"`{name}` must be one of {tuple(known)}. "
            f"Received: {name}={shown(value)}"
        )
    return value


def check_dtype_policy(policy):
    """Checks that models support the dtypes of a policy."""
    dtypes = policy.variable_dtype, policy.compute_dtype
    if dtypes not in (
        ("float32", "float32"),
        ("float32", "bfloat16"),
        ("float32", "float16"),
        ("bfloat16", "bfloat16"),
    ):
        raise ValueError(
            "`dtype` must be 'float32', 'mixed_bfloat16', 'mixed_float16' or "
            f"'bfloat16'. Received: dtype={policy.name!r}"
        )
    if policy.quantization_mode is not None:
        raise ValueError(
            "`dtype` must not be a quantized policy: build the model, load its "
            f"weights, then call `model.quantize({policy.quantization_mode!r})`"
            f". Received: dtype={policy.name!r}"
        )


def check_model_name(name):
    """Checks that a model's name can be a name scope of a graph."""
    # TensorFlow raises an error about it, after which Keras would name the
    # weights of all later models wrongly.
    if not re.fullmatch(r"[A-Za-z0-9.][\w.>-]*", name, re.ASCII):
        raise ValueError(
            "`name` must consist of ASCII letters, digits and `_.>-`, and "
            "begin with a letter, a digit or a period. Received: "
            f"name={shown(name)}"
        )


def check_path(name, path):
    """Returns a path that is not empty, with `~` and `..` resolved."""
    # Joined with file names, an empty path would mean the current folder.
    # `new/../old` does not exist before `new` does, and then is `old`.
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise ValueError(
            f"`{name}` must be a path that is not empty; `.` is the current "
            f"folder. Received: {name}={shown(path)}"
        )
    path = os.path.expanduser(os.fspath(path))
    if "://" not in path and os.pardir in pathlib.Path(path).parts:
        path = os.path.realpath(path)
    return path


def check_no_pattern(name, path):
    """Raises `ValueError` for a path that TensorFlow takes for a pattern."""
    if set("*?[]") & set(str(path)):
        raise ValueError(
            f"`{name}` must not have any of *?[] in its path, which TensorFlow "
            "reads as a pattern. Choose another folder or rename it. "
            f"Received: {path}"
        )


def check_list(name, values):
    """Checks that an argument is a list, a tuple or an array."""
    is_list = isinstance(values, collections.abc.Sized) and np.iterable(values)
    is_dataset = hasattr(values, "element_spec")  # a TensorFlow dataset
    if not is_list or is_dataset or isinstance(values, (str, bytes, dict)):
        raise ValueError(
            f"`{name}` must be a list. Received: {name}={shown(values)}"
        )


def check_head_dim(head_dim, hidden_dim, num_heads):
    """Returns the size of a head, by default `hidden_dim / num_heads`."""
    if hidden_dim % 2:
        raise ValueError(
            "`hidden_dim` must be even: the position encoding is half sines, "
            f"half cosines. Received: hidden_dim={hidden_dim}"
        )
    if head_dim is not None:
        return check_integer("head_dim", head_dim, 1)
    if hidden_dim % num_heads:
        raise ValueError(
            "`hidden_dim` must be divisible by `num_heads` unless `head_dim` "
            f"is given. Received: hidden_dim={hidden_dim}, "
            f"num_heads={num_heads}"
        )
    return hidden_dim // num_heads


def check_shape(name, tensor, expected, remedy=""):
    """Checks the static sizes of a tensor where `expected` has integers."""
    expected = tuple(
        size if isinstance(size, int) else None for size in expected
    )
    shape = getattr(tensor, "shape", None)
    if shape is None:
        raise ValueError(
            f"`{name}` must be a tensor of shape {expected}. "
            f"Received: {name}={shown(tensor)}"
        )
    if getattr(shape, "rank", 0) is None:  # a shape of TensorFlow
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


def check_shape_in_graph(name, tensor, expected, remedy=""):
    """Checks static sizes of a tensor now and the others when a graph runs."""
    # In a graph, returns the tensor with a control dependency on the check,
    # which raises `InvalidArgumentError`. XLA cannot raise errors, so it drops
    # this check. `expected` holds integers, scalar tensors, or `None` for any
    # size.
    check_shape(name, tensor, expected, remedy)
    is_tensor = ON_TENSORFLOW and isinstance(tensor, tf.Tensor)
    if not is_tensor or tensor.shape.rank is None or _is_compiled_by_xla():
        return tensor
    sizes = _runtime_shape(tensor)
    fits = [
        sizes[axis] == size
        for axis, size in enumerate(expected)
        if size is not None
        and (tf.is_tensor(size) or tensor.shape[axis] is None)
    ]
    if not fits:
        return tensor
    limits = [-1 if size is None else size for size in expected]
    expects = [f"`{name}` must have the shape", tf.stack(limits)]
    message = [*expects, "Received:", sizes, *filter(None, [remedy])]
    return checked(tensor, tf.reduce_all(fits), *message)


def _runtime_shape(tensor):
    """Returns a tensor's shape in a way that Grappler does not simplify."""
    # Grappler assumes that the operands of an op have matching shapes, and
    # removes a check of these shapes. It does not look through
    # `PlaceholderWithDefault`; the tensor passed through it is empty, so no
    # values are copied.
    empty = tensor[..., None][..., :0]
    unknown = tf.TensorShape([None] * empty.shape.rank)
    empty = tf.raw_ops.PlaceholderWithDefault(input=empty, shape=unknown)
    return tf.shape(empty)[:-1]


def checked(tensor, condition, *message):
    """Returns the tensor, with a control dependency on an assertion."""
    check = tf.debugging.Assert(condition, message, summarize=8)
    with tf.control_dependencies([check]):
        return tf.identity(tensor)


def check_vocabulary(tokenizer, vocabulary_size):
    """Checks that a tokenizer has as many symbols as a model's vocabulary."""
    size = getattr(tokenizer, "vocabulary_size", None)
    if size is None or callable(size):
        raise ValueError(
            "`tokenizer` must be a tokenizer of `txl_keras.data`: wrap one "
            "of KerasHub in `KerasHubTokenizer(tokenizer)`, and load a "
            "tokenizer.json with `HuggingFaceTokenizer.from_file(path)`. "
            f"Received: tokenizer={shown(tokenizer)}"
        )
    if size != vocabulary_size:
        raise ValueError(
            "`tokenizer` must have as many symbols as the model, "
            f"{vocabulary_size} symbols. Received: {size} symbols"
        )


def check_no_empty_text(name, texts, ids):
    """Raises `ValueError` unless each of some texts has a token."""
    for i, text in enumerate(ids):
        if not len(text):
            raise ValueError(
                f"`{name}` must have at least one token in each text. "
                f"Received: {name}[{i}]={texts[i][:40]!r}"
            )


def check_token_ids(name, token_ids, vocabulary_size, first=0, remedy=""):
    """Checks that integers (token ids) are in `[first, vocabulary_size)`."""
    # Symbolic tensors are checked when the graph runs, with an
    # `InvalidArgumentError`; XLA cannot raise errors, so it drops this check.
    # Returns an array for lists, and for a symbolic tensor a tensor with a
    # control dependency on the check. `vocabulary_size` may be a scalar tensor.
    token_ids = _as_array_or_tensor(name, token_ids)
    dtype = keras.backend.standardize_dtype(token_ids.dtype)
    last = "limit" if ops.is_tensor(vocabulary_size) else vocabulary_size
    limits = f"`{name}` must hold integers in [{first}, {last})."
    if "float" in dtype and symbolic_scope.in_symbolic_scope():
        # Keras builds and loads a subclass of `Model` that has this layer with
        # symbols of shapes alone, which are float32 for any input. A
        # `keras.Input` of floats is refused at the first call with data.
        token_ids, dtype = ops.cast(token_ids, "int32"), "int32"
    if "int" not in dtype:
        raise ValueError(
            f"{limits} Received: dtype {dtype}. Cast whole numbers with "
            f"`ops.cast({name}, 'int32')`, and give a `keras.Input` of ids "
            "dtype='int32'."
        )
    return _check_range(token_ids, first, vocabulary_size, limits, remedy)


def _check_range(tensor, first, limit, message, remedy):
    """Checks that integers are in `[first, limit)`, in a graph if need be."""
    values = _known_values(tensor)
    if values is not None:
        if values.size and (values.min() < first or values.max() >= limit):
            raise ValueError(
                f"{message} Received: from {values.min()} to {values.max()}"
                + (remedy and f". {remedy}")
            )
        return tensor
    is_symbolic = ON_TENSORFLOW and ops.is_tensor(tensor)  # not a KerasTensor
    if not is_symbolic or _is_compiled_by_xla():
        return tensor
    values = tf.cast(tensor, tf.int64)  # a limit of 256 overflows uint8
    received = [tf.reduce_min(values), "to", tf.reduce_max(values)]
    if tf.is_tensor(limit):
        limit = tf.cast(limit, tf.int64)
        received += ["with a limit of", limit]
    return checked(
        tensor,
        tf.reduce_all((values >= first) & (values < limit)),
        f"{message} Received: from",
        *received,
        *filter(None, [remedy]),
    )


def _known_values(tensor):
    """Returns the values if they can be checked now, or `None` in a graph."""
    if ON_TENSORFLOW:
        is_known = isinstance(tensor, tf.__internal__.EagerTensor)
    elif ON_TORCH:
        import torch

        # Do not wait for a GPU.
        is_known = type(tensor) is torch.Tensor and tensor.device.type == "cpu"
    else:
        import jax

        is_array = isinstance(tensor, jax.Array)
        is_known = is_array and not isinstance(tensor, jax.core.Tracer)
        # Other processes may hold a part of it.
        is_known = is_known and tensor.is_fully_addressable
    is_known = is_known or isinstance(tensor, np.ndarray)
    return np.asarray(tensor) if is_known else None


def _is_compiled_by_xla():
    """Returns whether XLA compiles this graph; it cannot raise errors."""
    # A private function of TensorFlow: a test fails if it is removed.
    from tensorflow.python.ops import control_flow_util

    return control_flow_util.GraphOrParentsInXlaContext(
        tf.compat.v1.get_default_graph()
    )


def check_mask(name, mask, shape):
    """Checks a mask and returns it as a boolean tensor; `None` for `None`."""
    # Accepts booleans and the integers 0 and 1, but not an additive mask. In a
    # graph the result depends on checks of values and sizes that are known only
    # when the graph runs; XLA drops these checks.
    if mask is None:
        return None
    mask = _as_array_or_tensor(name, mask)
    dtype = keras.backend.standardize_dtype(mask.dtype)
    limits = (
        f"`{name}` must be boolean, True where a position may be attended to."
    )
    remedy = (
        "Convert an additive mask (0 and large negative numbers) with "
        f"`{name} > -1`."
    )
    if dtype != "bool" and "int" not in dtype:
        raise ValueError(f"{limits} Received: dtype {dtype}. {remedy}")
    if dtype != "bool":
        mask = _check_range(mask, 0, 2, limits, remedy)
    return check_shape_in_graph(name, ops.cast(mask, "bool"), shape)


def _as_array_or_tensor(name, value):
    """Converts lists and scalars to an array; returns tensors unchanged."""
    if isinstance(value, keras.KerasTensor) or ops.is_tensor(value):
        return value
    if isinstance(value, keras.Variable):
        return ops.convert_to_tensor(value)
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
