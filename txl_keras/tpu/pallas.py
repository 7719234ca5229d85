"""Attention for TPUs with a Pallas kernel, whose scores never leave the chip.

The kernel (`pallas_kernels.py`, in JAX's Pallas) holds scores in the vector
memory of a core, and its backward pass recomputes them (Dao et al., 2022).
TensorFlow runs it as an op that contains a compiled module. So jax is needed to
trace a step, but not to run it.

Letters: `B` batch, `T` segment, `M` memory, `S` = M + T keys, `N` heads, `H`
head size; `t` queries and `s` keys of a tile.
"""

import dataclasses
import math

import tensorflow as tf

from txl_keras.layers.compute import target as targets
from txl_keras.layers.compute.dropout import fold_in
from txl_keras.layers.compute.problem import MASKED_SCORE
from txl_keras.layers.compute.tiles import softmax_delta
from txl_keras.tpu.compiling import VERSIONS
from txl_keras.tpu.compiling import check_packages

# `t`: queries are the columns of a tile, and a vector register has 128.
TILE_QUERIES = 128


def check(model):
    """Checks that the attention of a model can use the kernel."""
    # jax is not an extra of this package: pip would then replace the TensorFlow
    # build of a TPU.
    check_packages("`attention`", f"jax=={VERSIONS['jax']}", ["jax"])
    backbone = model.backbone
    attention_type = getattr(backbone, "attention_type", None)
    if attention_type != "relative" or model.compute_dtype == "float16":
        raise ValueError(
            "`attention` can only be pallas for a TransformerXLBackbone with "
            "attention_type=relative, in float32 or bfloat16. Received: "
            f"{type(backbone).__name__}, attention_type={attention_type}, "
            f"{model.compute_dtype}"
        )
    # The segment length is checked where a step is compiled.
    _check_lengths(TILE_QUERIES, backbone.memory_length)


def supports(problem, target):
    """Returns whether the kernel can solve this problem."""
    visible, positions = problem.visible, problem.positions
    is_supported = (
        visible.look_ahead == 0
        and visible.attention_mask is None
        and problem.has_static_sizes
        and len(problem.parts) == 2
        and not problem.batch_first
        and problem.score_bias is None
        and positions is not None
        and positions.bias is not None
        and problem.content_bias is not None
    )
    if is_supported:
        _check_lengths(visible.length, visible.num_memory)
    return is_supported


def _check_lengths(length, num_memory):
    if num_memory < 1 or length % TILE_QUERIES or num_memory % TILE_QUERIES:
        raise ValueError(
            "`segment_length` and `memory_length` must be positive multiples "
            f"of {TILE_QUERIES}, the tile size of the attention kernel. "
            f"Received: segment_length={length}, memory_length={num_memory}"
        )


def attend(problem):
    """Computes attention `(B, T, N, H)` with the Pallas kernel."""
    # Imported here because only the kernel needs jax.
    from txl_keras.tpu.pallas_kernels import build_kernels

    visible, query = problem.visible, problem.query
    # On a CPU the kernel is interpreted, which is slow and meant for tests.
    platform = "cpu" if targets.current().is_cpu else "tpu"
    shape = KernelShape(
        heads=query.shape[0],
        batch=query.shape[1],
        length=visible.length,
        num_memory=visible.num_memory,
        head_dim=query.shape[3],
        dtype=query.dtype.name,
        max_distance=visible.max_distance,
        rate=float(problem.rate),
    )
    forward, backward = build_kernels(shape, platform)
    mask, seeds = visible.key_mask, problem.seeds
    if mask is None:
        mask = tf.ones((shape.batch, shape.num_keys), tf.bool)
    if seeds is None:
        seeds = tf.zeros(shape.batch, tf.uint32)
    constants = fold_in(seeds, 0), tf.where(mask, 0.0, MASKED_SCORE)[:, None]
    rows = tf.pad(
        problem.positions.rows, [[0, 0], [1, shape.tile_keys - 1], [0, 0]]
    )

    @tf.custom_gradient  # of the first order only
    def attended(*tensors):
        output, log_sum_exp = _call(forward, *constants, *tensors)

        def gradient(output_gradient):
            delta = softmax_delta(output, output_gradient)
            delta = tf.reshape(delta, log_sum_exp.shape)
            saved = output_gradient, log_sum_exp, delta
            return _call(backward, *constants, *tensors, *saved)

        return output, gradient

    keys, values = zip(*problem.parts, strict=True)
    biases = problem.content_bias[:, None], problem.positions.bias[:, None]
    return problem.for_output(attended(query, *biases, *keys, *values, rows))


@dataclasses.dataclass(frozen=True)
class KernelShape:
    """Holds the static shapes and options that a kernel is compiled for."""

    heads: int  # N
    batch: int  # B
    length: int  # T
    num_memory: int  # M
    head_dim: int  # H
    dtype: str  # of all tensors but masks and accumulators
    max_distance: int | None = None  # see `Visible`
    rate: float = 0.0  # dropout rate

    @property
    def num_keys(self):
        return self.num_memory + self.length

    @property
    def tile_keys(self):
        # No tile has keys of both memory and segment.
        twice = 2 * TILE_QUERIES
        is_even = math.gcd(self.num_memory, self.length) % twice == 0
        return twice if is_even else TILE_QUERIES

    @property
    def num_rows(self):
        # Distances, with padding for corners of tiles: one before the largest
        # distance and `s - 1` after the smallest.
        return self.num_keys + self.tile_keys


def _call(kernel, *tensors):
    """Runs a `jax.export.Exported` in TensorFlow."""
    from tensorflow.compiler.tf2xla.python import xla

    return xla.call_module(
        tensors,
        version=kernel.calling_convention_version,
        module=kernel.mlir_module_serialized,
        Tout=[tf.as_dtype(array.dtype) for array in kernel.out_avals],
        Sout=[array.shape for array in kernel.out_avals],
        platforms=[name.upper() for name in kernel.platforms],
        # A step for a TPU may be lowered on a machine without a TPU.
        disabled_checks=[xla.call_module_disable_check_platform()],
    )
