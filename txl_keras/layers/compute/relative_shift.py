"""Aligns scores by distance with scores by key.

Letters: `B` batch, `T` segment, `M` memory, `S` = M + T keys, `N` heads,
`R` distances.
"""

from keras import ops


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


def shift_to_keys(scores, num_keys, nearest=0):
    """Shifts as `relative_shift`, scores of more or fewer distances than keys.

    Where a query also sees the keys after it, distances go on below 0. For T =
    3, S = 5, the numbers being distances, down to `nearest=-2`; column 0
    belongs to no key, and stands where `relative_shift` pads:

        5 4 3 2 1 0 -1 -2        2 1 0 -1 -2
        5 4 3 2 1 0 -1 -2   ->   3 2 1  0 -1
        5 4 3 2 1 0 -1 -2        4 3 2  1  0

    Args:
        scores: Tensor of shape `(N, B, T, R)` by distance. Keys farther than
            the first of them count as it.
        num_keys: `S`.
        nearest: Integer, the distance of the last column.

    Returns:
        Tensor of shape `(N, B, T, S)` by key.
    """
    num_distances = scores.shape[-1]
    # With the column that is lost in the shift: no pad is needed.
    num_columns = num_keys - nearest + 1
    farthest = ops.broadcast_to(
        scores[..., :1],
        (
            *ops.shape(scores)[:-1],
            ops.maximum(num_columns - num_distances, 0),
        ),
    )
    scores = scores[..., ops.maximum(num_distances - num_columns, 0) :]
    shifted = _shear(ops.concatenate([farthest, scores], axis=-1))
    return shifted[..., :num_keys] if nearest else shifted


def _shear(padded):
    """`(B, N, T, 1 + R)` to `(B, N, T, R)`: row `i` moves by `T - 1 - i`."""
    _, heads, length, num_columns = ops.shape(padded)
    reshaped = ops.reshape(padded, (-1, heads, num_columns, length))
    return ops.reshape(reshaped[:, :, 1:], (-1, heads, length, num_columns - 1))
