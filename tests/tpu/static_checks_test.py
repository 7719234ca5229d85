"""Tests what a step for a TPU must not have, one case of each kind."""

import numpy as np
import pytest
import tensorflow as tf
from tpu.static_checks import check_static


def nested(function):
    """In a function, in a branch, in a loop: no place is too deep."""

    def body(i, x):
        inner = tf.function(lambda: function(x))
        tf.cond(x[0] > 0, lambda: (inner(), 0)[1], lambda: 0)
        return i + 1, x

    return lambda x: tf.while_loop(lambda i, _: i < 2, body, (0, x))[1]


FORBIDDEN = {
    "string": lambda x: tf.strings.as_string(x),
    "float64": lambda x: tf.cast(x, tf.float64),
    "py_function": lambda x: tf.py_function(lambda x: x, [x], tf.float32),
    "print": lambda x: (tf.print(x), x)[1],
    "assert": lambda x: (tf.debugging.Assert(x[0] > 0, [x]), x)[1],
    "random uniform": lambda x: x + tf.random.uniform(x.shape),
    "truncated normal": lambda x: x + tf.random.truncated_normal(x.shape),
    "where": lambda x: tf.where(x > 0),
    "unique": lambda x: tf.unique(x)[0],
    "range of a value": lambda x: tf.range(tf.cast(x[0], tf.int32)),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_is_forbidden_is_found(name):
    traced = tf.function(nested(FORBIDDEN[name])).get_concrete_function(
        tf.TensorSpec((3,), tf.float32)
    )
    with pytest.raises(AssertionError):
        check_static(traced)


@pytest.mark.parametrize("shape", [None, (2, None)])
def test_an_unknown_shape_is_found(shape):
    traced = tf.function(lambda x: x).get_concrete_function(
        tf.TensorSpec(shape, tf.float32)
    )
    with pytest.raises(AssertionError, match="the shape .*(None|unknown)"):
        check_static(traced)


def test_what_is_static_passes():
    @nested
    def function(x):
        y = tf.random.stateless_uniform((3,), [1, 2]) + x
        array = tf.TensorArray(tf.float32, 3, element_shape=())
        return tf.where(y > 0, y, 0.0), array.unstack(y).stack()

    check_static(tf.function(function).get_concrete_function(np.ones(3, "f4")))
