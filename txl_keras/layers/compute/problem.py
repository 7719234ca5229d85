"""Description of one attention, independent of how it is computed.

`Problem` holds the projected tensors, `Visible` is its mask, `Positions` adds
scores by distance. The functions above these classes keep NaN and infinity of
masked states out of the results, in layers and models.
"""

import dataclasses
import functools
import typing

import keras
import numpy as np
from keras import ops

# The score of a masked key. It is finite so that a query whose keys are all
# masked does not become NaN.
MASKED_SCORE = -1e30


# A masked probability is 0, but 0 times NaN or infinity is NaN, in the output
# and in gradients of the weights. So states that a mask of steps hides are
# replaced by zeros. For masks of pairs see `move_nonfinite_to_keys`.


def zero_masked(states, mask):
    """Replaces masked states `(..., B, S, D)` by zeros, if there is a mask."""
    return states if mask is None else ops.where(mask[..., None], states, 0)


def finite_masked(states, mask):
    """Replaces NaN and infinity in masked states of `(B, S, D)` by zeros."""
    # Other values are kept: a masked query still has an output.
    if mask is None:
        return states
    return ops.where(mask[..., None] | ops.isfinite(states), states, 0)


def move_nonfinite_to_keys(keys, values):
    """Moves NaN and infinity from values to their keys, for masks of pairs."""
    # The score of a masked key is replaced. Queries that may attend to the key
    # still become NaN.
    is_finite = ops.all(ops.isfinite(values), axis=-1, keepdims=True)
    return ops.where(is_finite, keys, np.nan), ops.where(is_finite, values, 0)


def dot_product(query, rows):
    """Computes scores `(N, B, T, R)` of queries and rows `(N, R, H)`."""
    return ops.einsum("nbth,nrh->nbtr", query, rows)


@dataclasses.dataclass(frozen=True)
class Positions:
    """Describes the scores by distance, terms (b) and (d) of the paper."""

    # [N, R, H], one row per distance, the largest distance first and
    # `Visible.nearest` last. Keys at larger distances use the first row. A
    # further column, [N, R, H + 1], is added to the scores of all queries.
    rows: object
    bias: object = None  # `v`: [N, H], or None


class Visible(typing.NamedTuple):
    """Describes the attention mask of a `Problem`.

    Query `i` is at position `M + i`. For T = 3 and M = 2: `1` is visible, `.`
    is masked, `a` is masked without `look_ahead=1`, and `s` is masked with
    `max_distance=2`:

             memory | segment
        i=0   1  1  |  1  a  .
        i=1   s  1  |  1  1  a
        i=2   s  s  |  1  1  1
    """

    num_memory: object  # M, an integer or a scalar tensor
    length: object  # T, an integer or a scalar tensor
    # The number of visible keys after a query, or None for all of them.
    look_ahead: int | None = 0
    max_distance: object = None  # masks keys at larger distances, or None
    key_mask: object = None  # boolean [B, S], false at padding, or None
    attention_mask: object = None  # boolean [B, T, S], or None

    @property
    def num_keys(self):
        """Returns the number of keys, `S`."""
        return self.num_memory + self.length

    @property
    def nearest(self):
        """Returns the smallest distance of a visible key, maybe negative."""
        if self.look_ahead == 0:
            return 0
        farthest_ahead = self.length - 1
        if isinstance(farthest_ahead, int):
            farthest_ahead = max(farthest_ahead, 0)
        if self.look_ahead is None:
            return -farthest_ahead
        # Python's `min` of integers keeps shapes static.
        if isinstance(farthest_ahead, int):
            return -min(self.look_ahead, farthest_ahead)
        if keras.backend.backend() == "jax":  # a symbolic size
            import jax

            return -jax.core.min_dim(self.look_ahead, farthest_ahead)
        return -ops.minimum(self.look_ahead, farthest_ahead)

    def distances(self, first, end, queries=None):
        """Returns the distances of keys `first` to `end - 1`, `(T, keys)`."""
        query = self.num_memory + ops.arange(*(queries or [self.length]))
        return query[:, None] - ops.arange(first, end)

    def mask(self, first, end, queries=None):
        """Returns the mask of keys `first` to `end - 1`.

        `queries` is a range of queries, by default all. The mask broadcasts to
        `(B, queries, end - first)`. It is not broadcast here, because it is
        kept for the backward pass.
        """
        conditions = [self.extra_mask(first, end)]
        keys = first, end, queries
        if self.max_distance is not None:
            conditions.append(self.distances(*keys) <= self.max_distance)
        # Memory is before all queries, so no causal mask is needed for it.
        if self.look_ahead is not None and not self._is_memory(end):
            conditions.append(self.distances(*keys) >= -self.look_ahead)
        return functools.reduce(ops.logical_and, conditions)

    def extra_mask(self, first, end):
        """Combines `key_mask` and `attention_mask`, shaped like `mask`."""
        mask = ops.ones((1, 1, 1), "bool")
        if self.attention_mask is not None:
            mask = mask & self.attention_mask[..., first:end]
        if self.key_mask is not None:
            # Not in place, because PyTorch would not broadcast.
            mask = mask & self.key_mask[:, None, first:end]
        return mask

    def _is_memory(self, end):
        are_known = isinstance(end, int) and isinstance(self.num_memory, int)
        return end is self.num_memory or are_known and end <= self.num_memory


@dataclasses.dataclass(frozen=True)
class Problem:
    """Describes one attention, `dropout(softmax(scores)) values`.

    The score of query `i` and key `j` is

        (q_i + u) . k_j  +  positions(q_i + v, i - j)  +  score_bias
          (a)  (c)                   (b)   (d)
    """

    query: object  # [N, B, T, H], scaled by 1 / sqrt(H)
    # Pairs of keys and values [N, B, S_i, H]: one for memory, if there is any,
    # and one for the segment; or a single pair for both.
    parts: list
    visible: Visible
    content_bias: object = None  # `u`: [N, H], or None
    positions: Positions | None = None
    score_bias: object = None  # broadcasts to [N, B, T, S], or None
    rate: float = 0.0  # of dropout on the probabilities, below 1
    seeds: object = None  # uint32 [B], one dropout seed per row
    batch_first: bool = False  # keys and values are [B, N, S_i, H]
    # int32 [B, M] or None: the age rank (0 is the oldest) of the entry in each
    # memory slot, if memory is a ring buffer. Needs `batch_first`. By default
    # slots are in text order.
    order: object = None

    @property
    def lengths(self):
        """Returns the number of keys in each part, as integers or tensors."""
        if len(self.parts) == 1:
            return [self.visible.num_keys]
        return [self.visible.num_memory, self.visible.length]

    @property
    def has_static_sizes(self):
        """Returns whether `B`, `T` and `M` are Python integers."""
        sizes = (*self.lengths, self.visible.length, self.query.shape[1])
        return all(isinstance(size, int) for size in sizes)

    def content_query(self):
        """Returns `q + u`, in the layout of the keys."""
        return self.in_key_layout(_with_bias(self.query, self.content_bias))

    def position_query(self):
        """Returns `q + v`, as wide as the rows of positions."""
        query = _with_bias(self.query, self.positions.bias)
        if self.positions.rows.shape[-1] == query.shape[-1]:
            return query
        ones = ops.ones_like(query[..., :1])
        return ops.concatenate([query, ones], axis=-1)

    def in_key_layout(self, x):
        """Swaps `N` and `B` of a tensor if keys are `batch_first`."""
        return ops.swapaxes(x, 0, 1) if self.batch_first else x

    def for_output(self, attended):
        """Transposes an output in the layout of the keys to `(B, T, N, H)`."""
        axes = (0, 2, 1, 3) if self.batch_first else (1, 2, 0, 3)
        return ops.transpose(attended, axes)


def _with_bias(query, bias):
    return query if bias is None else query + bias[:, None, None]
