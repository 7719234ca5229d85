"""Attention of all queries at once, which XLA compiles as a whole.

Memory and segment stay separate tensors, called parts, so that they need not
be concatenated. If memory is a few segments long, it is cut into tiles of one
segment each, which makes the relative shift cheaper: see `_tiles_by_key`.
"""

import functools
import itertools

from keras import ops

from txl_keras.backend import tf
from txl_keras.layers.compute.definition import shear
from txl_keras.layers.compute.dropout import keep_pairs
from txl_keras.layers.compute.problem import MASKED_SCORE
from txl_keras.layers.compute.problem import dot_product

# With more tiles than this, memory is shifted as a whole, because the compiled
# program grows with the number of tiles.
_MAX_TILES = 5


def attend(problem):
    """Computes attention `(B, T, N, H)`, without returning probabilities."""
    lengths = _tile_lengths(problem)
    keys, values = zip(*_cut(problem.parts, lengths), strict=True)
    query = problem.content_query()
    scores = [tf.matmul(query, part, transpose_b=True) for part in keys]
    extras = []
    if problem.positions is not None:
        extras.append(_position_scores(problem, lengths))
    if problem.score_bias is not None:
        extras.append(_by_part(problem, problem.score_bias, lengths))
    for extra in extras:
        scores = [a + b for a, b in zip(scores, extra, strict=True)]
    attended = softmax_matmul(
        scores,
        _masks(problem, lengths),
        values,
        _dropout_masks(problem, lengths),
        problem.rate,
    )
    return problem.for_output(attended)


def _tile_lengths(problem):
    """Returns the lengths of the parts that keys are cut into.

    With tiles, all lengths are T, except that the first has the remainder.
    """
    lengths = problem.lengths
    if len(lengths) == 1 or problem.batch_first:
        return lengths
    num_memory, length = lengths
    if not problem.has_static_sizes or not num_memory or not length:
        return lengths
    full, rest = divmod(num_memory, length)
    tiles = [rest] * (rest > 0) + [length] * (full + 1)
    return tiles if len(tiles) <= _MAX_TILES else lengths


def _cut(parts, lengths):
    """Returns keys and values with memory cut into tiles."""
    if len(parts) == len(lengths):
        return parts
    memory, segment = parts
    memory_tiles = (tf.split(x, lengths[:-1], axis=2) for x in memory)
    return [*zip(*memory_tiles, strict=True), segment]


def _ranges(lengths):
    ends = list(itertools.accumulate(lengths))
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _position_scores(problem, lengths):
    """Computes the position scores by key, one tensor per part."""
    query, rows = problem.position_query(), problem.positions.rows
    num_keys = problem.visible.num_keys
    if _are_tiles(problem, lengths) and rows.shape[1] == num_keys:
        return _tiles_by_key(query, rows, lengths)
    by_distance = dot_product(query, rows_to_shear(rows, problem.visible))
    # With negative distances, the last columns are keys after the segment.
    shifted = shear(by_distance)[..., :num_keys]
    return _by_part(problem, shifted, lengths)


def _by_part(problem, scores, lengths):
    """Splits scores `(N, B, T, S)` into scores per part, in its layout."""
    parts = [problem.in_key_layout(scores)]
    if len(lengths) > 1:
        parts = tf.split(*parts, lengths, axis=-1)
    return _by_slot(problem, parts)


def _masks(problem, lengths):
    """Returns the masks, one boolean per part, shaped like its scores."""
    masks = [
        problem.in_key_layout(problem.visible.mask(*part)[None])
        for part in _ranges(lengths)
    ]
    return _by_slot(problem, masks)


def _by_slot(problem, parts):
    """Reorders the memory part from text order to the slots of the ring."""
    if problem.order is None:
        return parts
    memory, *segment = parts
    shape = tf.shape(memory)
    batch = tf.shape(problem.order)[0]
    memory = tf.broadcast_to(memory, tf.concat([[batch], shape[1:]], axis=0))
    memory = tf.gather(memory, problem.order, axis=-1, batch_dims=1)
    return [memory, *segment]


def _dropout_masks(problem, lengths):
    """Returns a function that makes the dropout masks, one per part."""
    if not problem.rate:
        return None
    heads, _, length, _ = ops.shape(problem.query)
    sizes = heads, length, sum(lengths)
    return lambda: [
        keep_pairs(problem.rate, problem.seeds, sizes, [length], part)
        for part in _ranges(lengths)
    ]


def _are_tiles(problem, lengths):
    are_static = all(isinstance(length, int) for length in lengths)
    return (
        are_static
        and max(lengths) == problem.visible.length
        and problem.visible.look_ahead == 0
        and not problem.batch_first
    )


def _tiles_by_key(query, rows, lengths):
    """Computes position scores by key, for keys that are cut into tiles.

    This relative shift is one reshape and does not copy scores. A tile has T
    queries and `T + 1` distances, the largest first. Its row-major data is
    read in rows of T. For T = 3, where `a` to `c` are queries and numbers are
    distances:

        a5 a4 a3 a2        a5 a4 a3
        b5 b4 b3 b2   ->   a2 b5 b4
        c5 c4 c3 c2        b3 b2 c5
                           c4 c3 c2

    Rows 0 to T - 1, on and right of the diagonal, are scores of the keys at
    distances 5, 4, 3 from query 0. Rows 1 to T, left of the diagonal, are
    scores of the next T keys, at distances 2, 1, 0 from query 0. So the scores
    of each part of the keys come from two tiles. XLA fuses the selection
    between them with the addition to the content scores.

    There are as many rows as keys. Returns a list of tensors
    `(N, B, T, length)`; scores of keys after a query are arbitrary.
    """
    length = lengths[-1]
    # Pads with distances beyond the farthest key, to fill all tiles.
    missing = length * len(lengths) + 1 - sum(lengths)
    rows = tf.pad(rows, [[0, 0], [missing, 0], [0, 0]])
    shape = *ops.shape(query)[:2], length + 1, length
    tiles = [
        ops.reshape(
            dot_product(query, rows[:, i * length : (i + 1) * length + 1]),
            shape,
        )
        for i in range(len(lengths))
    ]
    parts = tf.custom_gradient(_join)(*tiles)
    parts[0] = parts[0][..., length - lengths[0] :]
    return parts


def _join(*tiles):
    """Joins tiles `(N, B, T + 1, T)`, the farthest first, to scores by key.

    Also returns their custom gradient, which is one selection per tile.
    Autodiff would select, pad and write two parts, and then add them.
    """
    *lefts, nearest = tiles
    length = nearest.shape[-1]
    column = tf.range(length)
    upper = column >= tf.range(length)[:, None]
    parts = [
        tf.where(upper, right[:, :, :-1], left[:, :, 1:])
        for left, right in zip(lefts, tiles[1:], strict=True)
    ]
    parts.append(nearest[:, :, 1:])

    def gradient(*part_gradients):
        row = tf.range(length + 1)[:, None]
        # Each tile is the right tile of the part before it and the left tile of
        # its own part. The last part is only a left tile, with its diagonal.
        rights = [
            tf.zeros((), nearest.dtype),
            *(_pad_rows(part, 0, 1) for part in part_gradients[:-1]),
        ]
        lowers = [column < row - 1] * len(lefts) + [column < row]
        return [
            tf.where(column >= row, right, tf.where(lower, left, 0))
            for right, lower, left in zip(
                rights,
                lowers,
                (_pad_rows(part, 1, 0) for part in part_gradients),
                strict=True,
            )
        ]

    return parts, gradient


def _pad_rows(scores, before, after):
    return tf.pad(scores, [[0, 0], [0, 0], [before, after], [0, 0]])


def softmax_matmul(scores, masks, values, dropout_masks, rate):
    """Computes `dropout(softmax(scores)) values`, over keys in several parts.

    There is one tensor per part: scores `(N, B, T, S_i)`, masks that broadcast
    to them, and values `(N, B, S_i, H)`. N and B may be swapped. The gradient
    is computed as in FlashAttention (Dao et al., 2022, appendix B.2):

        P = softmax(scores), W = dropout(P), O = W V
        dV = W^T dO
        dscores = P * (dropout(dO V^T) - delta), delta = sum_H(dO * O)

    The custom gradient moves fewer bytes. The scores, in their own dtype, are
    the only tensors of their size that are kept for it. `P` is recomputed from
    the scores with the max and the sum of exponentials of each query, and
    `dropout_masks()` recomputes the dropout masks from their seeds.
    """
    num_parts = len(scores)

    @tf.custom_gradient
    def attended(*tensors):
        scores, values = tensors[:num_parts], tensors[num_parts:]
        dtype = values[0].dtype
        # Max and total are not combined to a log-sum-exp. If all keys of a
        # query are masked, its max is hugely negative, and the logarithm would
        # be lost.
        exponentials, max_score, total = exponentials_of_parts(
            list(map(_masked, scores, masks))
        )
        # Dividing the output takes N B T H divisions, the weights N B T S. But
        # a sum of weights that are not divided may overflow.
        divisor = total * (1 - rate)
        if dtype == tf.float16:
            exponentials = [part / divisor for part in exponentials]
            divisor = 1.0
        weighted_sum = tf.add_n(
            [
                tf.cast(tf.matmul(tf.cast(weights, dtype), part), tf.float32)
                for weights, part in zip(
                    _drop(exponentials, dropout_masks), values, strict=True
                )
            ]
        )
        output = tf.cast(weighted_sum / divisor, dtype)

        def gradient(output_gradient):
            delta = softmax_delta(output, output_gradient)  # [N, B, T, 1]
            scale = 1 / (1 - rate)
            # A data dependency on the incoming gradient. Without it XLA would
            # compute these probabilities during the forward pass and store
            # them.
            zero = zero_depending_on(delta)
            # The division is inside the exponential. With `exp(x) / total`, XLA
            # would recognize the exponentials of the forward pass and store
            # them.
            log_total = tf.math.log(total) + zero
            probabilities = [
                tf.exp(_masked(*part) - max_score - log_total)
                for part in zip(scores, masks, strict=True)
            ]
            value_gradients = [
                tf.matmul(
                    tf.cast(part * scale, dtype),
                    output_gradient,
                    transpose_a=True,
                )
                for part in _drop(probabilities, dropout_masks)
            ]
            weight_gradients = [
                tf.cast(
                    tf.matmul(output_gradient, part, transpose_b=True),
                    tf.float32,
                )
                for part in values
            ]
            score_gradients = [
                # If all keys of a query are masked, its probabilities are not
                # zero.
                tf.where(mask, part * (of_weight * scale - delta), 0)
                for part, of_weight, mask in zip(
                    probabilities,
                    _drop(weight_gradients, dropout_masks),
                    masks,
                    strict=True,
                )
            ]
            return (
                *(tf.cast(part, dtype) for part in score_gradients),
                *value_gradients,
            )

        return output, gradient

    return attended(*scores, *values)


def _masked(scores, mask):
    return tf.where(mask, tf.cast(scores, tf.float32), MASKED_SCORE)


def _drop(parts, dropout_masks):
    if dropout_masks is None:
        return parts
    return [
        tf.where(kept, part, 0)
        for part, kept in zip(parts, dropout_masks(), strict=True)
    ]


def rows_to_shear(rows, visible):
    """Returns a row for `shear`'s padding, and one per distance, `(N, R, H)`.

    Keys beyond the first distance get its row. If keys after the query are
    visible, the last distance, `visible.nearest`, is negative. For T = 3, S = 5
    and `nearest=-2` the scores by distance are sheared to scores by key (column
    0 is padding and belongs to no key):

        5 4 3 2 1 0 -1 -2        2 1 0 -1 -2
        5 4 3 2 1 0 -1 -2   ->   3 2 1  0 -1
        5 4 3 2 1 0 -1 -2        4 3 2  1  0
    """
    # The rows are padded, because scores would take longer to copy.
    missing = visible.num_keys - visible.nearest + 1 - ops.shape(rows)[1]
    # Python's `max` of integers keeps shapes static.
    at_least = max if isinstance(missing, int) else tf.maximum
    repeated = tf.tile(rows[:, :1], [1, at_least(missing, 0), 1])
    return tf.concat([repeated, rows[:, at_least(-missing, 0) :]], axis=1)


def exponentials_of_parts(scores):
    """Computes the terms of one softmax over several parts of the keys.

    From a list of float32 scores `(..., S_i)` returns the list of
    `exp(scores - max)`, and their max and sum over all parts, `(..., 1)`.
    """
    max_score = functools.reduce(
        tf.maximum,
        [tf.reduce_max(part, axis=-1, keepdims=True) for part in scores],
    )
    exponentials = [tf.exp(part - max_score) for part in scores]
    total = tf.add_n(
        [tf.reduce_sum(part, axis=-1, keepdims=True) for part in exponentials]
    )
    return exponentials, max_score, total


def softmax_delta(output, output_gradient):
    """Computes `delta` of FlashAttention: `sum_H(output * output_gradient)`.

    It equals the sum over keys of weight times weight gradient, which the
    gradient of a softmax subtracts. Shapes: `(..., T, H)` to `(..., T, 1)`.
    """
    product = tf.cast(output_gradient, tf.float32) * tf.cast(output, tf.float32)
    return tf.reduce_sum(product, axis=-1, keepdims=True)


def zero_depending_on(x):
    """Returns zeros with a data dependency on the float32 tensor `x`.

    XLA ignores control dependencies, but an op that adds these zeros has to
    wait for `x`. They are NaN where `x` is, so XLA cannot fold them.
    """
    return tf.where(tf.math.is_nan(x), x, 0.0)
