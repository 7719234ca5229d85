"""A block whose graph is compiled in parts, with matmuls by TensorFlow."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from attention_loops import output_and_gradients
from attention_loops import random
from attention_loops import with_random_weights

from txl_keras.layers import DecoderBlock
from txl_keras.layers.compute.target import Target
from txl_keras.layers.compute.target import compile_for

B, T, M, D = 2, 7, 5, 12


def make(dtype):
    block = DecoderBlock(
        num_heads=3, head_dim=4, intermediate_dim=17, dropout=0.0, dtype=dtype
    )
    return with_random_weights(block, (B, T, D))


def gradients(block):
    query, memory = (
        tf.cast(random(B, length, D, seed=length), block.compute_dtype)
        for length in (T, M)
    )
    return output_and_gradients(block, query, memory)[1:]


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-5), ("mixed_bfloat16", 0.06)]
)
def test_a_block_in_parts_has_the_gradients_of_one_at_once(dtype, tolerance):
    expected = gradients(make("float32"))
    block = make(dtype)
    in_parts = Target("cpu", in_parts=True)
    found = compile_for(in_parts, functools.partial(gradients, block))()
    names = ["query", "memory", *(w.path for w in block.trainable_variables)]
    for name, x, y in zip(names, found, expected, strict=True):
        difference = np.linalg.norm(tf.cast(x, tf.float32) - y)
        assert difference < tolerance * np.linalg.norm(y), name
