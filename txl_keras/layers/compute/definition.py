"""Attention as it is defined, on a `Problem`: the paper, and the tests' oracle.

Section 3.3 of [Dai et al., 2019](https://arxiv.org/abs/1901.02860) scores
query `i` and key `j` by

    A[i,j] = q_i . k_j  +  q_i . r_{i-j}  +  u . k_j  +  v . r_{i-j}
               (a)            (b)             (c)           (d)

and attends by `softmax(A / sqrt(H)) V`. The other ways to compute it give the
same numbers. This one reads the score of a distance from a table, where they
shift (appendix B), and keeps all `(N, B, T, S)` scores. It is what returns
probabilities.

Letters: `B` batch, `T` segment, `M` memory, `S` = M + T keys, `N` heads, `H`
head size, `R` distances.
"""

import tensorflow as tf
from keras import ops

from txl_keras.layers.compute.dropout import is_kept
from txl_keras.layers.compute.problem import CLOSED


def attend(problem):
    """Computes attention.

    Args:
        problem: `Problem`.

    Returns:
        Pair of what is attended to, `(B, T, N, H)`, and the float32
        probabilities before dropout, `(B, N, T, S)`.
    """
    keys, values = _heads_first(problem)
    query = problem.query
    u = v = tf.zeros((), query.dtype)
    if problem.content_bias is not None:
        u = problem.content_bias[:, None, None]
    # (a) and (c)
    scores = ops.einsum("nbth,nbsh->nbts", query + u, keys)
    if problem.positions is not None:
        positions = problem.positions
        if positions.bias is not None:
            v = positions.bias[:, None, None]
        # (b) and (d)
        by_distance = positions.scores(query + v, *positions.rows)
        scores += _of_keys(by_distance, problem)
    if problem.score_bias is not None:
        scores += problem.score_bias
    mask = problem.visible.mask(0, problem.visible.num_keys)  # [B, T, S]
    scores = tf.where(mask, tf.cast(scores, "float32"), CLOSED)
    probabilities = weights = tf.nn.softmax(scores)
    if problem.dropout is not None:
        sizes = ops.shape(scores)
        sizes = [sizes[0], *sizes[2:]]
        places = [tf.range(size) for size in sizes]
        rate, seeds = problem.rate, problem.seeds
        kept = is_kept(rate, seeds, sizes, places, batch_axis=1)
        weights = tf.where(kept, weights / (1 - rate), 0)
    weights = tf.cast(weights, values.dtype)
    attended = ops.einsum("nbts,nbsh->btnh", weights, values)
    return attended, ops.swapaxes(probabilities, 0, 1)


def _of_keys(by_distance, problem):
    """Scores `(N, B, T, R)` by distance as `(N, B, T, S)` by key."""
    num_rows = ops.shape(by_distance)[-1]
    distance = problem.visible.distances(0, problem.visible.num_keys)
    row = num_rows - 1 - (distance - problem.positions.nearest)
    # Some have no row: those after a causal query, and those too far.
    row = ops.clip(row, 0, num_rows - 1)  # [T, S]
    row = tf.broadcast_to(
        row, tf.concat([tf.shape(by_distance)[:2], tf.shape(row)], axis=0)
    )
    return tf.gather(by_distance, row, axis=3, batch_dims=3)


def _heads_first(problem):
    """Keys and values `(N, B, S, H)`, in the order of the text."""
    parts = [list(part) for part in problem.parts]
    if problem.order is not None:
        slots = tf.argsort(problem.order)
        parts[0] = [tf.gather(x, slots, axis=2, batch_dims=1) for x in parts[0]]
    for part in zip(*parts, strict=True):
        yield problem.like_keys(tf.concat(part, axis=2))
