"""Attention by blocks of queries: what they keep, and rings of memory."""

import pytest
import tensorflow as tf
from attention_loops import random

from txl_keras.layers import RelativeMultiHeadAttention
from txl_keras.layers.compute import blocks
from txl_keras.layers.compute.problem import Problem
from txl_keras.layers.compute.problem import Visible
from txl_keras.layers.compute.target import Target
from txl_keras.layers.compute.target import use

B, T, M, D = 2, 7, 5, 12


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch):
    """Three blocks of a segment, of 2, 2 and 3 queries."""
    monkeypatch.setattr(blocks, "BLOCK_LENGTH", 3)


def split(length, num_memory):
    query = tf.zeros((3, B, length, 4))
    problem = Problem(query, [], Visible(num_memory, length))
    return blocks.split_queries(problem)


def test_with_many_keys_no_scores_are_kept_for_the_backward_pass(monkeypatch):
    # Twice as many as a head has elements.
    monkeypatch.setattr(blocks, "KEPT_KEYS", 2)
    assert split(T, 1)[0].is_kept and not split(T, 2)[0].is_kept
    layer = RelativeMultiHeadAttention(num_heads=3, key_dim=4, dropout=0.3)
    query = tf.constant(random(B, T, D, seed=1))
    memory = tf.constant(random(B, M, D, seed=2))
    kept, made = set(), set()

    @tf.function
    def gradient():
        with tf.GradientTape() as tape:
            tape.watch(query)
            output = layer(query, memory=memory, training=True)
        forward = {op.name for op in output.graph.get_operations()}
        result = tape.gradient(output, query)
        for op in result.graph.get_operations():
            if op.name not in forward:
                for tensor in op.inputs:
                    shapes = kept if tensor.op.name in forward else made
                    shapes.add(tuple(tensor.shape[-2:]))
        return result

    with use(Target("cpu")):
        gradient.get_concrete_function()
    of_scores = {
        (block.end - block.first, block.num_keys) for block in split(T, M)
    }
    assert of_scores <= made
    assert kept and not of_scores & kept


def test_blocks_are_shorter_where_there_are_many_keys(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_LENGTH", 256)
    lengths = {
        num_memory: {
            block.end - block.first for block in split(512, num_memory)
        }
        for num_memory in (0, 1536, 2000, 10**6)
    }
    assert lengths == {0: {256}, 1536: {256}, 2000: {170, 171}, 10**6: {128}}
