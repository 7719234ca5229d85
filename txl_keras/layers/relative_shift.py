"""Aligns scores by distance with scores by key.

Letters: `B` batch, `T` segment, `M` memory, `S` = M + T keys, `N` heads,
`R` distances.
"""

import tensorflow as tf
from keras import ops

# Memory of more segments than that is shifted as a whole: what is compiled
# grows with the tiles.
_MAX_TILES = 5


def relative_shift(scores):
    """Aligns scores by distance with scores by key (appendix B).

    Column `r` of the input is the distance `S - 1 - r`; query `i` stands at
    `M + i`, so its key `j` is found in column `j + T - 1 - i`. A pad on the
    left and two reshapes move every row by its own amount, at no arithmetic.
    For T = 3, S = 5, the numbers being distances:

        4 3 2 1 0        2 1 0 x x
        4 3 2 1 0   ->   3 2 1 0 x
        4 3 2 1 0        4 3 2 1 0

    `x` is a key after the query: what stands there is garbage, not zero, and
    must be masked.

    Args:
        scores: Tensor of shape `(B, N, T, S)` by distance.

    Returns:
        Tensor of shape `(B, N, T, S)` by key.
    """
    return _shear(ops.pad(scores, [[0, 0], [0, 0], [0, 0], [1, 0]]))


def bidirectional_shift(scores):
    """`relative_shift` where a query also sees the keys after it.

    Column `r` of the input is the distance `S - r`, down to `1 - T`. Column 0
    belongs to no key; it stands where `relative_shift` pads. For T = 3, S = 5,
    the numbers being distances:

        5 4 3 2 1 0 -1 -2        2 1 0 -1 -2
        5 4 3 2 1 0 -1 -2   ->   3 2 1  0 -1
        5 4 3 2 1 0 -1 -2        4 3 2  1  0

    Args:
        scores: Tensor of shape `(N, B, T, S + T)` by distance.

    Returns:
        Tensor of shape `(N, B, T, S)` by key; none of it is garbage.
    """
    _, _, length, num_columns = ops.shape(scores)
    return _shear(scores)[..., : num_columns - length]


def _shear(padded):
    """`(B, N, T, 1 + R)` to `(B, N, T, R)`: row `i` moves by `T - 1 - i`."""
    _, heads, length, num_columns = ops.shape(padded)
    reshaped = ops.reshape(padded, (-1, heads, num_columns, length))
    return ops.reshape(reshaped[:, :, 1:], (-1, heads, length, num_columns - 1))


def shift_nearest(scores, num_keys):
    """`relative_shift` of scores of more or fewer distances than keys.

    Args:
        scores: Tensor of shape `(N, B, T, R)` by distance. Keys farther than
            the first of them count as it.
        num_keys: `S`.

    Returns:
        Tensor of shape `(B, N, T, S)` by key.
    """
    num_distances = scores.shape[-1]
    # With the column that is lost in the shift: no pad is needed.
    num_columns = num_keys + 1
    farthest = ops.broadcast_to(
        scores[..., :1],
        (
            *ops.shape(scores)[:-1],
            ops.maximum(num_columns - num_distances, 0),
        ),
    )
    nearest = scores[..., ops.maximum(num_distances - num_columns, 0) :]
    sheared = _shear(ops.concatenate([farthest, nearest], axis=-1))
    return ops.swapaxes(sheared, 0, 1)


def part_lengths(num_memory, length):
    """The parts that keys are cut into: memory, or tiles of it, and segment.

    Args:
        num_memory: `M`, an integer or a scalar tensor.
        length: `T`, likewise.

    Returns:
        List of lengths whose sum is S, the last of them T. Where they are
        integers and memory is no more than a few segments, all are T but the
        first, which has what is left: see `scores_by_key`.
    """
    if isinstance(num_memory, int) and num_memory == 0:
        return [length]
    if isinstance(num_memory, int) and isinstance(length, int) and length:
        full, rest = divmod(num_memory, length)
        lengths = [rest] * (rest > 0) + [length] * (full + 1)
        if len(lengths) <= _MAX_TILES:
            return lengths
    return [num_memory, length]


def scores_by_key(by_distance, positions, lengths):
    """Scores of distances, aligned with keys that are cut into parts.

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
        by_distance: Function of the positions of some distances. Returns
            scores `(N, B, T, R)`.
        positions: Tuple of tensors `(N, S, ...)`, the farthest first, what
            `by_distance` takes all or some of.
        lengths: What `part_lengths` returned.

    Returns:
        List of tensors `(N, B, T, length)`, by key. What stands at keys after
        a query is garbage.
    """
    length = lengths[-1]
    if len(lengths) > 1 and not _are_tiles(lengths):
        # Of distances without a batch axis: the heads are in its place.
        shifted = relative_shift(by_distance(*positions))
        return [shifted[..., : lengths[0]], shifted[..., lengths[0] :]]
    # Before the farthest key, distances that none has.
    missing = length * len(lengths) + 1 - sum(lengths)
    positions = [
        tf.pad(x, [[0, 0], [missing, 0]] + [[0, 0]] * (x.shape.rank - 2))
        for x in positions
    ]
    tiles = [
        _roll(by_distance(*(x[:, end - length - 1 : end] for x in positions)))
        for end in range(length + 1, length * len(lengths) + 2, length)
    ]
    parts = _join(*tiles)
    parts[0] = parts[0][..., length - lengths[0] :]
    return parts


def scores_both_ways(by_distance, positions, lengths):
    """`scores_by_key` where a query also sees the keys after it.

    Args:
        by_distance: As there.
        positions: Tuple of tensors `(N, S + T, ...)`: see
            `bidirectional_shift`.
        lengths: Those of the parts.

    Returns:
        List of tensors `(N, B, T, length)`, by key.
    """
    shifted = bidirectional_shift(by_distance(*positions))
    return tf.split(shifted, lengths, axis=-1)


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


def _are_tiles(lengths):
    are_known = all(isinstance(length, int) for length in lengths)
    return are_known and max(lengths) == lengths[-1]


def _roll(scores):
    """`(N, B, T, T + 1)` as `(N, B, T + 1, T)`."""
    heads, _, length, num_distances = scores.shape
    return ops.reshape(scores, (heads, -1, num_distances, length))
