"""Causal attention, a block of queries after the other.

No tensor of all queries and all keys is ever made, and no key that the causal
mask shuts for a whole block is looked at. Nothing as large as the scores is
kept for the backward pass, which computes them again (Dao et al., 2022).

Letters: `B` batch, `T` segment, `M` memory, `S` = M + T keys, `N` heads, `H`
head size; `t` queries of a block, `s` the keys that its last one sees.
"""

import typing

import tensorflow as tf

from txl_keras.layers.fusing import fused
from txl_keras.layers.row_dropout import is_kept
from txl_keras.layers.softmax_attention import CLOSED
from txl_keras.layers.softmax_attention import mean_weight_gradient

# Fewer make products of matrices that are too flat, more take more memory.
BLOCK_LENGTH = 256


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


def split_queries(length, **settings):
    """Blocks of a segment, as alike as can be.

    Args:
        length: Integer `T`.
        **settings: The other attributes of `Block`.

    Returns:
        List of `Block`.
    """
    num_blocks = -(-length // BLOCK_LENGTH)
    ends = [length * i // num_blocks for i in range(num_blocks + 1)]
    return [
        Block(first, end, **settings)
        for first, end in zip(ends[:-1], ends[1:], strict=True)
    ]


def attend_in_blocks(
    blocks, query, keys, values, by_distance, positions, masks, seeds
):
    """`dropout(softmax(scores)) values`, the same numbers as of `attend`.

    The score of a key is the product with its query, and what `by_distance`
    says of their distance.

    Args:
        blocks: List of `Block`.
        query: Tensor `(N, B, T, H)` of scaled queries.
        keys, values: Tensors `(N, B, S, H)`.
        by_distance: Function of queries and of keys of distances, which are
            `positions`. Returns scores `(N, B, t, R)`. Or `None`.
        positions: Tuple of tensors for it: queries `(N, B, T, H)`, and some
            `(N, S, ...)` with a row a distance, the farthest first. Empty
            where there is no `by_distance`.
        masks: List of booleans that broadcast to `(N, B, t, s)`, one a block:
            what a query may see, of the keys that are not after it.
        seeds: uint32 `(B,)`, of dropout; or `None`.

    Returns:
        Tensor `(N, B, T, H)` of the dtype of the values.
    """

    @tf.custom_gradient
    def attended(values, *tensors):
        outputs, norms = [], []
        for block, mask in zip(blocks, masks, strict=True):
            # One after the other: TensorFlow would make the scores of all
            # blocks first.
            with tf.control_dependencies(outputs[-1:]):
                scores = _scores(by_distance, *_of_block(block, *tensors))
                weights, highest, total = _weights(scores, mask, seeds, block)
                product = tf.matmul(weights, values[:, :, : block.num_keys])
                outputs.append(_divided(product, total, block.rate))
            norms.append((highest, total))

        def gradient(output_gradient):
            of_blocks = []
            for block, mask, output, norm in zip(
                blocks, masks, outputs, norms, strict=True
            ):
                done = [x for before in of_blocks[-1:] for x in before]
                with tf.control_dependencies(done):
                    gradients = _block_gradients(
                        by_distance,
                        values[:, :, : block.num_keys],
                        _of_block(block, *tensors),
                        output,
                        output_gradient[:, :, block.first : block.end],
                        (*norm, mask, seeds, block),
                    )
                of_blocks.append(gradients)
            return _joined(of_blocks)

        return tf.concat(outputs, axis=2), gradient

    # Before the farthest key, a distance that none has: see `_by_key`.
    rows = [
        tf.pad(x, [[0, 0], [1, 0]] + [[0, 0]] * (x.shape.rank - 2))
        for x in positions[1:]
    ]
    return attended(values, keys, query, *positions[:1], *rows)


def _of_block(block, keys, query, *positions):
    """What the scores of a block are made of."""
    queries = [
        x[:, :, block.first : block.end] for x in (query, *positions[:1])
    ]
    nearest = [x[:, -block.num_keys - 1 :] for x in positions[1:]]
    return keys[:, :, : block.num_keys], *queries, *nearest


def _scores(by_distance, keys, query, *positions):
    """Scores `(N, B, t, s)`, and `(N, B, t, s + 1)` by distance or none."""
    content = tf.matmul(query, keys, transpose_b=True)
    return [content, by_distance(*positions)] if positions else [content]


def _block_gradients(
    by_distance, values, operands, output, output_gradient, softmax
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
    return (
        tf.matmul(weights, output_gradient, transpose_a=True),
        *tape.gradient(scores, operands, score_gradients[: len(scores)]),
    )


def _joined(of_blocks):
    """Gradients of whole tensors from those of the parts that blocks use."""

    def padded(parts, axis, at_end):
        longest = max(part.shape[axis] for part in parts)
        paddings = [[[0, 0]] * part.shape.rank for part in parts]
        for part, padding in zip(parts, paddings, strict=True):
            missing = longest - part.shape[axis]
            padding[axis] = [0, missing] if at_end else [missing, 0]
        return tf.add_n(list(map(tf.pad, parts, paddings)))

    values, keys, query, *position = zip(*of_blocks, strict=True)
    joined = [padded(values, 2, True), padded(keys, 2, True)]
    joined.append(tf.concat(query, axis=2))
    if position:
        joined.append(tf.concat(position[0], axis=2))
    return *joined, *(padded(rows, 1, False) for rows in position[1:])


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

    See `softmax_attention.attend`.
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
