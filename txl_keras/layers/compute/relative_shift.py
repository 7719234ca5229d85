"""Aligns scores by distance with scores by key.

Letters: `B` batch, `T` segment, `M` memory, `S` = M + T keys, `N` heads,
`R` distances.
"""

import tensorflow as tf
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
        num_keys: `S`, an integer or a scalar tensor.
        nearest: Integer or scalar tensor, the distance of the last column.

    Returns:
        Tensor of shape `(N, B, T, S)` by key.
    """
    *batch, num_distances = ops.shape(scores)
    # With the column that is lost in the shift: no pad is needed.
    missing = num_keys - nearest + 1 - num_distances
    # As integers where they are, so that shapes stay known.
    at_least = max if isinstance(missing, int) else tf.maximum
    # Not `ops.broadcast_to`, which takes no size that is a tensor.
    farthest = tf.broadcast_to(scores[..., :1], (*batch, at_least(missing, 0)))
    scores = scores[..., at_least(-missing, 0) :]
    shifted = _shear(ops.concatenate([farthest, scores], axis=-1))
    is_causal = isinstance(nearest, int) and nearest == 0
    return shifted if is_causal else shifted[..., :num_keys]


def _shear(padded):
    """`(B, N, T, 1 + R)` to `(B, N, T, R)`: row `i` moves by `T - 1 - i`."""
    _, heads, length, num_columns = ops.shape(padded)
    reshaped = ops.reshape(padded, (-1, heads, num_columns, length))
    return ops.reshape(reshaped[:, :, 1:], (-1, heads, length, num_columns - 1))
