"""Memory of projected keys and values, the KV cache for inference.

In a ring buffer a new entry replaces the oldest: slots are not in text order.
"""

import collections
import functools
from collections.abc import Callable
from typing import Self

from keras import ops
from keras import tree

from txl_keras.types import Tensor


class Past(collections.namedtuple("Past", ["keys", "values", "mask", "order"])):
    """Holds the cached keys and values of one attention layer.

    Attributes:
        keys, values: Tensors `(B, N, M, H)`, in the order of slots.
        mask: Boolean `(B, M)`, in text order, false where memory is empty.
        order: int32 `(B, M)` or `None`. The age rank of the entry in each
            slot, where 0 is the oldest. `None` if slots are in text order.
    """

    __slots__ = ()


class ProjectedMemory(
    collections.namedtuple(
        "ProjectedMemory", ["keys", "values", "next_slot", "valid_length"]
    )
):
    """Holds the memory of a model as projected keys and values.

    It is the KV cache for inference, where weights do not change. `Memory`
    holds hidden states, which every new segment would project again. There are
    two layouts:

    - Text order, oldest first: `next_slot` is `None`. `append` copies all M
      entries to new tensors.
    - Ring buffer: a new entry replaces the oldest. `append` writes in place if
      the old tensors are not used afterwards, for example in an
      `ops.while_loop` or when a compiled function assigns a variable.

    Attributes:
        keys, values: Tuples of L tensors `(B, N, M, H)`.
        next_slot: int32 `(B,)`, the slot of the oldest entry, or `None`.
        valid_length: int32 `(B,)`. Only the newest `valid_length` entries of a
            row are real. The others are masked.

    Example:

    ```python
    from keras import ops
    from txl_keras.layers import ProjectedMemory
    from txl_keras.layers import RelativeMultiHeadAttention

    attention = RelativeMultiHeadAttention(num_heads=2, key_dim=4)
    attention.build((None, None, 8))
    empty = ops.zeros((3, 2, 6, 4))  # (B, N, M, H)
    memory = ProjectedMemory((empty,), (empty,), None, ops.zeros(3, "int32"))
    positions = attention.project_positions(6 + 5)  # M + T
    for segment in ops.ones((10, 3, 5, 8)):  # (B, T, D)
        (past,) = memory.pasts()
        output, key, value = attention.attend_projected(
            segment, past, positions
        )
        memory = memory.append((key,), (value,))
    ```
    """

    __slots__ = ()

    @property
    def length(self) -> int:
        """Returns the memory length M, an integer."""
        return self.keys[0].shape[2]

    def pasts(self) -> list:
        """Returns a list of L `Past`, one for each attention layer."""
        slots = ops.arange(self.length)
        mask = slots >= self.length - self.valid_length[:, None]
        order = None
        if self.next_slot is not None:
            order = (slots - self.next_slot[:, None]) % max(self.length, 1)
        return [
            Past(key, value, mask, order)
            for key, value in zip(self.keys, self.values, strict=True)
        ]

    def as_ring(self) -> Self:
        """Returns the same entries as a ring buffer."""
        if self.next_slot is not None:
            return self
        return self._replace(next_slot=ops.zeros_like(self.valid_length))

    def in_order(self) -> Self:
        """Returns the same entries in text order."""
        if self.next_slot is None or self.length == 0:
            return self._replace(next_slot=None)
        slots = ops.arange(self.length) + self.next_slot[:, None]
        slots = slots % self.length  # the oldest first
        rows = _rows(ops.shape(self.keys[0])[:3], slots)
        keys, values = tree.map_structure(
            lambda state: _take(state, rows), (self.keys, self.values)
        )
        return ProjectedMemory(keys, values, None, self.valid_length)

    @staticmethod
    def largest(shapes: dict) -> dict:
        """Returns the maximum of each count, for a server's checks."""
        return {"valid_length": shapes["memory"][3]}

    def append(
        self,
        keys: Tensor,
        values: Tensor,
        lengths: Tensor | None = None,
        write: Callable | None = None,
    ) -> Self:
        """Appends a segment and keeps the last M entries.

        Args:
            keys, values: Tuples of L tensors `(B, N, T, H)`.
            lengths: Optional int32 `(B,)`, for ring buffers only: the number of
                real tokens of each row; padding follows them.
            write: Optional function that writes to a ring buffer. It receives
                a state `(B, N, M, H)`, a `RingWrite` and entries
                `(B, N, W, H)`, where W = min(T, M), and returns the new state.
                By default `ops.scatter_update` with its `indices`.

        Returns:
            `ProjectedMemory` of the same shapes.
        """
        num_new = ops.shape(keys[0])[2] if lengths is None else lengths
        valid_length = ops.minimum(self.valid_length + num_new, self.length)
        if self.length == 0:
            return self._replace(valid_length=valid_length)
        if self.next_slot is None:
            update, next_slot = _keep_last, None
        else:
            ring = RingWrite(self.next_slot, self.length, keys[0], lengths)
            write = write or scatter

            def update(state, new):
                return write(state, ring, ring.values(new, state))

            next_slot = (self.next_slot + num_new) % self.length
        return ProjectedMemory(
            tuple(map(update, self.keys, keys)),
            tuple(map(update, self.values, values)),
            next_slot,
            valid_length,
        )


def scatter(state, ring, entries):
    """Returns a copy of a state with new entries."""
    entries = ops.reshape(entries, (-1, state.shape[-1]))
    return ops.scatter_update(state, ring.indices, entries)


def _keep_last(state, new):
    extended = ops.concatenate([state, new], axis=2)  # [B, N, M + T, H]
    kept = extended[:, :, ops.shape(new)[2] :]
    return ops.reshape(kept, ops.shape(state))


def _rows(sizes, indices):
    """Converts indices `(B, n)` to rows `(B, N, n)` of `(B N S, H)`."""
    batch, num_heads, length = sizes
    first = length * ops.arange(batch * num_heads)
    return ops.reshape(first, (batch, num_heads, 1)) + indices[:, None]


def _take(x, rows):
    """Takes rows `(B, N, n)` of `(B, N, S, H)` in the shape `(B N S, H)`."""
    return ops.take(ops.reshape(x, (-1, x.shape[-1])), rows, axis=0)


class RingWrite:
    """Computes where the last W = min(T, M) real entries are written."""

    # Computed once for all layers, from the entries of any layer.

    def __init__(
        self,
        next_slot,  # [B], the slot of the oldest entry
        length,
        entries,  # [B, N, T, H]
        lengths=None,  # [B], the numbers of real tokens, before padding
        rows=None,  # [B], rows of the state to write, by default the first B
        first_slot=0,  # the ring's, if it is a part of the state
        num_slots=None,  # of the state
    ):
        batch = ops.shape(next_slot)[0]
        num_heads, num_new = ops.shape(entries)[1:3]
        # Python's `min` of integers keeps shapes static.
        smaller = min if isinstance(num_new, int) else ops.minimum
        window = smaller(num_new, length)
        self._sizes = num_heads, num_slots or length
        self._all_real = lengths is None
        self._start = num_new - window
        ends = num_new if self._all_real else lengths[:, None]
        # Indices of the entries in the segment, negative before the segment.
        self._entry_indices = ops.broadcast_to(
            ends - window + ops.arange(window), (batch, window)
        )
        slots = next_slot[:, None] + self._entry_indices
        self._slots = first_slot + slots % length
        rows = ops.arange(batch) if rows is None else rows
        coordinates = rows[:, None, None], ops.arange(num_heads)[:, None]
        shape = (batch, num_heads, window)
        indices = ops.stack(
            [
                ops.broadcast_to(coordinate, shape)
                for coordinate in (*coordinates, self._slots[:, None])
            ],
            axis=-1,
        )
        # For `ops.scatter_update` of a state `(rows, N, M, H)`.
        self.indices = ops.reshape(indices, (-1, 3))
        self._shape, self._num_new = shape, num_new

    @functools.cached_property
    def flat_indices(self):
        """Returns `indices` of a state in the shape `(rows N M, H)`."""
        num_heads, num_slots = self._sizes
        row, head, slot = ops.unstack(self.indices, axis=-1)
        return (row * num_heads + head) * num_slots + slot

    @functools.cached_property
    def _new(self):
        """Returns which entries are new, and rows of entries and state."""
        # `(B, 1, W, 1)`, and twice `(B, N, W)`.
        is_new = self._entry_indices[:, None, :, None] >= 0
        sizes = *self._shape[:2], self._num_new
        rows = _rows(sizes, ops.maximum(self._entry_indices, 0))
        return is_new, rows, ops.reshape(self.flat_indices, self._shape)

    def values(self, entries, state=None):
        """Returns the entries to write, `(B, N, W, H)`."""
        if self._all_real:
            return entries[:, :, self._start :]
        # Rows with fewer than W real tokens write back entries of the state.
        is_new, rows, kept = self._new
        return ops.where(is_new, _take(entries, rows), _take(state, kept))
