"""The kernels of `pallas.py`.

An instance of a kernel has the queries of a block, the keys and values of its
head and row of the batch, and the distances of its head, and goes through the
keys tile by tile: those of memory, then those of the segment, up to the
block's own. Tiles have keys as rows and queries as columns. So what belongs to
a query, as the sum of its exponentials, is a row of the registers' columns,
and to move a query's scores by its own distance is to move a column down.

Letters: see `pallas.py`.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import export
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.layout import Layout
from jax.experimental.layout import with_layout_constraint
from jax.experimental.pallas import tpu as pltpu

from txl_keras.layers.compute.pallas import TILE_QUERIES
from txl_keras.layers.compute.problem import CLOSED

# TensorFlow holds the TPU. jax, which only compiles here, would ask for it.
jax.config.update("jax_platforms", "cpu")

# Rows of a vector register.
_SUBLANES = 8


@functools.cache
def build_row_major(shape, dtype):
    """The same tensor, with the last axis innermost, the first outermost.

    Args:
        shape: Tuple of integers.
        dtype: String.

    Returns:
        `jax.export.Exported`, for a TPU.
    """
    order = Layout(major_to_minor=tuple(range(len(shape))))
    target = export.DisabledSafetyCheck.custom_call("LayoutConstraint")
    return export.export(
        jax.jit(lambda x: with_layout_constraint(x, order)),
        platforms=["tpu"],
        disabled_checks=[target],
    )(jax.ShapeDtypeStruct(shape, dtype))


@functools.cache
def build_kernels(shape, platform):
    """Attention and its gradient.

    Args:
        shape: `KernelShape`.
        platform: `"tpu"` or `"cpu"`.

    Returns:
        Pair of `jax.export.Exported`. The first takes seeds `(B,)`, what the
        mask adds `(B, 1, S)`, queries, the two biases `(N, 1, H)`, keys of
        memory and segment, values of both, rows of distances; and returns the
        output `(N, B, T, H)` and the logarithm of the sum of exponentials
        `(N, B, 1, T)`. The second takes all that, the gradient of the output,
        that logarithm, and `mean_weight_gradient` `(N, B, 1, T)`, and returns
        the gradients of what follows the mask.
    """
    heads, batch, head_dim = shape.heads, shape.batch, shape.head_dim
    of_query = _operand(
        (heads, batch, shape.length, head_dim),
        (None, None, TILE_QUERIES, head_dim),
        lambda n, b, i: (n, b, i, 0),
        shape.dtype,
    )
    of_memory, of_segment = (
        _operand(
            (heads, batch, length, head_dim),
            (None, None, length, head_dim),
            lambda n, b, i: (n, b, 0, 0),
            shape.dtype,
        )
        for length in (shape.num_memory, shape.length)
    )
    of_bias, of_rows = (
        _operand(
            (heads, length, head_dim),
            (None, length, head_dim),
            lambda n, b, i: (n, 0, 0),
            shape.dtype,
        )
        for length in (1, shape.num_rows)
    )
    of_sum = _operand(
        (heads, batch, 1, shape.length),
        (None, None, 1, TILE_QUERIES),
        lambda n, b, i: (n, b, 0, i),
        "float32",
    )
    of_mask = _operand(
        (batch, 1, shape.num_keys),
        (None, 1, shape.num_keys),
        lambda n, b, i: (b, 0, 0),
        "float32",
    )
    of_seeds = (
        jax.ShapeDtypeStruct((batch,), "uint32"),
        pl.BlockSpec(memory_space=pltpu.SMEM),
    )
    of_keys = [of_memory, of_segment]
    tensors = [of_query, of_bias, of_bias, *of_keys, *of_keys, of_rows]
    inputs = [of_seeds, of_mask, *tensors]
    sums = [
        pltpu.VMEM((length, head_dim), "float32")
        for length in (1, 1, *2 * (shape.num_memory, shape.length))
    ]
    sums.append(pltpu.VMEM((shape.num_rows, head_dim), "float32"))
    compiled = functools.partial(_export, shape=shape, platform=platform)
    return (
        compiled(_forward, inputs, [of_query, of_sum], products=(2, 1)),
        compiled(
            _backward,
            [*inputs, of_query, of_sum, of_sum],
            tensors,
            sums,
            products=(5, 3),
        ),
    )


def _operand(array_shape, block_shape, index_map, dtype):
    array = jax.ShapeDtypeStruct(array_shape, dtype)
    return array, pl.BlockSpec(block_shape, index_map)


def _export(body, inputs, outputs, sums=(), *, products, shape, platform):
    """Compiles a kernel, to be called by TensorFlow.

    Args:
        body: `_forward` or `_backward`.
        inputs, outputs: Lists of `_operand`.
        sums: List of what is kept from block to block.
        products: Pair of integers: of matrices with the keys of a tile, and
            with its distances.
    """
    t, s = TILE_QUERIES, shape.tile_keys
    blocks = shape.length // t
    of_segment = sum(-(-end * t // s) for end in range(1, blocks + 1))
    tiles = blocks * (shape.num_memory // s) + of_segment
    tiles *= shape.heads * shape.batch
    columns = products[0] * s + products[1] * (s + t)
    kernel = pl.pallas_call(
        functools.partial(body, shape),
        grid=(shape.heads, shape.batch, blocks),
        in_specs=[spec for _, spec in inputs],
        out_specs=[spec for _, spec in outputs],
        out_shape=[array for array, _ in outputs],
        scratch_shapes=sums,
        interpret=platform == "cpu",
        # Gradients of a head are summed up over the other two.
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary")
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * tiles * columns * t * shape.head_dim,
            # All is read once or written once.
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
    """Some keys, and the queries of a block.

    Attributes:
        in_segment: Boolean, whether the keys are those of the segment.
        place: Slice, where they are in memory or segment.
        window: Slice, where their distances are, `s + t` of them.
    """

    def __init__(self, shape, block, in_segment, first):
        t, s = TILE_QUERIES, shape.tile_keys
        self._shape = shape
        self._block = block
        # Of all keys, those of memory first.
        self._first = first + shape.num_memory * in_segment
        self.in_segment = in_segment
        self.place = pl.ds(pl.multiple_of(first, t), s)
        # The distance of key c and query a is at row t + c - a of the window.
        start = shape.length - block.first - t + self._first
        self.window = pl.ds(pl.multiple_of(start, t), s + t)

    def scores(self, keys, rows, mask):
        """Float32 `(s, t)`, and which of these count.

        Args:
            keys: Array `(s, H)`.
            rows: Array `(s + t, H)`, of the window.
            mask: Reference to what is added to the score of a key, `(1, S)`.
        """
        t, s = TILE_QUERIES, self._shape.tile_keys
        content = _dot(keys, self._block.content_query, (1, 1))
        by_distance = _dot(rows, self._block.position_query, (1, 1))
        of_keys = mask[:, pl.ds(pl.multiple_of(self._first, t), s)]
        scores = content + _move_down(by_distance)
        scores += jnp.broadcast_to(of_keys, (t, s)).T
        sees = scores > CLOSED / 2
        query = self._shape.num_memory + self._block.first + _iota((s, t), 1)
        distance = query - self._first - _iota((s, t), 0)
        if self.in_segment:
            sees &= distance >= 0
        if self._shape.farthest is not None:
            sees &= distance <= self._shape.farthest
        return jnp.where(sees, scores, CLOSED), sees

    def kept(self, x):
        """What dropout keeps of `(s, t)`: see `row_dropout.is_kept`."""
        if not self._shape.rate:
            return x
        num_keys = self._shape.num_keys
        of_rows = (_SUBLANES, TILE_QUERIES)
        head = self._block.head * self._shape.length
        query = head + self._block.first + _iota(of_rows, 1)
        unit = query * num_keys + self._first + _iota(of_rows, 0)
        stride = self._block.seed | jnp.uint32(1)
        walk = self._block.seed + stride * unit.astype("uint32")
        # Where multiplying vectors is slow, it is done for few rows.
        walk = jnp.concatenate(
            [
                walk + stride * jnp.uint32(row)
                for row in range(0, self._shape.tile_keys, _SUBLANES)
            ]
        )
        threshold = jnp.uint32(int(self._shape.rate * 2**32))
        return jnp.where(_mix(walk) >= threshold, x, 0.0)


class _Block:
    """Some queries of a head and a row of the batch.

    Attributes:
        head, row, first: Scalars: `n`, `b`, and the first of the queries.
        seed: uint32 scalar, of the row.
        content_query, position_query: Arrays `(t, H)`.
    """

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
        """Calls `add_tile(tile, carry)` for all tiles that it sees."""
        s = self._shape.tile_keys

        def step(in_segment, index, carry):
            tile = _Tile(self._shape, self, in_segment, index * s)
            return add_tile(tile, carry)

        seen = lax.div(self.first + (TILE_QUERIES + s - 1), s)
        of_memory = functools.partial(step, False)
        carry = lax.fori_loop(0, self._shape.num_memory // s, of_memory, carry)
        return lax.fori_loop(0, seen, functools.partial(step, True), carry)


def _forward(shape, seeds, mask, query, u, v, *rest):
    """The softmax is that of what was seen so far, until all was."""
    keys, values, (rows, output, log_total) = rest[:2], rest[2:4], rest[4:]
    block = _Block(shape, seeds, query, u, v)

    def add_tile(tile, carry):
        highest, total, attended = carry
        seen = keys[tile.in_segment][tile.place]
        scores, _ = tile.scores(seen, rows[tile.window], mask)
        higher = jnp.maximum(highest, scores.max(0, keepdims=True))
        exponentials = jnp.exp(scores - higher)
        fade = jnp.exp(highest - higher)
        weights = tile.kept(exponentials).astype(shape.dtype)
        product = _dot(values[tile.in_segment][tile.place], weights, (0, 0))
        return (
            higher,
            total * fade + exponentials.sum(0, keepdims=True),
            attended * fade + product,
        )

    highest, total, attended = block.over_tiles(
        add_tile,
        (
            jnp.full((1, TILE_QUERIES), CLOSED),
            jnp.zeros((1, TILE_QUERIES)),
            jnp.zeros((shape.head_dim, TILE_QUERIES)),
        ),
    )
    attended = attended / (total * (1 - shape.rate))
    output[...] = attended.T.astype(output.dtype)
    log_total[...] = highest + jnp.log(total)


def _backward(shape, seeds, mask, query, u, v, *rest):
    """See `softmax_attention.attend`."""
    keys, values, rest = rest[:2], rest[2:4], rest[4:]
    rows, output_gradient, log_total, shift, *rest = rest
    gradients, sums = rest[:8], rest[8:]
    query_gradient, *summed = gradients
    u_sum, v_sum, *of_keys, row_sum = sums
    key_sums, value_sums = of_keys[:2], of_keys[2:]
    block = _Block(shape, seeds, query, u, v)
    scale = 1 / (1 - shape.rate)

    def add_tile(tile, carry):
        content_gradient, position_gradient = carry
        seen = keys[tile.in_segment][tile.place]
        distances = rows[tile.window]
        scores, sees = tile.scores(seen, distances, mask)
        probabilities = jnp.exp(scores - log_total[...])
        probabilities = jnp.where(sees, probabilities, 0.0)
        weight_gradient = _dot(
            values[tile.in_segment][tile.place], output_gradient[...], (1, 1)
        )
        score_gradient = probabilities * (
            tile.kept(weight_gradient * scale) - shift[...]
        )
        by_distance = _move_up(score_gradient).astype(shape.dtype)
        score_gradient = score_gradient.astype(shape.dtype)
        weights = tile.kept(probabilities * scale).astype(shape.dtype)
        value_sums[tile.in_segment][tile.place] += _dot(
            weights, output_gradient[...], (1, 0)
        )
        key_sums[tile.in_segment][tile.place] += _dot(
            score_gradient, block.content_query, (1, 0)
        )
        row_sum[tile.window] += _dot(by_distance, block.position_query, (1, 0))
        return (
            content_gradient + _dot(score_gradient, seen, (0, 0)),
            position_gradient + _dot(by_distance, distances, (0, 0)),
        )

    # Of a head, and of a row of the batch: in the order of the grid.
    of_head, of_row = [u_sum, v_sum, row_sum], [*key_sums, *value_sums]

    @pl.when(block.is_first & (block.row == 0))
    def _():
        _clear(of_head)

    @pl.when(block.is_first)
    def _():
        _clear(of_row)

    zero = jnp.zeros((TILE_QUERIES, shape.head_dim))
    of_content, of_position = block.over_tiles(add_tile, (zero, zero))
    query_gradient[...] = (of_content + of_position).astype(shape.dtype)
    u_sum[...] += of_content.sum(0, keepdims=True)
    v_sum[...] += of_position.sum(0, keepdims=True)

    @pl.when(block.is_last)
    def _():
        for gradient, total in zip(summed, sums, strict=True):
            gradient[...] = total[...].astype(shape.dtype)


def _clear(sums):
    for total in sums:
        total[...] = jnp.zeros_like(total)


def _dot(left, right, axes):
    """Product of matrices, summed over an axis of each, in float32."""
    dimensions = ((axes[:1], axes[1:]), ((), ()))
    return lax.dot_general(
        left, right, dimensions, preferred_element_type="float32"
    )


def _iota(shape, axis):
    return lax.broadcasted_iota("int32", shape, axis)


def _move_down(x):
    """`(s + t, t)` by distance as `(s, t)` by key.

    Column `a` moves down by `a`, bit by bit; `t` rows at the top are lost. To
    move a whole register is to rename it, so long ways are first.
    """
    for step in _steps():
        x = jnp.where(_has_bit(step), x[:-step], x[step:])
    return x[1:]


def _move_up(x):
    """The gradient of `_move_down`.

    Registers turn their rows up, by one at a time. To move the other way they
    would have to go around.
    """
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
    """Powers of 2 below `t`, the largest first."""
    return [2**bit for bit in reversed(range(TILE_QUERIES.bit_length() - 1))]


def _has_bit(step):
    return _iota((1, TILE_QUERIES), 1) & step != 0


def _mix(x):
    """`row_dropout.fold_in`'s hash."""
    x = (x ^ _shift_right(x, 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ _shift_right(x, 15)) * jnp.uint32(0x846CA68B)
    return x ^ _shift_right(x, 16)


def _shift_right(x, bits):
    return lax.shift_right_logical(x, jnp.uint32(bits))
