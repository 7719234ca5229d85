"""Each way to compute attention gives the numbers of the definition."""

import dataclasses
import types

import numpy as np
import pytest
import tensorflow as tf
from attention_loops import assert_alike
from attention_loops import random

from txl_keras.layers import RelativeMultiHeadAttention
from txl_keras.layers import compute
from txl_keras.layers import relative_shift
from txl_keras.layers.compute import blocks
from txl_keras.layers.compute import definition
from txl_keras.layers.compute import tiles
from txl_keras.layers.compute.problem import Positions
from txl_keras.layers.compute.problem import Problem
from txl_keras.layers.compute.problem import Visible
from txl_keras.layers.compute.target import Target
from txl_keras.layers.compute.target import compile_for
from txl_keras.layers.compute.target import use

N, B, T, M, H = 3, 2, 7, 5, 4
# Of a row an empty memory, and padding in the other.
KEY_MASK = np.concatenate(
    [np.arange(M) >= [[M], [1]], np.arange(T) < [[T], [4]]], axis=1
)
VISIBLE = {
    "all": {},
    "nearest": {"max_distance": M},
    "nearer": {"max_distance": 2},
    "real": {"key_mask": tf.constant(KEY_MASK)},
    "by_query": {"attention_mask": tf.constant(random(B, T, M + T) > -0.5)},
    "ahead": {"look_ahead": 1},
    "ahead_of_block": {"look_ahead": 3, "max_distance": 2},
    "all_ahead": {"look_ahead": T + 1, "key_mask": tf.constant(KEY_MASK)},
}


POSITIONS = {
    "none": lambda t, R: {},
    "relative": lambda t, R: {
        "content_bias": t(N, H),
        "positions": Positions(t(N, R, H), t(N, H)),
    },
    "clamped": lambda t, R: {"positions": Positions(t(N, R - 6, H), t(N, H))},
    "more rows": lambda t, R: {"positions": Positions(t(N, R + 3, H))},
    "shaw": lambda t, R: {
        "content_bias": t(N, H),
        "positions": Positions(t(N, R, H + 1)),
    },
}


def make(positions="relative", num_memory=M, rate=0.0, t=random, **visible):
    """A problem of seeded numbers, and of memory if it is not 0."""
    seeds = iter(range(100))

    def tensor(*shape):
        return tf.constant(t(*shape, seed=next(seeds)))

    lengths = [num_memory] * (num_memory > 0) + [T]
    visible = Visible(num_memory, T, **visible)
    num_distances = visible.num_keys - visible.nearest
    return Problem(
        query=tensor(N, B, T, H),
        parts=[
            (tensor(N, B, length, H), tensor(N, B, length, H))
            for length in lengths
        ],
        visible=visible,
        rate=rate,
        seeds=tf.constant([3, 4], tf.uint32),
        **POSITIONS[positions](tensor, num_distances),
    )


def tensors_of(problem):
    """All that gradients are for."""
    found = [problem.query, *tf.nest.flatten(problem.parts)]
    found += [
        x for x in (problem.content_bias, problem.score_bias) if x is not None
    ]
    if problem.positions is not None:
        found.append(problem.positions.rows)
        if problem.positions.bias is not None:
            found.append(problem.positions.bias)
    return found


def output_and_gradients(attend, problem):
    watched = tensors_of(problem)
    with tf.GradientTape() as tape:
        tape.watch(watched)
        output = attend(problem)
        total = tf.reduce_sum(
            tf.cast(output, tf.float32) * random(*output.shape, seed=99)
        )
    return [output, *tape.gradient(total, watched)]


def assert_is_definition(attend, problem, atol=1e-5):
    expected = output_and_gradients(definition.attend, problem)
    assert_alike(output_and_gradients(attend, problem), expected, atol)


@pytest.fixture(params=["tiles", "blocks", "blocks that recompute"])
def way(request, monkeypatch):
    """Blocks of 2, 2 and 3 queries."""
    monkeypatch.setattr(blocks, "BLOCK_LENGTH", 3)
    if request.param == "blocks that recompute":
        monkeypatch.setattr(blocks, "KEPT_KEYS", 0)
    return tiles if request.param == "tiles" else blocks


@pytest.mark.parametrize("look_ahead", [0, 2])
@pytest.mark.parametrize("positions", POSITIONS)
def test_positions_and_their_gradients(way, positions, look_ahead):
    problem = make(positions, rate=0.3, look_ahead=look_ahead)
    assert_is_definition(way.attend, problem)


@pytest.mark.parametrize("visible", VISIBLE)
def test_visible_keys(way, visible):
    assert_is_definition(way.attend, make(**VISIBLE[visible]))


# Whole tiles, a rest, less than a tile, none, and too many.
@pytest.mark.parametrize("num_memory", [0, 2, 7, 14, 9, 28, 35])
def test_memories_of_any_length(way, num_memory):
    rows = tf.constant(random(N, num_memory + T, H, seed=50))
    problem = dataclasses.replace(
        make("none", num_memory, rate=0.3, max_distance=num_memory or None),
        positions=Positions(rows),
    )
    assert_is_definition(way.attend, problem)


@pytest.mark.parametrize("in_parts", [False, True])
def test_graphs(way, in_parts):
    problem = make(rate=0.3, max_distance=4, look_ahead=1)
    compiled = compile_for(
        Target("cpu", in_parts),
        lambda: output_and_gradients(way.attend, problem),
    )
    assert_alike(compiled(), output_and_gradients(definition.attend, problem))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_keep_their_dtype_and_are_near(way, dtype):
    def rounded(x):
        return tf.cast(x, dtype)

    exact = make()
    problem = dataclasses.replace(
        exact,
        query=rounded(exact.query),
        parts=tf.nest.map_structure(rounded, exact.parts),
        content_bias=rounded(exact.content_bias),
        positions=Positions(
            rounded(exact.positions.rows), rounded(exact.positions.bias)
        ),
    )
    found = output_and_gradients(way.attend, problem)
    assert {x.dtype for x in found} == {tf.as_dtype(dtype)}
    assert_alike(
        found, output_and_gradients(definition.attend, exact), atol=0.05
    )


def test_large_scores_stay_finite(way):
    problem = make(t=lambda *shape, seed: 30 * random(*shape, seed=seed))
    for x in output_and_gradients(way.attend, problem):
        assert np.isfinite(x).all()


def test_a_mean_of_large_float16_values_does_not_overflow():
    problem = make("none")
    problem = dataclasses.replace(
        problem,
        query=tf.cast(0 * problem.query, tf.float16),
        content_bias=None,
        parts=[
            (
                tf.cast(k, tf.float16),
                tf.fill(v.shape, tf.constant(2e4, tf.float16)),
            )
            for k, v in problem.parts
        ],
    )
    with use(Target("cpu")):
        for attend in (definition.attend, tiles.attend, compute.attend):
            np.testing.assert_allclose(attend(problem), 2e4, rtol=1e-3)


def test_a_query_that_may_see_nothing_gets_a_mean_and_gives_no_gradient(way):
    # The first row sees no key at all.
    closed = tf.constant([[False], [True]]) & tf.ones((B, M + T), tf.bool)
    problem = make(key_mask=closed)
    output, query_gradient, *_ = output_and_gradients(way.attend, problem)
    assert np.isfinite(output).all()
    assert not query_gradient[:, 0].numpy().any()
    assert query_gradient[:, 1].numpy().any()


def past(order=None, num_memory=M, **changes):
    """Returns a problem whose keys are in the layout of `ProjectedMemory`."""
    problem = make(num_memory=num_memory, **changes)
    parts = [
        [tf.transpose(x, (1, 0, 2, 3)) for x in part] for part in problem.parts
    ]
    if order is not None:
        parts[0] = [tf.gather(x, order, axis=2, batch_dims=1) for x in parts[0]]
    return problem, dataclasses.replace(
        problem, parts=parts, batch_first=True, order=order
    )


@pytest.mark.parametrize("num_memory", [0, M])
@pytest.mark.parametrize("positions", ["none", "relative", "clamped"])
def test_a_projected_past(way, positions, num_memory):
    problem, projected = past(
        positions=positions if num_memory else "none", num_memory=num_memory
    )
    expected = definition.attend(problem)
    for attend in (definition.attend, way.attend):
        np.testing.assert_allclose(attend(projected), expected, atol=1e-5)


def test_a_ring_of_slots():
    order = tf.constant([[3, 4, 0, 1, 2], [1, 2, 3, 4, 0]])
    problem, projected = past(
        order, key_mask=tf.constant(KEY_MASK), max_distance=4
    )
    expected = definition.attend(problem)
    for attend in (definition.attend, tiles.attend, compute.attend):
        np.testing.assert_allclose(attend(projected), expected, atol=1e-5)


def test_both_directions_and_scores_of_other_things():
    sees = tf.constant(random(B, T, M + T, seed=1) > -0.5)
    problem = dataclasses.replace(
        make("none", rate=0.3, look_ahead=None, attention_mask=sees),
        positions=Positions(
            tf.constant(random(N, M + 2 * T, H, seed=51)),
            tf.constant(random(N, H, seed=52)),
        ),
        score_bias=tf.constant(random(N, B, T, M + T, seed=53)),
    )
    assert_is_definition(tiles.attend, problem)


def ways_of(problem, target, monkeypatch):
    used = []
    for way in (blocks, tiles):
        monkeypatch.setattr(way, "attend", lambda _, way=way: used.append(way))
    with use(target):
        compute.attend(problem)
    return used


def test_each_target_has_its_way(monkeypatch):
    for problem, target, way in (
        (make(), Target(), tiles),
        (make(), Target("gpu"), tiles),
        (make(), Target("tpu"), tiles),
        (make(), Target("cpu"), blocks),
        (make(look_ahead=2), Target("cpu"), blocks),
        (make(look_ahead=None), Target("cpu"), tiles),
    ):
        assert ways_of(problem, target, monkeypatch) == [way]


def test_another_way_is_taken_where_it_can_be(monkeypatch):
    other = types.SimpleNamespace(
        supports=lambda problem, target: problem.visible.look_ahead == 0,
        attend=lambda problem: "other",
    )
    target = Target("gpu", attention=other)
    with use(target):
        assert compute.attend(make()) == "other"
    assert ways_of(make(look_ahead=2), target, monkeypatch) == [tiles]


@pytest.mark.parametrize("length,num_keys", [(1, 1), (1, 6), (4, 4), (3, 7)])
def test_relative_shift_equals_indexing_by_distance(length, num_keys):
    scores = random(2, 5, length, num_keys)
    shifted = np.array(relative_shift(scores))
    for i in range(length):
        for j in range(num_keys - length + i + 1):
            distance = num_keys - length + i - j
            np.testing.assert_array_equal(
                shifted[:, :, i, j], scores[:, :, i, num_keys - 1 - distance]
            )


def split(length, num_memory):
    query = tf.zeros((N, B, length, H))
    problem = Problem(query, [], Visible(num_memory, length))
    return blocks.split_queries(problem)


def test_with_many_keys_no_scores_are_kept_for_the_backward_pass(monkeypatch):
    # Blocks of 2, 2 and 3 queries, and twice as many keys as a head has
    # elements.
    monkeypatch.setattr(blocks, "BLOCK_LENGTH", 3)
    monkeypatch.setattr(blocks, "KEPT_KEYS", 2)
    assert split(T, 1)[0].is_kept and not split(T, 2)[0].is_kept
    layer = RelativeMultiHeadAttention(N, H, dropout=0.3)
    query = tf.constant(random(B, T, 12, seed=1))
    memory = tf.constant(random(B, M, 12, seed=2))
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
