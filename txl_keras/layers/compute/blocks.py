"""Causal attention, a block of queries after the other.

No tensor of all queries and all keys is ever made, and no key that the causal
mask shuts for a whole block is looked at. Nothing as large as the scores is
kept for the backward pass, which computes them again (Dao et al., 2022).

Letters: `B` batch, `T` segment, `M` memory, `S` = M + T keys, `N` heads, `H`
head size; `t` queries of a block, `s` the keys that its last one sees.
"""

import itertools
import typing

import tensorflow as tf

from txl_keras.layers.compute.dropout import is_kept
from txl_keras.layers.compute.problem import CLOSED
from txl_keras.layers.compute.softmax import exponentials_of_parts
from txl_keras.layers.compute.softmax import mean_weight_gradient
from txl_keras.layers.compute.softmax import zero_after
from txl_keras.layers.compute.target import fused

# Queries of a block. Fewer make products of matrices that are too flat, more
# take more memory: where a block would have more pairs of a query and a key
# than `_MAX_PAIRS`, it has fewer queries, down to half.
BLOCK_LENGTH = 256
_MAX_PAIRS = 2**19


class Block(typing.NamedTuple):
    """Some queries, and what is the same at every step.

    Attributes:
        first, end: Integers: queries `first` to `end - 1` of the segment.
        num_memory: Integer `M`.
        farthest: Optional integer, the distance beyond which keys are shut.
        rate: Float, the fraction of probabilities that dropout drops.
        sizes: Integers `N`, `T`, `S`.
    """

    first: int
    end: int
    num_memory: int
    farthest: int | None
    rate: float
    sizes: tuple

    @property
    def num_keys(self):
        """`s`"""
        return self.num_memory + self.end

    def sees(self):
        """Boolean `(t, s)`."""
        query = self.num_memory + tf.range(self.first, self.end)[:, None]
        distance = query - tf.range(self.num_keys)
        if self.farthest is None:
            return distance >= 0
        return (distance >= 0) & (distance <= self.farthest)

    def kept(self, parts, seeds):
        """What dropout keeps of `(N, B, t, s)`; the rest is 0."""
        if not self.rate:
            return parts
        places = [
            tf.range(self.sizes[0]),
            tf.range(self.first, self.end),
            tf.range(self.num_keys),
        ]
        keep = is_kept(self.rate, seeds, self.sizes, places, batch_axis=1)
        return tf.where(keep, parts, 0)


def supports(problem, target):
    """Whether it can be computed so."""
    return (
        target.is_cpu
        and problem.visible.causal
        and problem.has_known_sizes
        and problem.score_bias is None
        and problem.order is None
    )


def attend(problem):
    """Computes what `definition.attend` does, without the probabilities."""
    blocks = split_queries(problem)
    given = problem.visible.given(0, problem.visible.num_keys)
    masks = [_of_queries(given, block) for block in blocks]
    attended = _attend_to_past if problem.batch_first else _attend
    return problem.for_output(attended(problem, blocks, masks))


def split_queries(problem):
    """Blocks of a segment, as alike as can be.

    Args:
        problem: `Problem` of known sizes.

    Returns:
        List of `Block`.
    """
    visible = problem.visible
    length, num_keys = visible.length, visible.num_keys
    longest = max(BLOCK_LENGTH // 2, _MAX_PAIRS // num_keys)
    num_blocks = -(-length // min(BLOCK_LENGTH, longest))
    ends = [length * i // num_blocks for i in range(num_blocks + 1)]
    return [
        Block(
            first,
            end,
            visible.num_memory,
            visible.farthest,
            problem.rate,
            (problem.query.shape[0], length, num_keys),
        )
        for first, end in zip(ends[:-1], ends[1:], strict=True)
    ]


def _of_queries(mask, block):
    """Of a mask `(B, T, S)`, the part of a block: `(1, B, t, s)`."""
    if mask.shape[1] != 1:
        mask = mask[:, block.first : block.end]
    if mask.shape[2] != 1:
        mask = mask[..., : block.num_keys]
    return mask[None]


def _for_positions(problem, num_keys):
    """The function of positions, its queries and its rows, or none."""
    positions = problem.positions
    if positions is None:
        return None, (), []
    rows = [_rows(x, num_keys) for x in positions.rows]
    return positions.scores, (problem.position_query(),), rows


def _attend(problem, blocks, masks):
    """Attention with a gradient, `(N, B, T, H)`: its only derivative."""
    keys, values = (
        parts[0] if len(parts) == 1 else tf.concat(parts, axis=2)
        for parts in zip(*problem.parts, strict=True)
    )
    seeds = problem.seeds
    by_distance, position_query, rows = _for_positions(
        problem, problem.visible.num_keys
    )

    @tf.custom_gradient
    def attended(values, *tensors):
        outputs, norms = [], []
        for block, mask in zip(blocks, masks, strict=True):
            seen, *operands = _of_block(
                block, _zero_after_all(outputs[-1:]), values, *tensors
            )
            scores = _scores(by_distance, *operands)
            weights, highest, total = _weights(scores, mask, seeds, block)
            product = tf.matmul(weights, seen)
            outputs.append(_divided(product, total, block.rate))
            norms.append((highest, total))

        def gradient(output_gradient):
            sums = None
            for block, mask, output, norm in zip(
                blocks, masks, outputs, norms, strict=True
            ):
                operands = _of_block(
                    block, _zero_after_all(sums or ()), values, *tensors
                )
                of_block = _block_gradients(
                    by_distance,
                    *operands,
                    output=output,
                    output_gradient=output_gradient[
                        :, :, block.first : block.end
                    ],
                    softmax=(*norm, mask, seeds, block),
                )
                sums = of_block if sums is None else _add_to(sums, of_block)
            return sums

        return tf.concat(outputs, axis=2), gradient

    return attended(
        values, keys, problem.content_query(), *position_query, *rows
    )


def _attend_to_past(problem, blocks, masks):
    """Attention to keys in several tensors, for inference: `(B, N, T, H)`."""
    query, parts = problem.content_query(), problem.parts
    *memory, segment = parts
    by_distance, position_query, rows = _for_positions(
        problem, problem.visible.num_keys
    )
    outputs = []
    for block, mask in zip(blocks, masks, strict=True):
        seen = [*memory, [x[:, :, : block.end] for x in segment]]
        zero = tf.cast(_zero_after_all(outputs[-1:]), query.dtype)
        block_query, *block_positions = (
            x[:, :, block.first : block.end] + zero
            for x in (query, *position_query)
        )
        content = [
            tf.matmul(block_query, keys, transpose_b=True) for keys, _ in seen
        ]
        of_distance = []
        if by_distance is not None:
            nearest = [x[:, -block.num_keys - 1 :] for x in rows]
            of_distance = [by_distance(*block_positions, *nearest)]
        weights, total = _weights_of_parts(content, of_distance, mask, block)
        product = tf.add_n(
            [
                tf.matmul(part, values)
                for part, (_, values) in zip(weights, seen, strict=True)
            ]
        )
        outputs.append(_divided(product, total, 0.0))
    return tf.concat(outputs, axis=2)


def _rows(positions, num_keys):
    """`(N, R, ...)` as `(N, S + 1, ...)`.

    Before the farthest key comes a distance that none has: see `_by_key`.
    """
    positions = positions[:, -num_keys:]
    missing = num_keys + 1 - positions.shape[1]
    farthest = tf.repeat(positions[:, :1], missing, axis=1)
    return tf.concat([farthest, positions], axis=1)


def _zero_after_all(tensors):
    """`zero_after` all of these, a scalar.

    Blocks wait for each other: else the scores of all would be made first.
    """
    zero = tf.zeros(())
    for tensor in tensors:
        zero += zero_after(tf.cast(tf.reshape(tensor, [-1])[0], zero.dtype))
    return zero


@fused
def _of_block(block, zero, values, keys, query, *positions):
    """The values of a block, and what its scores are made of.

    All of it is made anew: XLA would keep what the forward pass has copied,
    for each block and layer, until the backward pass.
    """
    seen = [x[:, :, : block.num_keys] for x in (values, keys)]
    queries = [
        x[:, :, block.first : block.end] for x in (query, *positions[:1])
    ]
    nearest = [x[:, -block.num_keys - 1 :] for x in positions[1:]]
    zero = tf.cast(zero, values.dtype)
    return [x + zero for x in (*seen, *queries, *nearest)]


def _scores(by_distance, keys, query, *positions):
    """Scores `(N, B, t, s)`, and `(N, B, t, s + 1)` by distance or none."""
    content = tf.matmul(query, keys, transpose_b=True)
    return [content, by_distance(*positions)] if positions else [content]


def _block_gradients(
    by_distance, values, *operands, output, output_gradient, softmax
):
    """Gradients of the values and of the operands of a block's scores."""
    with tf.GradientTape() as tape:
        tape.watch(operands)
        scores = _scores(by_distance, *operands)
    weights, score_gradient = _softmax_gradient(
        scores,
        tf.matmul(output_gradient, values, transpose_b=True),
        output,
        output_gradient,
        *softmax,
    )
    score_gradients = [score_gradient, _by_distance(score_gradient)]
    return [
        tf.matmul(weights, output_gradient, transpose_a=True),
        *tape.gradient(scores, operands, score_gradients[: len(scores)]),
    ]


def _add_to(sums, of_block):
    """Adds the gradients of a block to those of the blocks before it.

    Of these the block sees all keys, and more after them; all distances, and
    farther ones before them; its queries come after theirs.
    """
    queries = slice(2, 4)
    joined = [
        tf.concat(pair, axis=2)
        for pair in zip(sums[queries], of_block[queries], strict=True)
    ]
    keys = map(_add_first, sums[:2], of_block[:2])
    rows = map(_add_last, sums[4:], of_block[4:])
    return [*keys, *joined, *rows]


@fused
def _add_first(fewer, more):
    """`(N, B, s, H)` to the first of more keys."""
    missing = more.shape[2] - fewer.shape[2]
    return more + tf.pad(fewer, [[0, 0], [0, 0], [0, missing], [0, 0]])


@fused
def _add_last(fewer, more):
    """`(N, s, ...)` to the last of more rows."""
    missing = more.shape[1] - fewer.shape[1]
    rest = [[0, 0]] * (more.shape.rank - 2)
    return more + tf.pad(fewer, [[0, 0], [missing, 0], *rest])


@fused
def _weights(scores, mask, seeds, block):
    """The exponentials that dropout keeps, and highest score and sum."""
    visible, _ = _visible(scores, mask, block)
    highest = tf.reduce_max(visible, axis=-1, keepdims=True)
    exponentials = tf.exp(visible - highest)
    total = tf.reduce_sum(exponentials, axis=-1, keepdims=True)
    kept = block.kept(exponentials, seeds)
    return tf.cast(kept, scores[0].dtype), highest, total


@fused
def _weights_of_parts(content, of_distance, mask, block):
    """Exponentials `(B, N, t, S_i)`, and their sums `(B, N, t, 1)`.

    Args:
        content: List of scores `(B, N, t, S_i)`.
        of_distance: List of scores `(N, B, t, s + 1)` by distance, or empty.
        mask: Boolean that broadcasts to `(1, B, t, s)`.
        block: `Block`.
    """
    sees = tf.transpose(block.sees() & mask, (1, 0, 2, 3))
    by_key = [tf.transpose(_by_key(x), (1, 0, 2, 3)) for x in of_distance]
    lengths = [part.shape[-1] for part in content]
    visible = []
    for end, part in zip(itertools.accumulate(lengths), content, strict=True):
        keys = slice(end - part.shape[-1], end)
        total = tf.cast(part, tf.float32)
        for scores in by_key:
            total += tf.cast(scores[..., keys], tf.float32)
        visible.append(tf.where(sees[..., keys], total, CLOSED))
    exponentials, _, total = exponentials_of_parts(visible)
    return [tf.cast(part, content[0].dtype) for part in exponentials], total


@fused
def _divided(product, total, rate):
    """The output of a block, from the products of weights and values."""
    output = tf.cast(product, tf.float32) / (total * (1 - rate))
    return tf.cast(output, product.dtype)


@fused
def _softmax_gradient(
    scores,
    weight_gradient,
    output,
    output_gradient,
    highest,
    total,
    mask,
    seeds,
    block,
):
    """Probabilities that dropout keeps, and the gradient of the scores.

    See `tiles.softmax_product`.
    """
    dtype = output.dtype
    shift = mean_weight_gradient(output, output_gradient)  # [N, B, t, 1]
    visible, sees = _visible(scores, mask, block)
    probabilities = tf.exp(visible - highest - tf.math.log(total))
    scale = 1 / (1 - block.rate)
    weights = block.kept(probabilities * scale, seeds)
    weight_gradient = tf.cast(weight_gradient, tf.float32)
    gradient = (
        block.kept(weight_gradient * scale, seeds) - shift
    ) * probabilities
    # A query that may see no key has probabilities of those it may not.
    gradient = tf.cast(tf.where(sees, gradient, 0), dtype)
    return tf.cast(weights, dtype), gradient


def _visible(scores, mask, block):
    """Scores `(N, B, t, s)` of keys that may be seen, and which these are."""
    total = tf.cast(scores[0], tf.float32)
    if len(scores) > 1:
        total += tf.cast(_by_key(scores[1]), tf.float32)
    sees = block.sees() & mask
    return tf.where(sees, total, CLOSED), sees


def _by_key(scores):
    """`(N, B, t, s + 1)` by distance as `(N, B, t, s)` by key.

    Written row after row, the scores of a query lie where those of its keys
    should, if the first t numbers are left out. For t = 3, s = 5, the numbers
    being distances, `-` the one that none has, `x` keys after the query:

        - 4 3 2 1 0
        - 4 3 2 1 0   ->   (- 4 3) 2 1 0 - 4   ->   2 1 0 x x
        - 4 3 2 1 0        3 2 1 0 - 4 3 2 1 0      3 2 1 0 x
                                                    4 3 2 1 0
    """
    heads, batch, length, columns = scores.shape
    flat = tf.reshape(scores, (heads, batch, length * columns))
    return tf.reshape(flat[:, :, length:], (heads, batch, length, columns - 1))


def _by_distance(scores):
    """The gradient of `_by_key`."""
    heads, batch, length, num_keys = scores.shape
    flat = tf.reshape(scores, (heads, batch, length * num_keys))
    # A copy: XLA would compute the scores a second time as it pads them.
    flat = tf.concat([tf.zeros((heads, batch, length), flat.dtype), flat], -1)
    return tf.reshape(flat, (heads, batch, length, num_keys + 1))
