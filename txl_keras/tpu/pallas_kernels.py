"""The Pallas kernels of `pallas.py`.

A program of the grid has one block of queries, the keys and values of its head
and batch row, and the distances of its head. It loops over the keys tile by
tile: memory first, then the segment up to the block itself. Tiles have keys as
rows and queries as columns. So a statistic of the queries, such as the sum of
exponentials, is one row across the columns of the registers, and the relative
shift of a query moves its column down.

Letters: see `pallas.py`.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import export
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from txl_keras.layers.compute.dropout import mix
from txl_keras.layers.compute.problem import MASKED_SCORE
from txl_keras.tpu.pallas import TILE_QUERIES

# TensorFlow holds the TPU. Here jax only compiles, and must not claim it.
jax.config.update("jax_platforms", "cpu")

# Rows of a vector register.
_SUBLANES = 8


@functools.cache
def build_kernels(shape, platform):
    """Exports the forward and the backward kernel for `"tpu"` or `"cpu"`.

    Forward takes seeds `(B,)`, the additive mask `(B, 1, S)`, queries, `u` and
    `v` `(N, 1, H)`, keys of memory and segment, values of both, and rows of
    distances. It returns the output `(N, B, T, H)` and the log-sum-exp
    `(N, B, 1, T)`. Backward takes the same inputs, the output gradient, the
    log-sum-exp, and `softmax_delta` `(N, B, 1, T)`. It returns the gradients of
    the queries and of all inputs after them.
    """
    sizes = {"n": shape.heads, "b": shape.batch, "i": shape.length}
    blocks = {"n": None, "b": None, "i": TILE_QUERIES}

    def operand(*axes, dtype=shape.dtype):
        """Describes an array by axes: a size, or the letter of a grid axis."""

        def index(n, b, i):
            return tuple({"n": n, "b": b, "i": i}.get(axis, 0) for axis in axes)

        array_shape = tuple(sizes.get(axis, axis) for axis in axes)
        block_shape = tuple(blocks.get(axis, axis) for axis in axes)
        array = jax.ShapeDtypeStruct(array_shape, dtype)
        return array, pl.BlockSpec(block_shape, index)

    head_dim, lengths = shape.head_dim, (shape.num_memory, shape.length)
    query = operand("n", "b", "i", head_dim)
    keys = [operand("n", "b", length, head_dim) for length in lengths]
    bias = operand("n", 1, head_dim)
    sums = operand("n", "b", 1, "i", dtype="float32")
    seeds = (
        jax.ShapeDtypeStruct((shape.batch,), "uint32"),
        pl.BlockSpec(memory_space=pltpu.SMEM),
    )
    mask = operand("b", 1, shape.num_keys, dtype="float32")
    rows = operand("n", shape.num_rows, head_dim)
    tensors = [query, bias, bias, *keys, *keys, rows]
    inputs = [seeds, mask, *tensors]
    # They persist from block to block.
    accumulators = [
        pltpu.VMEM((length, head_dim), "float32")
        for length in (1, 1, *lengths, *lengths, shape.num_rows)
    ]
    return (
        _export(shape, platform, _forward, (2, 1), inputs, [query, sums]),
        _export(
            shape,
            platform,
            _backward,
            (5, 3),
            [*inputs, query, sums, sums],
            tensors,
            accumulators,
        ),
    )


def _export(shape, platform, body, matmuls, inputs, outputs, accumulators=()):
    """Exports a kernel so that TensorFlow can call it."""
    # `matmuls` are the numbers of matmuls with the keys and with the distances
    # of a tile, for the FLOP count.
    t, s = TILE_QUERIES, shape.tile_keys
    blocks = shape.length // t
    segment_tiles = sum(-(-end * t // s) for end in range(1, blocks + 1))
    tiles = blocks * (shape.num_memory // s) + segment_tiles
    tiles *= shape.heads * shape.batch
    columns = matmuls[0] * s + matmuls[1] * (s + t)
    kernel = pl.pallas_call(
        functools.partial(body, shape),
        grid=(shape.heads, shape.batch, blocks),
        in_specs=[spec for _, spec in inputs],
        out_specs=[spec for _, spec in outputs],
        out_shape=[array for array, _ in outputs],
        scratch_shapes=accumulators,
        interpret=platform == "cpu",
        # Gradients of a head accumulate over the rows and blocks of the grid.
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary")
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * tiles * columns * t * shape.head_dim,
            # Every array is read once or written once.
            bytes_accessed=sum(
                math.prod(array.shape) * array.dtype.itemsize
                for array, _ in (*inputs, *outputs)
            ),
            transcendentals=tiles * s * t,
        ),
    )
    arrays = [array for array, _ in inputs]
    return export.export(jax.jit(kernel), platforms=[platform])(*arrays)


class _Tile:
    """Holds a tile of `s` keys, and slices of them and of `s + t` distances."""

    def __init__(self, shape, block, in_segment, first):
        t, s = TILE_QUERIES, shape.tile_keys
        self._shape = shape
        self._block = block
        # Index of the first key among all S keys, of which memory comes first.
        self._first = first + shape.num_memory * in_segment
        self.in_segment = in_segment
        self.key_slice = pl.ds(pl.multiple_of(first, t), s)
        # Row t + c - a of this slice is the distance of key c and query a.
        start = shape.length - block.first - t + self._first
        self.distance_slice = pl.ds(pl.multiple_of(start, t), s + t)

    def scores(self, keys, rows, additive_mask):
        """Computes masked float32 scores `(s, t)`, and their mask."""
        # Shapes: keys `(s, H)`, rows `(s + t, H)`, additive mask `(1, S)`.
        t, s = TILE_QUERIES, self._shape.tile_keys
        content = _dot(keys, self._block.content_query, (1, 1))
        by_distance = _dot(rows, self._block.position_query, (1, 1))
        key_mask = additive_mask[:, pl.ds(pl.multiple_of(self._first, t), s)]
        scores = content + _shift(by_distance)
        scores += jnp.broadcast_to(key_mask, (t, s)).T
        visible = scores > MASKED_SCORE / 2
        query = self._shape.num_memory + self._block.first + _iota((s, t), 1)
        distance = query - self._first - _iota((s, t), 0)
        if self.in_segment:
            visible &= distance >= 0
        if self._shape.max_distance is not None:
            visible &= distance <= self._shape.max_distance
        return jnp.where(visible, scores, MASKED_SCORE), visible

    def drop(self, x):
        """Sets dropped elements of `(s, t)` to 0, see `dropout.keep_mask`."""
        if not self._shape.rate:
            return x
        num_keys = self._shape.num_keys
        register_shape = (_SUBLANES, TILE_QUERIES)
        head = self._block.head * self._shape.length
        query = head + self._block.first + _iota(register_shape, 1)
        unit = query * num_keys + self._first + _iota(register_shape, 0)
        stride = self._block.seed | jnp.uint32(1)
        counter = self._block.seed + stride * unit.astype("uint32")
        # Integer vector multiplication is slow, so only few rows use it.
        counter = jnp.concatenate(
            [
                counter + stride * jnp.uint32(row)
                for row in range(0, self._shape.tile_keys, _SUBLANES)
            ]
        )
        threshold = jnp.uint32(int(self._shape.rate * 2**32))
        return jnp.where(mix(counter, _shift_right) >= threshold, x, 0.0)


class _Block:
    """Holds a block of `t` queries, of one head and one batch row."""

    # `content_query` is `q + u`, `position_query` is `q + v`, both `(t, H)`.

    def __init__(self, shape, seeds, query, content_bias, position_bias):
        self._shape = shape
        self.head, self.row, block = (pl.program_id(axis) for axis in range(3))
        self.first = block * TILE_QUERIES
        self.is_first = block == 0
        self.is_last = block == pl.num_programs(2) - 1
        self.seed = seeds[self.row]
        self.content_query, self.position_query = (
            (query[...].astype("float32") + bias[...]).astype(shape.dtype)
            for bias in (content_bias, position_bias)
        )

    def over_tiles(self, add_tile, carry):
        """Folds `add_tile(tile, carry)` over all tiles visible to the block."""
        s = self._shape.tile_keys

        def step(in_segment, index, carry):
            tile = _Tile(self._shape, self, in_segment, index * s)
            return add_tile(tile, carry)

        tiles = lax.div(self.first + (TILE_QUERIES + s - 1), s)
        for in_segment, end in (
            (False, self._shape.num_memory // s),
            (True, tiles),
        ):
            one = functools.partial(step, in_segment)
            carry = lax.fori_loop(0, end, one, carry)
        return carry


def _forward(shape, seeds, mask, query, u, v, *rest):
    """Computes the output by an online softmax over tiles of keys."""
    keys, values, (rows, output, log_sum_exp) = rest[:2], rest[2:4], rest[4:]
    block = _Block(shape, seeds, query, u, v)

    def add_tile(tile, carry):
        max_score, total, attended = carry
        tile_keys = keys[tile.in_segment][tile.key_slice]
        scores, _ = tile.scores(tile_keys, rows[tile.distance_slice], mask)
        new_max = jnp.maximum(max_score, scores.max(0, keepdims=True))
        exponentials = jnp.exp(scores - new_max)
        rescale = jnp.exp(max_score - new_max)
        weights = tile.drop(exponentials).astype(shape.dtype)
        weighted_sum = _dot(
            values[tile.in_segment][tile.key_slice], weights, (0, 0)
        )
        return (
            new_max,
            total * rescale + exponentials.sum(0, keepdims=True),
            attended * rescale + weighted_sum,
        )

    max_score, total, attended = block.over_tiles(
        add_tile,
        (
            jnp.full((1, TILE_QUERIES), MASKED_SCORE),
            jnp.zeros((1, TILE_QUERIES)),
            jnp.zeros((shape.head_dim, TILE_QUERIES)),
        ),
    )
    attended = attended / (total * (1 - shape.rate))
    output[...] = attended.T.astype(output.dtype)
    log_sum_exp[...] = max_score + jnp.log(total)


def _backward(shape, seeds, mask, query, u, v, *rest):
    """Computes the gradients; equations are in `tiles.softmax_matmul`."""
    keys, values, rest = rest[:2], rest[2:4], rest[4:]
    rows, output_gradient, log_sum_exp, delta, *rest = rest
    gradients, sums = rest[:8], rest[8:]
    query_gradient, *accumulated = gradients
    u_sum, v_sum, *key_value_sums, row_sum = sums
    key_sums, value_sums = key_value_sums[:2], key_value_sums[2:]
    block = _Block(shape, seeds, query, u, v)
    scale = 1 / (1 - shape.rate)

    def add_tile(tile, carry):
        content_gradient, position_gradient = carry
        tile_keys = keys[tile.in_segment][tile.key_slice]
        distances = rows[tile.distance_slice]
        scores, visible = tile.scores(tile_keys, distances, mask)
        probabilities = jnp.exp(scores - log_sum_exp[...])
        probabilities = jnp.where(visible, probabilities, 0.0)
        weight_gradient = _dot(
            values[tile.in_segment][tile.key_slice],
            output_gradient[...],
            (1, 1),
        )
        score_gradient = probabilities * (
            tile.drop(weight_gradient * scale) - delta[...]
        )
        distance_gradient = _unshift(score_gradient).astype(shape.dtype)
        score_gradient = score_gradient.astype(shape.dtype)
        weights = tile.drop(probabilities * scale).astype(shape.dtype)
        value_sums[tile.in_segment][tile.key_slice] += _dot(
            weights, output_gradient[...], (1, 0)
        )
        key_sums[tile.in_segment][tile.key_slice] += _dot(
            score_gradient, block.content_query, (1, 0)
        )
        row_sum[tile.distance_slice] += _dot(
            distance_gradient, block.position_query, (1, 0)
        )
        return (
            content_gradient + _dot(score_gradient, tile_keys, (0, 0)),
            position_gradient + _dot(distance_gradient, distances, (0, 0)),
        )

    # Accumulators start anew for each head or each batch row of the grid.
    per_head, per_row = [u_sum, v_sum, row_sum], [*key_sums, *value_sums]

    @pl.when(block.is_first & (block.row == 0))
    def _():
        _clear(per_head)

    @pl.when(block.is_first)
    def _():
        _clear(per_row)

    zero = jnp.zeros((TILE_QUERIES, shape.head_dim))
    content_gradient, position_gradient = block.over_tiles(
        add_tile, (zero, zero)
    )
    query_gradient[...] = (content_gradient + position_gradient).astype(
        shape.dtype
    )
    u_sum[...] += content_gradient.sum(0, keepdims=True)
    v_sum[...] += position_gradient.sum(0, keepdims=True)

    @pl.when(block.is_last)
    def _():
        for gradient, total in zip(accumulated, sums, strict=True):
            gradient[...] = total[...].astype(shape.dtype)


def _clear(sums):
    for total in sums:
        total[...] = jnp.zeros_like(total)


def _dot(left, right, axes):
    """Multiplies matrices over one axis of each, accumulating in float32."""
    dimensions = ((axes[:1], axes[1:]), ((), ()))
    return lax.dot_general(
        left, right, dimensions, preferred_element_type="float32"
    )


def _iota(shape, axis):
    return lax.broadcasted_iota("int32", shape, axis)


def _shift(x):
    """Shifts `(s + t, t)` by distance to `(s, t)` by key."""
    # Column `a` moves down by `a` rows, one bit of `a` at a time. Large steps
    # move whole registers, which is free, and come first. The `t` rows at the
    # top are lost.
    for step in _steps():
        x = jnp.where(_has_bit(step), x[:-step], x[step:])
    return x[1:]


def _unshift(x):
    """Computes the gradient of `_shift`."""
    # Rows rotate upwards within a register, one at a time. Moving them down
    # would take almost a full rotation, so the small steps move them up.
    zeros = jnp.zeros((TILE_QUERIES, TILE_QUERIES))
    x = jnp.concatenate([zeros, x, zeros])
    for step in _steps():
        if step >= _SUBLANES:
            x = jnp.where(_has_bit(step), x[step:], x[:-step])
        else:
            turned = pltpu.roll(x, x.shape[0] - step, 0)
            x = jnp.where(_has_bit(step), turned, x)
    return x[:-_SUBLANES]


def _steps():
    """Returns the powers of 2 below `t`, the largest first."""
    return [2**bit for bit in reversed(range(TILE_QUERIES.bit_length() - 1))]


def _has_bit(step):
    return _iota((1, TILE_QUERIES), 1) & step != 0


def _shift_right(x, bits):
    return lax.shift_right_logical(x, jnp.uint32(bits))
