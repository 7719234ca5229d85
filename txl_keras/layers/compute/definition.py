"""Reference implementation of attention, as the paper defines it.

Section 3.3 of [Dai et al., 2019](https://arxiv.org/abs/1901.02860) scores
query `i` and key `j` by

    A[i,j] = q_i . k_j  +  q_i . r_{i-j}  +  u . k_j  +  v . r_{i-j}
               (a)            (b)             (c)           (d)

and attends by `softmax(A / sqrt(H)) V`. The scores of distances are shifted to
keys as in appendix B. Only this implementation returns probabilities.
"""

import keras
from keras import ops

from txl_keras.layers.compute.dropout import keep_pairs
from txl_keras.layers.compute.problem import MASKED_SCORE
from txl_keras.layers.compute.problem import dot_product
from txl_keras.types import Tensor


def attend(problem, return_probabilities=False):
    """Computes attention `(B, T, N, H)`, and probabilities `(B, N, T, S)`."""
    keys, values = _heads_first(problem)
    query = problem.in_key_layout(problem.content_query())
    # (a) and (c): (q_i + u) . k_j
    scores = ops.einsum("nbth,nbsh->nbts", query, keys)
    if problem.positions is not None:
        # (b) and (d): (q_i + v) . r_{i-j}
        rows = _needed_rows(problem)
        by_distance = dot_product(problem.position_query(), rows)
        scores = scores + _by_key(by_distance, problem.visible)
    if problem.score_bias is not None:
        scores += problem.score_bias
    mask = problem.visible.mask(0, problem.visible.num_keys)  # [B, T, S]
    scores = ops.where(mask, ops.cast(scores, "float32"), MASKED_SCORE)
    largest = ops.max(scores, axis=-1, keepdims=True, initial=MASKED_SCORE)
    largest = ops.stop_gradient(largest)
    weights = exponentials = ops.exp(scores - largest)
    total = ops.sum(exponentials, axis=-1, keepdims=True)
    if problem.rate:
        heads, _, *lengths = ops.shape(scores)
        sizes, ranges = (heads, *lengths), ([length] for length in lengths)
        keep = keep_pairs(problem.rate, problem.seeds, sizes, *ranges)
        weights = ops.where(keep, weights, 0)
    # Divides the output instead of each weight, unless sums may overflow.
    divisor = total * (1 - problem.rate)
    if keras.backend.standardize_dtype(values.dtype) == "float16":
        weights, divisor = weights / divisor, 1.0
    weights = ops.cast(weights, values.dtype)
    attended = ops.einsum("nbts,nbsh->nbth", weights, values)
    attended = ops.cast(ops.cast(attended, "float32") / divisor, values.dtype)
    attended = ops.transpose(attended, (1, 2, 0, 3))
    if return_probabilities:
        return attended, ops.swapaxes(exponentials / total, 0, 1)
    return attended


def _needed_rows(problem):
    """Returns the rows `(N, R, H)` of no more distances than needed."""
    rows, visible = problem.positions.rows, problem.visible
    spare = ops.shape(rows)[1] - (visible.num_keys - visible.nearest)
    return rows[:, _larger(spare, 0) :]


def _by_key(by_distance, visible):
    """Shifts scores by distance, `(N, B, T, R)`, to `(N, B, T, S)` by key."""
    sizes = ops.shape(by_distance)
    missing = visible.num_keys - visible.nearest - sizes[3]
    if not (isinstance(missing, int) and missing == 0):
        # Larger distances than the largest use its row.
        clamped = ops.broadcast_to(by_distance[..., :1], (*sizes[:3], missing))
        by_distance = ops.concatenate([clamped, by_distance], axis=-1)
    return relative_shift(by_distance)[..., : visible.num_keys]


def _larger(size, other):
    # Python's `max` of integers keeps shapes static.
    return (max if isinstance(size, int) else ops.maximum)(size, other)


def _heads_first(problem):
    """Yields all keys, then all values, `(N, B, S, H)` in text order."""
    parts = [list(part) for part in problem.parts]
    if problem.order is not None:
        slots = ops.argsort(problem.order)[:, None, :, None]
        parts[0] = [ops.take_along_axis(x, slots, axis=2) for x in parts[0]]
    for part in zip(*parts, strict=True):
        yield problem.in_key_layout(ops.concatenate(part, axis=2))


def relative_shift(scores: Tensor) -> Tensor:
    """Shifts attention scores from distances to keys.

    This is the trick of appendix B in Dai et al., 2019. Column `r` of the input
    has the distance `S - 1 - r`. Query `i` is at position `M + i`, so the score
    of key `j` is in column `j + T - 1 - i`. Padding on the left and two
    reshapes shift row `i` by `T - 1 - i` columns without any arithmetic. For
    T = 3 and S = 5, where the numbers are distances:

        4 3 2 1 0        2 1 0 x x
        4 3 2 1 0   ->   3 2 1 0 x
        4 3 2 1 0        4 3 2 1 0

    `x` marks a key after the query. Its value is arbitrary, possibly zero, and
    must be masked.

    Args:
        scores: Tensor of shape `(B, N, T, S)`, by distance.

    Returns:
        Tensor of shape `(B, N, T, S)`, by key.

    Example:

    >>> scores = ops.convert_to_tensor([[[[4, 3, 2, 1, 0]] * 3]])
    >>> relative_shift(scores)[0, 0, 0, :3].numpy().tolist()
    [2, 1, 0]
    """
    return shear(ops.pad(scores, [[0, 0], [0, 0], [0, 0], [1, 0]]))


def shear(padded):
    """Shifts row `i` of `(B, N, T, 1 + R)` left by `T - 1 - i`."""
    *batch, length, num_columns = ops.shape(padded)
    reshaped = ops.reshape(padded, (*batch, num_columns, length))
    return ops.reshape(reshaped[:, :, 1:], (*batch, length, num_columns - 1))
