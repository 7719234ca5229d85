"""A block whose graph is compiled in parts, with matmuls by TensorFlow."""

import numpy as np
import pytest
import tensorflow as tf
from attention_loops import random

from txl_keras.layers import DecoderBlock
from txl_keras.layers.compute.target import Target
from txl_keras.layers.compute.target import compile_for

B, T, M, D = 2, 7, 5, 12


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-5), ("mixed_bfloat16", 0.1)]
)
def test_a_block_in_parts_has_the_gradients_of_one_at_once(dtype, tolerance):
    block = DecoderBlock(
        num_heads=3, head_dim=4, intermediate_dim=17, dropout=0.0, dtype=dtype
    )
    block.build((B, T, D))
    for i, weight in enumerate(block.trainable_variables):
        weight.assign(0.5 * random(*weight.shape, seed=40 + i))
    query, memory = random(B, T, D, seed=1), random(B, M, D, seed=2)
    query, memory = (tf.cast(x, block.compute_dtype) for x in (query, memory))

    def gradients():
        with tf.GradientTape() as tape:
            tape.watch(query)
            outputs = block(query, memory=memory, training=True)
            total = tf.reduce_sum(
                tf.cast(outputs, tf.float32) * random(B, T, D, seed=3)
            )
        sources = [query, *(w.value for w in block.trainable_variables)]
        return tape.gradient(total, sources)

    expected = gradients()
    found = compile_for(Target("cpu", in_parts=True), gradients)()
    names = ["query", *(w.path for w in block.trainable_variables)]
    for name, x, y in zip(names, found, expected, strict=True):
        x, y = (tf.cast(value, tf.float32).numpy() for value in (x, y))
        scale = np.abs(y).max() + 1e-3
        np.testing.assert_allclose(
            x / scale, y / scale, atol=tolerance, err_msg=name
        )
