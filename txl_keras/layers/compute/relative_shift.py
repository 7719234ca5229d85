"""The relative shift, appendix B of the paper.

Letters: `B` batch, `T` segment, `M` memory, `S` = M + T keys, `N` heads,
`R` distances.
"""

import tensorflow as tf
from keras import ops

from txl_keras.types import Tensor


def relative_shift(scores: Tensor) -> Tensor:
    """Shifts attention scores from distances to keys.

    The trick of appendix B in Dai et al., 2019. Column `r` of the input is
    the distance `S - 1 - r`. Query `i` is at position `M + i`, so the score of
    key `j` is in column `j + T - 1 - i`. Padding on the left and two reshapes
    shift row `i` by `T - 1 - i` columns without any arithmetic. For T = 3 and
    S = 5, where the numbers are distances:

        4 3 2 1 0        2 1 0 x x
        4 3 2 1 0   ->   3 2 1 0 x
        4 3 2 1 0        4 3 2 1 0

    `x` marks a key after the query. Its value is arbitrary, perhaps zero, and
    must be masked.

    Args:
        scores: Tensor of shape `(B, N, T, S)`, by distance.

    Returns:
        Tensor of shape `(B, N, T, S)`, by key.

    Example:

    >>> scores = tf.constant([[[[4, 3, 2, 1, 0]] * 3]])  # (1, 1, 3, 5)
    >>> shifted = relative_shift(scores)
    >>> shifted[0, 0, 0, :3].numpy().tolist()
    [2, 1, 0]
    """
    return shear(ops.pad(scores, [[0, 0], [0, 0], [0, 0], [1, 0]]))


def shift_to_keys(scores, num_keys, nearest=0):
    """Shifts `(N, B, T, R)` by distance to `(N, B, T, S)` by key.

    Unlike in `relative_shift`, distances may be more or fewer than keys. Keys
    beyond the first distance get its score. If keys after the query are
    visible, the last distance `nearest` is negative. For T = 3, S = 5 and
    `nearest=-2` (column 0 is the padding, and is the score of no key):

        5 4 3 2 1 0 -1 -2        2 1 0 -1 -2
        5 4 3 2 1 0 -1 -2   ->   3 2 1  0 -1
        5 4 3 2 1 0 -1 -2        4 3 2  1  0
    """
    *batch, num_distances = ops.shape(scores)
    # Includes the padding column, so that no separate pad is needed.
    missing = num_keys - nearest + 1 - num_distances
    # Python's `max` of integers keeps shapes static.
    at_least = max if isinstance(missing, int) else tf.maximum
    # Not `ops.broadcast_to`, which does not accept a tensor as a size.
    repeated = tf.broadcast_to(scores[..., :1], (*batch, at_least(missing, 0)))
    scores = scores[..., at_least(-missing, 0) :]
    shifted = shear(ops.concatenate([repeated, scores], axis=-1))
    is_causal = isinstance(nearest, int) and nearest == 0
    return shifted if is_causal else shifted[..., :num_keys]


def shear(padded):
    """Shifts row `i` of `(B, N, T, 1 + R)` left by `T - 1 - i`."""
    _, heads, length, num_columns = ops.shape(padded)
    reshaped = ops.reshape(padded, (-1, heads, num_columns, length))
    return ops.reshape(reshaped[:, :, 1:], (-1, heads, length, num_columns - 1))
