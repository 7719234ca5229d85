"""Attention for CPUs, one block of queries after another.

No tensor of all queries and all keys is ever created, and keys that are masked
for a whole block are skipped. With many keys, the backward pass recomputes the
scores instead of storing them, as in FlashAttention (Dao et al., 2022).

More letters: `t` queries of a block, `s` keys up to the last visible one, `r`
distances.
"""

import dataclasses
import typing

from txl_keras.backend import tf
from txl_keras.keras_internals import is_on_cpu
from txl_keras.layers.compute.definition import shear
from txl_keras.layers.compute.dropout import keep_pairs
from txl_keras.layers.compute.problem import MASKED_SCORE
from txl_keras.layers.compute.problem import Visible
from txl_keras.layers.compute.problem import dot_product
from txl_keras.layers.compute.target import fused
from txl_keras.layers.compute.tiles import exponentials_of_parts
from txl_keras.layers.compute.tiles import rows_to_shear
from txl_keras.layers.compute.tiles import softmax_delta
from txl_keras.layers.compute.tiles import zero_depending_on

# Queries per block. Fewer make the matmuls too flat to be fast, more take more
# memory. A block with more than `_MAX_PAIRS` pairs of a query and a key is
# shortened, down to half this length.
BLOCK_LENGTH = 256
_MAX_PAIRS = 2**19
# Up to this many keys per element of a head, weights are kept for the backward
# pass. They then take at most as much memory as all other activations.
KEPT_KEYS = 16


class Block(typing.NamedTuple):
    """Holds the range of queries of a block, and hashable constants."""

    first: int  # index of the first query in the segment
    end: int  # index after the last query
    visible: Visible  # without masks of steps
    rate: float  # dropout rate
    num_heads: int  # N
    is_kept: bool  # whether the backward pass gets the exponentials

    @property
    def num_keys(self):
        """Returns the number of keys up to the last visible one, `s`."""
        return min(self.num_distances, self.visible.num_keys)

    @property
    def num_distances(self):
        """Returns the number of distances of the last query, `r`."""
        return self.visible.num_memory + self.end - self.visible.nearest

    def mask(self):
        """Returns the mask by distance, boolean `(1, 1, t, s)`."""
        queries = self.first, self.end
        return self.visible.mask(0, self.num_keys, queries)[None]

    def slice_mask(self, mask):
        """Slices a mask that broadcasts to `(B, T, S)`, to `(1, B, t, s)`."""
        if mask.shape[1] != 1:
            mask = mask[:, self.first : self.end]
        return mask[None, ..., : self.num_keys]

    def undropped(self, seeds):
        """Returns a dropout mask, true where kept, boolean `(N, B, t, s)`."""
        if not self.rate:
            return True
        sizes = self.num_heads, self.visible.length, self.visible.num_keys
        queries = self.first, self.end
        return keep_pairs(self.rate, seeds, sizes, queries, [self.num_keys])


def supports(problem, target):
    """Returns whether `attend` can solve this problem on this target."""
    return (
        target.is_cpu
        and problem.visible.look_ahead is not None
        and problem.has_static_sizes
        and problem.score_bias is None
        and problem.order is None
        # In float16 the sums of weights may overflow.
        and problem.query.dtype != tf.float16
    )


def attend(problem):
    """Computes attention `(B, T, N, H)`, without returning probabilities."""
    if problem.batch_first:
        parts = [[_heads_first(*x) for x in zip(*problem.parts, strict=True)]]
        problem = dataclasses.replace(problem, parts=parts, batch_first=False)
    blocks = split_queries(problem)
    extra_mask = problem.visible.extra_mask(0, problem.visible.num_keys)
    extra_masks = [block.slice_mask(extra_mask) for block in blocks]
    return problem.for_output(_attend(problem, blocks, extra_masks))


def split_queries(problem):
    """Splits the queries into a list of `Block`, of nearly equal lengths."""
    visible = problem.visible
    length, num_keys = visible.length, visible.num_keys
    longest = max(BLOCK_LENGTH // 2, _MAX_PAIRS // num_keys)
    num_blocks = -(-length // min(BLOCK_LENGTH, longest))
    ends = [length * i // num_blocks for i in range(num_blocks + 1)]
    num_heads, *_, head_dim = problem.query.shape
    of_all_blocks = (
        visible._replace(key_mask=None, attention_mask=None),
        problem.rate,
        num_heads,
        num_keys <= KEPT_KEYS * head_dim,
    )
    return [
        Block(first, end, *of_all_blocks)
        for first, end in zip(ends[:-1], ends[1:], strict=True)
    ]


def split(problem):
    """Yields the attention of each block of queries, if they need few keys."""
    visible = problem.visible
    # A smaller problem would have other dropout masks.
    is_plain = problem.score_bias is None and not problem.rate
    is_causal = visible.look_ahead == 0 and problem.has_static_sizes
    is_fit = is_plain and is_causal and visible.length
    if not (is_fit and is_on_cpu(problem.query)):
        yield problem
        return
    for block in split_queries(problem):
        queries = slice(block.first, block.end)
        *memory, segment = problem.parts
        num_keys = block.num_keys - sum(problem.lengths[:-1])
        key_mask, mask = visible.key_mask, visible.attention_mask
        yield dataclasses.replace(
            problem,
            query=problem.query[:, :, queries],
            parts=[*memory, [x[:, :, :num_keys] for x in segment]],
            visible=visible._replace(
                num_memory=visible.num_memory + block.first,
                length=block.end - block.first,
                key_mask=None if key_mask is None
                else key_mask[:, : block.num_keys],
                attention_mask=None if mask is None
                else mask[:, queries, : block.num_keys],
            ),
        )  # fmt: skip


@fused
def _heads_first(*parts):
    """Joins cached keys or values `(B, N, S_i, H)` to `(N, B, S, H)`."""
    return tf.transpose(tf.concat(parts, axis=2), (1, 0, 2, 3))


def _attend(problem, blocks, extra_masks):
    """Computes attention `(N, B, T, H)`, with a first-order gradient only."""
    keys, values = (
        parts[0] if len(parts) == 1 else tf.concat(parts, axis=2)
        for parts in zip(*problem.parts, strict=True)
    )
    seeds = problem.seeds
    positions = ()
    if problem.positions is not None:
        rows = rows_to_shear(problem.positions.rows, problem.visible)
        positions = problem.position_query(), rows

    @tf.custom_gradient
    def attended(values, *tensors):
        outputs, saved = [], []
        for block, extra_mask in zip(blocks, extra_masks, strict=True):
            visible_values, *operands = _slice_operands(
                block, _zero_depending_on_all(outputs[-1:]), values, *tensors
            )
            scores = _scores(*operands)
            weights, kept, total = _weights(scores, extra_mask, seeds, block)
            weighted_sum = tf.matmul(weights, visible_values)
            outputs.append(_normalize(weighted_sum, total, block.rate))
            saved.append((weights if kept is None else kept, total))

        def gradient(output_gradient):
            sums = None
            for block, extra_mask, output, of_block in zip(
                blocks, extra_masks, outputs, saved, strict=True
            ):
                zero = _zero_depending_on_all(sums or [output_gradient])
                block_gradients = _block_gradients(
                    *_slice_operands(block, zero, values, *tensors),
                    output=output,
                    output_gradient=output_gradient[
                        :, :, block.first : block.end
                    ],
                    softmax=(*of_block, extra_mask, seeds, block),
                )
                if sums is not None:
                    block_gradients = _add_to(sums, block_gradients)
                sums = block_gradients
            return sums

        return tf.concat(outputs, axis=2), gradient

    return attended(values, keys, problem.content_query(), *positions)


def _zero_depending_on_all(tensors):
    """Returns a scalar zero with a data dependency on all of the tensors."""
    # It orders the blocks. Otherwise the scores of all blocks could be computed
    # first and be in memory together.
    zero = tf.zeros(())
    for tensor in tensors:
        zero += zero_depending_on(
            tf.cast(tf.reshape(tensor, [-1])[0], zero.dtype)
        )
    return zero


def _slice_operands(block, zero, values, keys, query, *positions):
    """Slices the values, keys, queries and position rows of a block."""
    # The queries depend on `zero`. If the weights are recomputed, so do all
    # slices: otherwise XLA would keep the slices of the forward pass.
    zero = tf.cast(zero, values.dtype)
    visible = [x[:, :, : block.num_keys] for x in (values, keys)]
    queries = [
        x[:, :, block.first : block.end] for x in (query, *positions[:1])
    ]
    nearest = [x[:, -block.num_distances - 1 :] for x in positions[1:]]
    if block.is_kept:
        return [*visible, *(x + zero for x in queries), *nearest]
    return _add_to_all(zero, *visible, *queries, *nearest)


@fused
def _add_to_all(zero, *tensors):
    return [x + zero for x in tensors]


def _scores(keys, query, *positions):
    """Computes scores `(N, B, t, s)` and, `r + 1` wide, scores by distance."""
    content = tf.matmul(query, keys, transpose_b=True)
    return [content, dot_product(*positions)] if positions else [content]


def _block_gradients(values, *operands, output, output_gradient, softmax):
    """Computes the gradients of a block's values and score operands."""
    kept, total, _, _, block = softmax
    with tf.GradientTape() as tape:
        tape.watch(operands)
        scores = _scores(*operands)
    weights, score_gradient = _softmax_gradient(
        [] if block.is_kept else scores,
        tf.matmul(output_gradient, values, transpose_b=True),
        output,
        output_gradient,
        *softmax,
    )
    if weights is None:
        weights = kept
    score_gradients = [
        score_gradient,
        _unshift(score_gradient, block.num_distances),
    ]
    return [
        tf.matmul(
            weights,
            _normalize(output_gradient, total, block.rate),
            transpose_a=True,
        ),
        *tape.gradient(scores, operands, score_gradients[: len(scores)]),
    ]


def _add_to(sums, block_gradients):
    """Adds the gradients of a block to the sums of the blocks before it."""
    # A later block may have more keys, appended at the end, and has larger
    # distances, at the start. Its queries follow the earlier blocks' queries.
    queries = slice(2, 4)
    joined = [
        tf.concat(pair, axis=2)
        for pair in zip(sums[queries], block_gradients[queries], strict=True)
    ]
    keys = map(_add_first, sums[:2], block_gradients[:2])
    rows = map(_add_last, sums[4:], block_gradients[4:])
    return [*keys, *joined, *rows]


@fused
def _add_first(fewer, more):
    """Adds `(N, B, s, H)` to the first keys of a longer tensor."""
    missing = more.shape[2] - fewer.shape[2]
    return more + tf.pad(fewer, [[0, 0], [0, 0], [0, missing], [0, 0]])


@fused
def _add_last(fewer, more):
    """Adds `(N, r + 1, H)` to the last rows of a longer tensor."""
    missing = more.shape[1] - fewer.shape[1]
    return more + tf.pad(fewer, [[0, 0], [missing, 0], [0, 0]])


@fused
def _weights(scores, extra_mask, seeds, block):
    """Computes `exp(score - max)` with dropout, what is kept, and the sum."""
    # The exponentials are kept, negative if dropped (`None` if they equal the
    # weights); with many keys only the max is kept.
    dtype = scores[0].dtype
    masked_scores = _mask_scores(scores, block.mask() & extra_mask, block)
    (exponentials,), max_score, total = exponentials_of_parts([masked_scores])
    undropped = block.undropped(seeds)
    weights = tf.cast(tf.where(undropped, exponentials, 0), dtype)
    if not block.is_kept:
        kept = max_score
    elif block.rate:
        signed = tf.where(undropped, exponentials, -exponentials)
        kept = tf.cast(signed, dtype)
    else:
        kept = None
    return weights, kept, total


@fused
def _normalize(weighted_sum, total, rate):
    """Divides by the sum of exponentials, and by `1 - rate` for dropout."""
    output = tf.cast(weighted_sum, tf.float32) / (total * (1 - rate))
    return tf.cast(output, weighted_sum.dtype)


@fused
def _softmax_gradient(
    scores,
    weight_gradient,
    output,
    output_gradient,
    kept,
    total,
    extra_mask,
    seeds,
    block,
):
    """Computes weights and score gradients: see `tiles.softmax_matmul`."""
    # The weights are not normalized, and `None` if they equal what was kept.
    dtype = output.dtype
    delta = softmax_delta(output, output_gradient)  # [N, B, t, 1]
    mask = block.mask() & extra_mask
    if block.is_kept:
        signed = tf.cast(kept, tf.float32)
        exponentials, undropped = tf.abs(signed), signed >= 0
    else:
        exponentials = tf.exp(_mask_scores(scores, mask, block) - kept)
        undropped = block.undropped(seeds)
    weights = None
    if block.rate or not block.is_kept:
        weights = tf.cast(tf.where(undropped, exponentials, 0), dtype)
    weight_gradient = tf.cast(weight_gradient, tf.float32) / (1 - block.rate)
    gradient = tf.where(undropped, weight_gradient, 0) - delta
    gradient *= exponentials / total
    # If all keys of a query are masked, its probabilities are not zero.
    return weights, tf.cast(tf.where(mask, gradient, 0), dtype)


def _mask_scores(scores, mask, block):
    """Returns the summed and masked scores `(N, B, t, s)`."""
    total = tf.cast(scores[0], tf.float32)
    if len(scores) > 1:
        total += tf.cast(shear(scores[1])[..., : block.num_keys], tf.float32)
    return tf.where(mask, total, MASKED_SCORE)


def _unshift(scores, num_distances):
    """Computes the gradient of `shear`, cut to the first keys."""
    heads, batch, length, num_keys = scores.shape
    # Instead of `tf.pad`, into which XLA would fuse recomputing the scores.
    if num_distances > num_keys:
        missing = (heads, batch, length, num_distances - num_keys)
        scores = tf.concat([scores, tf.zeros(missing, scores.dtype)], -1)
    flat = tf.reshape(scores, (heads, batch, length * num_distances))
    flat = tf.concat([tf.zeros((heads, batch, length), flat.dtype), flat], -1)
    return tf.reshape(flat, (heads, batch, length, num_distances + 1))
