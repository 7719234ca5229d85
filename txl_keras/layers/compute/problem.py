"""All there is to say about one attention, however it is computed.

Letters: `B` batch, `T` segment, `M` memory, `S` = M + T keys, `N` heads, `H`
head size, `R` distances.
"""

import dataclasses
import functools
import typing

import tensorflow as tf
from keras import ops

# The score of a key that may not be seen. Finite, so that a query that may
# see none stays a number.
CLOSED = -1e30


def dot_product(query, rows):
    """Scores `(N, B, T, R)` of queries and of `rows`, `(N, R, H)`."""
    return ops.einsum("nbth,nrh->nbtr", query, rows)


@dataclasses.dataclass(frozen=True)
class Positions:
    """What the distance of a query and a key adds to their score.

    Attributes:
        rows: Tuple of tensors `(N, R, ...)`, a row a distance, the farthest
            first. Keys that are farther than its first row count as it.
        bias: Optional tensor `(N, H)`, added to the queries of `scores`.
        scores: Function of queries `(N, B, T, H)` and of `rows`, all or some
            of them. Returns scores `(N, B, T, R)`.
        nearest: Integer, the distance of the last row: 0, or `1 - T` where
            queries also see the keys after them.
    """

    rows: tuple
    bias: object = None
    scores: typing.Callable = dot_product
    nearest: int = 0


@dataclasses.dataclass(frozen=True)
class Visible:
    """Which keys a query may see.

    Query `i` stands at `M + i`. For T = 3, M = 2; `farthest=2` shuts the keys
    marked `s` too:

             memory | segment
        i=0   1  1  |  1  .  .
        i=1   s  1  |  1  1  .
        i=2   s  s  |  1  1  1

    Attributes:
        num_memory, length: `M` and `T`, integers or scalar tensors.
        causal: Boolean. No query sees the keys after it.
        farthest: Optional integer, the distance beyond which keys are shut.
        key_mask: Optional boolean `(B, S)`, false where a key is not real.
        attention_mask: Optional boolean, broadcasts to `(B, T, S)`.
    """

    num_memory: object
    length: object
    causal: bool = True
    farthest: object = None
    key_mask: object = None
    attention_mask: object = None

    @property
    def num_keys(self):
        """`S`"""
        return self.num_memory + self.length

    def distances(self, first, end):
        """Of all queries from keys `first` to `end - 1`: `(T, end - first)`."""
        query = self.num_memory + ops.arange(self.length)[:, None]
        return query - ops.arange(first, end)

    def mask(self, first, end):
        """Which of the keys `first` to `end - 1` each query may see.

        Returns:
            Boolean that broadcasts to `(B, T, end - first)`; as small as what
            it is made of, since it is kept for the backward pass.
        """
        conditions = [self.given(first, end)]
        if self.farthest is not None:
            conditions.append(self.distances(first, end) <= self.farthest)
        # What memory holds is before all queries.
        if self.causal and not self._is_memory(end):
            conditions.append(self.distances(first, end) >= 0)
        return functools.reduce(ops.logical_and, conditions)

    def given(self, first, end):
        """What the two masks say: a boolean of three axes, as `mask`."""
        mask = ops.ones((1, 1, 1), "bool")
        if self.attention_mask is not None:
            given = self.attention_mask
            mask &= given if given.shape[-1] == 1 else given[..., first:end]
        if self.key_mask is not None:
            mask &= self.key_mask[:, None, first:end]
        return mask

    def _is_memory(self, end):
        are_known = isinstance(end, int) and isinstance(self.num_memory, int)
        return end is self.num_memory or are_known and end <= self.num_memory


@dataclasses.dataclass(frozen=True)
class Dropout:
    """Dropout of attention probabilities.

    Attributes:
        rate: Float in `(0, 1)`.
        seeds: uint32 `(B,)`.
    """

    rate: float
    seeds: object


@dataclasses.dataclass(frozen=True)
class Problem:
    """One attention: `dropout(softmax(scores)) values`.

    The score of query `i` and key `j` is

        (q_i + u) . k_j  +  positions(q_i + v, i - j)  +  score_bias

    Attributes:
        query: Tensor `(N, B, T, H)`, scaled by `1 / sqrt(H)`.
        parts: List of pairs of keys and values `(N, B, S_i, H)`: memory, if
            there is one, and the segment; or all keys in one part.
        visible: `Visible`.
        content_bias: Optional tensor `(N, H)`, `u`.
        positions: Optional `Positions`; `v` is its bias.
        score_bias: Optional tensor that broadcasts to `(N, B, T, S)`.
        dropout: Optional `Dropout`.
        batch_first: Boolean: keys and values are `(B, N, S_i, H)`.
        order: Optional int32 `(B, M)`, of `batch_first`: which entry of
            memory, counted from the oldest, is in a slot of the first part.
            By default slots are in the order of the text.
    """

    query: object
    parts: list
    visible: Visible
    content_bias: object = None
    positions: Positions | None = None
    score_bias: object = None
    dropout: Dropout | None = None
    batch_first: bool = False
    order: object = None

    @property
    def lengths(self):
        """Of the parts of the keys: integers, or scalar tensors."""
        if len(self.parts) == 1:
            return [self.visible.num_keys]
        return [self.visible.num_memory, self.visible.length]

    @property
    def has_known_sizes(self):
        sizes = (*self.lengths, self.visible.length, self.query.shape[1])
        return all(isinstance(size, int) for size in sizes)

    @property
    def rate(self):
        """Of dropout; 0.0 without."""
        return self.dropout.rate if self.dropout else 0.0

    @property
    def seeds(self):
        return self.dropout.seeds if self.dropout else None

    def content_query(self):
        """What meets the keys, with B and N in the order that they have."""
        query = _with_bias(self.query, self.content_bias)
        return ops.swapaxes(query, 0, 1) if self.batch_first else query

    def position_query(self):
        """What meets the positions, `(N, B, T, H)`."""
        return _with_bias(self.query, self.positions.bias)

    def like_keys(self, scores):
        """Scores or masks `(N, B, T, S)` with B and N in the keys' order."""
        return ops.swapaxes(scores, 0, 1) if self.batch_first else scores

    def for_output(self, attended):
        """What was attended to, in the keys' order, as `(B, T, N, H)`."""
        axes = (0, 2, 1, 3) if self.batch_first else (1, 2, 0, 3)
        return tf.transpose(attended, axes)


def _with_bias(query, bias):
    return query if bias is None else query + bias[:, None, None]
