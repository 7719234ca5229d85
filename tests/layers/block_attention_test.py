"""Attention by blocks of queries, against attention at once."""

import numpy as np
import pytest
import tensorflow as tf
from attention_loops import random

from txl_keras.layers import CausalMultiHeadAttention
from txl_keras.layers import RelativeMultiHeadAttention
from txl_keras.layers import ShawMultiHeadAttention
from txl_keras.layers import block_attention
from txl_keras.layers.fusing import compile_for_cpu
from txl_keras.layers.fusing import for_cpu
from txl_keras.layers.projected_memory import Past
from txl_keras.models import TransformerXLBackbone

B, T, M, D = 2, 7, 5, 12
KINDS = {
    "causal": (CausalMultiHeadAttention, {}),
    "relative": (RelativeMultiHeadAttention, {}),
    "clamped": (RelativeMultiHeadAttention, {"clamp_length": 4}),
    "same_length": (RelativeMultiHeadAttention, {"same_length": True}),
    "pytorch": (RelativeMultiHeadAttention, {"same_length": "pytorch"}),
    "shaw": (ShawMultiHeadAttention, {"max_positions": 9}),
}
MASKS = {
    "nothing": {},
    "padding": {"query_mask": np.arange(T) < np.array([[T], [4]])},
    "cold_start": {"memory_mask": np.arange(M) >= np.array([[0], [M]])},
    "for_all_queries": {"attention_mask": random(1, 1, T + M, seed=5) > -0.5},
    "by_query": {"attention_mask": random(B, T, T + M, seed=6) > -0.5},
}


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch):
    """Three blocks of a segment, of 2, 2 and 3 queries."""
    monkeypatch.setattr(block_attention, "BLOCK_LENGTH", 3)


def make(kind, dtype="float32", **settings):
    layer_class, own = KINDS[kind]
    layer = layer_class(
        num_heads=3, key_dim=4, dtype=dtype, **{**own, **settings}
    )
    layer.build((B, T, D))
    for i, weight in enumerate(layer.trainable_variables):
        weight.assign(0.5 * random(*weight.shape, seed=40 + i))
    return layer


def output_and_gradients(layer, **arguments):
    with for_cpu():
        return at_once(layer, **arguments)


def at_once(layer, memory=True, **arguments):
    query = tf.constant(random(B, T, D, seed=1), layer.compute_dtype)
    memory = tf.constant(random(B, M * memory, D, seed=2), layer.compute_dtype)
    seeds = tf.constant([3, 4], tf.uint32)
    with tf.GradientTape() as tape:
        tape.watch([query, memory])
        output = layer(
            query,
            memory=memory if memory.shape[1] else None,
            training=True,
            dropout_seed=seeds,
            **arguments,
        )
        total = tf.reduce_sum(
            tf.cast(output, tf.float32) * random(B, T, D, seed=3)
        )
    sources = [query, *layer.trainable_variables]
    if memory.shape[1]:
        sources.append(memory)
    return [output, *tape.gradient(total, sources)]


def assert_alike(found, expected, atol=1e-5):
    for one, other in zip(found, expected, strict=True):
        one, other = (
            tf.cast(tf.convert_to_tensor(x), tf.float32).numpy()
            for x in (one, other)
        )
        assert np.abs(other).max() > 0.01
        np.testing.assert_allclose(
            one, other, rtol=0, atol=atol * max(1, np.abs(other).max())
        )


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_and_gradients_are_those_of_attention_at_once(kind):
    layer = make(kind, dropout=0.3)
    assert_alike(output_and_gradients(layer), at_once(layer))


@pytest.mark.parametrize("mask", MASKS)
def test_masks_shut_the_same_keys(mask):
    layer = make("relative")
    arguments = {name: tf.constant(x) for name, x in MASKS[mask].items()}
    assert_alike(
        output_and_gradients(layer, **arguments), at_once(layer, **arguments)
    )


def test_there_need_not_be_a_memory():
    layer = make("relative")
    assert_alike(
        output_and_gradients(layer, memory=False), at_once(layer, memory=False)
    )


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_graph_gives_the_same_numbers(jit_compile):
    layer = make("relative", dropout=0.3)
    compiled = tf.function(
        lambda: output_and_gradients(layer), jit_compile=jit_compile
    )
    assert_alike(compiled(), at_once(layer))


def test_bfloat16_is_near():
    layer = make("relative", dtype="mixed_bfloat16")
    assert_alike(
        output_and_gradients(layer), at_once(make("relative")), atol=0.05
    )


def blocks_of_segment():
    return block_attention.split_queries(
        T, num_memory=M, farthest=None, rate=0.0, sizes=(3, T, T + M)
    )


def test_no_scores_are_kept_for_the_backward_pass():
    layer = make("relative", dropout=0.3)
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

    with for_cpu():
        gradient.get_concrete_function()
    of_scores = {
        (block.end - block.first, block.num_keys)
        for block in blocks_of_segment()
    }
    assert of_scores <= made
    assert kept and not of_scores & kept


def test_blocks_are_shorter_where_there_are_many_keys(monkeypatch):
    monkeypatch.setattr(block_attention, "BLOCK_LENGTH", 256)
    lengths = {
        num_memory: {
            block.end - block.first
            for block in block_attention.split_queries(
                512, num_memory, farthest=None, rate=0.0, sizes=()
            )
        }
        for num_memory in (0, 1536, 2000, 10**6)
    }
    assert lengths == {0: {256}, 1536: {256}, 2000: {170, 171}, 10**6: {128}}


def test_blocks_are_alike_and_make_up_the_segment():
    blocks = blocks_of_segment()
    assert [(b.first, b.end, b.num_keys) for b in blocks] == [
        (0, 2, 7),
        (2, 4, 9),
        (4, 7, 12),
    ]


def attend_to_memory(layer, num_distances):
    """Projected attention of a segment; the second row has an empty memory."""
    past = Past(
        *(tf.constant(random(B, 3, M, 4, seed=i)) for i in (7, 8)),
        mask=tf.constant(np.arange(M) >= np.array([[1], [M]])),
        order=None,
    )
    positions = ()
    if hasattr(layer, "project_positions"):
        positions = layer.project_positions(num_distances)
    query = tf.constant(random(B, T, D, seed=1))
    return layer.attend_projected(query, past, *positions)


@pytest.mark.parametrize("num_distances", [M + T, M + T + 3])
@pytest.mark.parametrize("kind", KINDS)
def test_projected_memory_is_attended_to_alike(kind, num_distances):
    layer = make(kind)
    with for_cpu():
        found = attend_to_memory(layer, num_distances)
    assert_alike(found, attend_to_memory(layer, num_distances))


@pytest.mark.parametrize("in_parts", [False, True])
def test_a_ring_is_read_in_the_order_of_the_text(in_parts):
    backbone = TransformerXLBackbone(
        vocabulary_size=11,
        num_layers=2,
        num_heads=3,
        head_dim=4,
        hidden_dim=12,
        intermediate_dim=10,
        memory_length=M,
        clamp_length=6,
    )
    readers = [backbone.segment_reader(B, T) for _ in range(2)]
    compiled = compile_for_cpu(readers[0].read, in_parts)
    ids = np.random.default_rng(0).integers(11, size=(3, B, T), dtype=np.int32)
    for reader in readers:
        reader.begin()
    for segment in ids[..., :4], ids[..., 4:], ids:
        for x in segment:
            hidden, entries = compiled(tf.constant(x))
            expected, expected_entries = readers[1].read(tf.constant(x))
            np.testing.assert_allclose(hidden, expected, atol=1e-5)
            readers[0].remember(*entries)
            readers[1].remember(*expected_entries)
