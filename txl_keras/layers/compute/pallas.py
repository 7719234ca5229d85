"""Attention as a kernel for TPUs, whose scores never leave the chip.

Of what XLA makes of attention, most bytes are scores, written and read again.
In the kernel (`pallas_kernels.py`, in JAX's Pallas) they live in the vector
memory of a core, and the backward pass computes them anew (Dao et al., 2022).
TensorFlow takes it as an operation of its graph, a compiled module: jax is
needed where a step is traced, and nowhere after that.

Letters: `B` batch, `T` segment, `M` memory, `S` = M + T keys, `N` heads, `H`
head size; `t` queries and `s` keys of a tile.
"""

import dataclasses
import functools
import math

import tensorflow as tf

from txl_keras.layers.compute import target as targets
from txl_keras.layers.compute.dropout import fold_in
from txl_keras.layers.compute.problem import CLOSED
from txl_keras.layers.compute.problem import dot_product
from txl_keras.layers.compute.softmax import mean_weight_gradient

# `t`: the queries of a tile are the columns of a vector register.
TILE_QUERIES = 128


def supports(problem, target):
    """Whether it can be computed so.

    Raises:
        ValueError: If it could, but for lengths that cannot be cut into tiles.
    """
    visible, positions = problem.visible, problem.positions
    can = (
        target.kernel
        and visible.causal
        and visible.attention_mask is None
        and problem.has_known_sizes
        and len(problem.parts) == 2
        and not problem.batch_first
        and problem.score_bias is None
        and positions is not None
        and positions.scores is dot_product
        and positions.bias is not None
        and problem.content_bias is not None
    )
    if can:
        check_lengths(visible.length, visible.num_memory)
    return can


def attend(problem):
    """Computes what `definition.attend` does, without the probabilities.

    A query that may see no key gets the mean of some values, and they no
    gradient from it.
    """
    visible, query = problem.visible, problem.query
    shape = KernelShape(
        heads=query.shape[0],
        batch=query.shape[1],
        length=visible.length,
        num_memory=visible.num_memory,
        head_dim=query.shape[3],
        dtype=query.dtype.name,
        farthest=visible.farthest,
        rate=float(problem.rate),
    )
    mask = visible.key_mask
    if mask is None:
        mask = tf.ones((shape.batch, shape.num_keys), tf.bool)
    keys, values = zip(*problem.parts, strict=True)
    attended = _attend_in_kernel(
        shape,
        query,
        (problem.content_bias, problem.positions.bias),
        keys,
        values,
        *problem.positions.rows,
        mask,
        problem.seeds,
    )
    return problem.for_output(attended)


@dataclasses.dataclass(frozen=True)
class KernelShape:
    """What a kernel is compiled for.

    Attributes:
        heads, batch, length, num_memory, head_dim: Integers `N`, `B`, `T`,
            `M`, `H`.
        dtype: String, of all tensors but masks and sums.
        farthest: Optional integer, the distance beyond which keys are shut.
        rate: Float, the fraction of probabilities that dropout drops.
    """

    heads: int
    batch: int
    length: int
    num_memory: int
    head_dim: int
    dtype: str
    farthest: int | None = None
    rate: float = 0.0

    @property
    def num_keys(self):
        """`S`"""
        return self.num_memory + self.length

    @property
    def tile_keys(self):
        """`s`: of memory or of the segment, not of both."""
        twice = 2 * TILE_QUERIES
        is_even = math.gcd(self.num_memory, self.length) % twice == 0
        return twice if is_even else TILE_QUERIES

    @property
    def num_rows(self):
        """Distances, one before the farthest and `s - 1` after the nearest.

        A tile needs those of its corners, which no query sees.
        """
        return self.num_keys + self.tile_keys


def check_lengths(length, num_memory):
    """Sees that segment and memory can be cut into tiles.

    Raises:
        ValueError: If not.
    """
    if num_memory < 1 or length % TILE_QUERIES or num_memory % TILE_QUERIES:
        raise ValueError(
            "`attention_kernel` works on tiles: segment_length and "
            f"memory_length must be multiples of {TILE_QUERIES}. Received: "
            f"segment_length={length}, memory_length={num_memory}"
        )


def _attend_in_kernel(
    shape, query, biases, keys, values, positions, mask, seeds
):
    """`dropout(softmax(scores)) values`, `(N, B, T, H)`.

    The first derivative is there, a second is not.

    Args:
        shape: `KernelShape`.
        query: Tensor `(N, B, T, H)` of scaled queries.
        biases: Pair of tensors `(N, H)`: what is added to the queries before
            they meet the keys, and the positions.
        keys, values: Pairs of tensors `(N, B, M, H)` and `(N, B, T, H)`, of
            memory and of the segment.
        positions: Tensor `(N, S, H)`, a row a distance, the farthest first.
        mask: Boolean `(B, S)`, false where a key is empty.
        seeds: uint32 `(B,)`, of dropout; or `None`.
    """
    # Only here: nothing else of the layers needs jax.
    from txl_keras.layers.compute.pallas_kernels import build_kernels

    forward, backward = (
        functools.partial(_call, kernel)
        for kernel in build_kernels(shape, _platform())
    )
    if seeds is None:
        seeds = tf.zeros(shape.batch, tf.uint32)
    constants = fold_in(seeds, 0), tf.where(mask, 0.0, CLOSED)[:, None]
    rows = tf.pad(positions, [[0, 0], [1, shape.tile_keys - 1], [0, 0]])

    @tf.custom_gradient
    def attended(*tensors):
        output, log_total = forward(*constants, *tensors)

        def gradient(output_gradient):
            shift = mean_weight_gradient(output, output_gradient)
            shift = tf.reshape(shift, log_total.shape)
            return backward(
                *constants, *tensors, output_gradient, log_total, shift
            )

        return output, gradient

    biases = [bias[:, None] for bias in biases]
    return attended(query, *biases, *keys, *values, rows)


@tf.custom_gradient
def with_row_major_gradient(kernel):
    """A kernel of `(D, N, H)` itself, whose gradient lies as it does.

    A product of matrices gives that gradient with the heads outermost. XLA
    would have the whole optimizer follow it, and copy weights and moments, in
    float32, there and back.

    Args:
        kernel: Tensor.

    Returns:
        The same tensor.
    """

    def gradient(kernel_gradient):
        target = targets.current()
        if not target.kernel or target.is_cpu:
            return kernel_gradient
        from txl_keras.layers.compute.pallas_kernels import build_row_major

        shape = tuple(kernel_gradient.shape)
        lay_out = build_row_major(shape, kernel_gradient.dtype.name)
        return _call(lay_out, kernel_gradient)[0]

    return tf.identity(kernel), gradient


def _platform():
    return "cpu" if targets.current().is_cpu else "tpu"


def _call(kernel, *tensors):
    """Runs a kernel of `build_kernels` in TensorFlow."""
    from tensorflow.compiler.tf2xla.python import xla

    return xla.call_module(
        tensors,
        version=kernel.calling_convention_version,
        module=kernel.mlir_module_serialized,
        Tout=[tf.as_dtype(array.dtype) for array in kernel.out_avals],
        Sout=[array.shape for array in kernel.out_avals],
        platforms=[name.upper() for name in kernel.platforms],
        # A step for a TPU may be lowered on a machine without one.
        disabled_checks=[xla.call_module_disable_check_platform()],
    )
