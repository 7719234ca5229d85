"""Attention of all queries at once, for XLA to compile as a whole.

Keys lie in parts, memory and segment, that need not be joined; where memory is
a few segments long it is cut into tiles of one, see `_tiles_by_key`.

Letters: `B` batch, `T` segment, `M` memory, `S` = M + T keys, `N` heads, `H`
head size, `R` distances.
"""

import itertools

import tensorflow as tf
from keras import ops

from txl_keras.layers.compute.dropout import is_kept
from txl_keras.layers.compute.problem import CLOSED
from txl_keras.layers.compute.relative_shift import shift_to_keys
from txl_keras.layers.compute.softmax import exponentials_of_parts
from txl_keras.layers.compute.softmax import mean_weight_gradient
from txl_keras.layers.compute.softmax import zero_after

# Memory of more segments than that is shifted as a whole: what is compiled
# grows with the tiles.
_MAX_TILES = 5


def attend(problem):
    """Computes what `definition.attend` does, without the probabilities."""
    lengths = _tiles(problem)
    keys, values = zip(*_cut(problem.parts, lengths), strict=True)
    query = problem.content_query()
    scores = [tf.matmul(query, part, transpose_b=True) for part in keys]
    for more in (
        _position_scores(problem, lengths),
        _score_bias(problem, lengths),
    ):
        if more is not None:
            scores = [a + b for a, b in zip(scores, more, strict=True)]
    attended = softmax_product(
        scores,
        _masks(problem, lengths),
        values,
        _keep(problem, lengths),
        problem.rate,
    )
    return problem.for_output(attended)


def _tiles(problem):
    """The lengths of the parts that keys are cut into.

    Where they are integers and memory is no more than a few segments, all are
    T but the first, which has what is left.
    """
    lengths = problem.lengths
    if len(lengths) == 1 or problem.batch_first:
        return lengths
    num_memory, length = lengths
    if not problem.has_known_sizes or not num_memory or not length:
        return lengths
    full, rest = divmod(num_memory, length)
    tiles = [rest] * (rest > 0) + [length] * (full + 1)
    return tiles if len(tiles) <= _MAX_TILES else lengths


def _cut(parts, lengths):
    """Parts of keys and values, memory cut into tiles."""
    if len(parts) == len(lengths):
        return parts
    memory, segment = parts
    of_memory = (tf.split(x, lengths[:-1], axis=2) for x in memory)
    return [*zip(*of_memory, strict=True), segment]


def _ranges(lengths):
    ends = list(itertools.accumulate(lengths))
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _position_scores(problem, lengths):
    """Scores of positions, by key: one tensor like the scores a part."""
    positions = problem.positions
    if positions is None:
        return None
    query = problem.position_query()
    num_keys = problem.visible.num_keys
    num_rows = positions.rows[0].shape[1]
    if _are_tiles(problem, lengths) and num_rows == num_keys:
        return _tiles_by_key(positions, query, lengths)
    by_distance = positions.scores(query, *positions.rows)
    shifted = shift_to_keys(by_distance, num_keys, positions.nearest)
    return _by_slot(problem, _split(problem.like_keys(shifted), lengths))


def _score_bias(problem, lengths):
    if problem.score_bias is None:
        return None
    return _split(problem.like_keys(problem.score_bias), lengths)


def _split(scores, lengths):
    return [scores] if len(lengths) == 1 else tf.split(scores, lengths, axis=-1)


def _masks(problem, lengths):
    """Which keys may be seen: one boolean like the scores a part."""
    masks = [
        problem.like_keys(problem.visible.mask(*part)[None])
        for part in _ranges(lengths)
    ]
    return _by_slot(problem, masks)


def _by_slot(problem, parts):
    """Puts what is of memory, in the order of the text, by its slots."""
    if problem.order is None:
        return parts
    memory, *segment = parts
    shape = tf.shape(memory)
    batch = tf.shape(problem.order)[0]
    memory = tf.broadcast_to(memory, tf.concat([[batch], shape[1:]], axis=0))
    memory = tf.gather(memory, problem.order, axis=-1, batch_dims=1)
    return [memory, *segment]


def _keep(problem, lengths):
    """Function of the probabilities that dropout keeps: one boolean a part."""
    if problem.dropout is None:
        return None
    heads, _, length, _ = ops.shape(problem.query)
    sizes = [heads, length, sum(lengths)]

    def keep_part(part):
        places = [tf.range(heads), tf.range(length), tf.range(*part)]
        return is_kept(problem.rate, problem.seeds, sizes, places, batch_axis=1)

    return lambda: list(map(keep_part, _ranges(lengths)))


def _are_tiles(problem, lengths):
    are_known = all(isinstance(length, int) for length in lengths)
    return (
        are_known
        and max(lengths) == problem.visible.length
        and problem.visible.causal
        and not problem.batch_first
    )


def _tiles_by_key(positions, query, lengths):
    """Scores of distances, aligned with keys that are cut into tiles.

    Tiles of T queries and T keys need one reshape and no copy of scores: a
    tile of `T + 1` distances, from the farthest, is written row after row and
    read in rows of T. For T = 3, the numbers being distances, `a` to `c` the
    queries:

        a5 a4 a3 a2        a5 a4 a3
        b5 b4 b3 b2   ->   a2 b5 b4
        c5 c4 c3 c2        b3 b2 c5
                           c4 c3 c2

    What is right of the diagonal in rows 0 to T - 1, and on it, are the
    scores of the keys that query 0 sees at distances 5, 4, 3; what is left of
    it in rows 1 to T, those of the T keys after them, which it sees at 2, 1,
    0. So two tiles make the scores of one part of the keys, and a compiler
    selects between them where it adds them to something else.

    Args:
        positions: `Positions`, as many rows as keys.
        query: Tensor `(N, B, T, H)`.
        lengths: What `_tiles` returned, none longer than T.

    Returns:
        List of tensors `(N, B, T, length)`, by key. What stands at keys after
        a query is garbage.
    """
    length = lengths[-1]
    # Before the farthest key, distances that none has.
    missing = length * len(lengths) + 1 - sum(lengths)
    rows = [
        tf.pad(x, [[0, 0], [missing, 0]] + [[0, 0]] * (x.shape.rank - 2))
        for x in positions.rows
    ]
    ends = range(length + 1, length * len(lengths) + 2, length)
    windows = [[x[:, end - length - 1 : end] for x in rows] for end in ends]
    tiles = [_roll(positions.scores(query, *window)) for window in windows]
    parts = _join(*tiles)
    parts[0] = parts[0][..., length - lengths[0] :]
    return parts


@tf.custom_gradient
def _join(*tiles):
    """Parts of the keys from tiles `(N, B, T + 1, T)`, the farthest first.

    The gradient is written out, so that a tile's is one selection and not a
    sum of two parts that are selected, padded and written each.
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
        # As the right one of the part before it, and as the left one of its
        # own; the nearest is all there is of the last part, its diagonal too.
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


def _roll(scores):
    """`(N, B, T, T + 1)` as `(N, B, T + 1, T)`."""
    heads, _, length, num_distances = scores.shape
    return ops.reshape(scores, (heads, -1, num_distances, length))


def softmax_product(scores, masks, values, keep=None, rate=0.0):
    """`dropout(softmax(scores)) values`, over keys in several parts.

    Backward is written out, for the bytes that it moves: of all tensors as
    large as the scores only these, in their own dtype, are kept for it.
    Probabilities come back from them and from two numbers a query, its highest
    score and its sum of exponentials; what dropout kept is computed again
    from its seeds; and the sum over keys in the gradient of a softmax is, for
    a query, the product of its output and the gradient of that (Dao et al.,
    2022, appendix B.2).

    Args:
        scores: List of tensors `(N, B, T, S_i)` of one float dtype; here and
            below N and B may be the other way round.
        masks: List of booleans that broadcast to these, false where a key may
            not be seen.
        values: List of tensors `(N, B, S_i, H)` of the same dtype.
        keep: Optional function without arguments. Returns a list of booleans
            like `scores`, the same at every call: the probabilities that
            dropout keeps.
        rate: Float in `[0, 1)`, the fraction that it does not.

    Returns:
        Tensor `(N, B, T, H)` of the dtype of the values. A query that may see
        no key gets the mean of all.

    Example:

    >>> scores = [tf.zeros((2, 3, 4, 5)), tf.zeros((2, 3, 4, 1))]
    >>> values = [tf.zeros((2, 3, 5, 7)), tf.ones((2, 3, 1, 7))]
    >>> attended = softmax_product(scores, [True, True], values)
    >>> tuple(attended.shape), float(attended[0, 0, 0, 0])
    ((2, 3, 4, 7), 0.1666666716337204)
    """
    num_parts = len(scores)

    @tf.custom_gradient
    def attended(*tensors):
        output, *norms = _forward(*_halves(tensors), masks, keep, rate)

        def gradient(output_gradient):
            return _backward(
                *_halves(tensors),
                masks,
                keep,
                rate,
                output,
                *norms,
                output_gradient,
            )

        return output, gradient

    def _halves(tensors):
        return tensors[:num_parts], tensors[num_parts:]

    return attended(*scores, *values)


def _forward(scores, values, masks, keep, rate):
    """The output, the highest scores and sums of exponentials, `(N, B, T, 1)`.

    As one number, the logarithm of the sum, these two would lose it where a
    query may see no key.
    """
    scores = [_closed(*part) for part in zip(scores, masks, strict=True)]
    exponentials, highest, total = exponentials_of_parts(scores)
    # Divided at the end: N B T H numbers rather than N B T S.
    attended = tf.add_n(
        [
            tf.cast(tf.matmul(tf.cast(weights, part.dtype), part), tf.float32)
            for weights, part in zip(
                _kept(exponentials, keep), values, strict=True
            )
        ]
    )
    output = tf.cast(attended / (total * (1 - rate)), values[0].dtype)
    return output, highest, total


def _backward(
    scores, values, masks, keep, rate, output, highest, total, output_gradient
):
    """Gradients of the scores, then of the values."""
    dtype = output.dtype
    shift = mean_weight_gradient(output, output_gradient)  # [N, B, T, 1]
    scale = 1 / (1 - rate)
    # What follows cannot be computed before the gradient is there, or XLA would
    # make the probabilities of the backward pass beside those of the forward
    # pass, and keep them.
    after = zero_after(shift)
    # Divided inside of the exponential: as `exp(x) / total` XLA would find the
    # exponentials of the forward pass, and keep those.
    log_total = tf.math.log(total) + after
    probabilities = [
        tf.exp(_closed(*part) - highest - log_total)
        for part in zip(scores, masks, strict=True)
    ]
    weights = [part * scale for part in _kept(probabilities, keep)]
    value_gradients = [
        tf.matmul(tf.cast(part, dtype), output_gradient, transpose_a=True)
        for part in weights
    ]
    weight_gradients = [
        tf.cast(tf.matmul(output_gradient, part, transpose_b=True), tf.float32)
        for part in values
    ]
    score_gradients = [
        # A query that may see no key has probabilities of those it may not.
        tf.where(mask, part * (gradient * scale - shift), 0)
        for part, gradient, mask in zip(
            probabilities,
            _kept(weight_gradients, keep),
            masks,
            strict=True,
        )
    ]
    return *(tf.cast(part, dtype) for part in score_gradients), *value_gradients


def _closed(scores, mask):
    return tf.where(mask, tf.cast(scores, tf.float32), CLOSED)


def _kept(parts, keep):
    if keep is None:
        return parts
    return [
        tf.where(kept, part, 0)
        for part, kept in zip(parts, keep(), strict=True)
    ]
