"""Memory of projected keys and values, the KV cache for inference.

In a ring buffer a new entry replaces the oldest: slots are not in text order.
"""

import collections
import functools
from collections.abc import Callable
from typing import Any
from typing import Self

from keras import ops

from txl_keras.backend import tf
from txl_keras.layers.memory import choose_rows
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

    It is the KV cache for inference, when weights do not change. `Memory`
    holds hidden states, which every new segment would project again. There are
    two layouts:

    - Text order, oldest first: `next_slot` is `None`. `append` copies all M
      entries to new tensors.
    - Ring buffer: a new entry replaces the oldest. `append` writes in place if
      the old tensors are not used afterwards, as in a `tf.while_loop` or when
      a compiled function assigns a variable.

    Attributes:
        keys, values: Tuples of L tensors `(B, N, M, H)`.
        next_slot: int32 `(B,)`, the slot of the oldest entry, or `None`.
        valid_length: int32 `(B,)`. Only the newest `valid_length` entries of a
            row are real. The others are masked.

    Example:

    ```python
    import tensorflow as tf
    from txl_keras.layers import ProjectedMemory
    from txl_keras.layers import RelativeMultiHeadAttention

    attention = RelativeMultiHeadAttention(num_heads=2, key_dim=4)
    attention.build((None, None, 8))
    empty = tf.zeros((3, 2, 6, 4))  # (B, N, M, H)
    memory = ProjectedMemory((empty,), (empty,), None, tf.zeros(3, "int32"))
    positions = attention.project_positions(6 + 5)  # M + T
    for segment in tf.ones((10, 3, 5, 8)):  # (B, T, D)
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
        mask = tf.range(self.length) >= self.length - self.valid_length[:, None]
        order = None
        if self.next_slot is not None:
            slots = tf.range(self.length) - self.next_slot[:, None]
            order = tf.math.floormod(slots, max(self.length, 1))
        return [
            Past(key, value, mask, order)
            for key, value in zip(self.keys, self.values, strict=True)
        ]

    def as_ring(self) -> Self:
        """Returns the same entries as a ring buffer."""
        if self.next_slot is not None:
            return self
        return self._replace(next_slot=tf.zeros_like(self.valid_length))

    def in_order(self) -> Self:
        """Returns the same entries in text order."""
        if self.next_slot is None or self.length == 0:
            return self._replace(next_slot=None)
        slots = tf.range(self.length) + self.next_slot[:, None]
        slots = tf.math.floormod(slots, self.length)  # the oldest first
        keys, values = tf.nest.map_structure(
            lambda state: tf.gather(state, slots, axis=2, batch_dims=1),
            (self.keys, self.values),
        )
        return ProjectedMemory(keys, values, None, self.valid_length)

    @staticmethod
    def largest(shapes: dict) -> dict:
        """Returns the most that each count may be, for a server's checks."""
        return {"valid_length": shapes["memory"][3]}

    def reset_rows(self, reset: Tensor, empty: Any) -> Self:
        """Clears the memory of rows in which a new document or text begins.

        Args:
            reset: Boolean tensor `(B,)`.
            empty: `ProjectedMemory` at a cold start, with B rows or one.

        Returns:
            `ProjectedMemory` of the same shapes.
        """
        return choose_rows(reset, empty, self)

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
            lengths: Optional int32 `(B,)`, for ring buffers only: the number
                of real tokens of each row. Padding follows them.
            write: Optional function that writes to a ring buffer. It receives
                a state `(B, N, M, H)`, a `RingWrite` and entries
                `(B, N, W, H)`, where W = min(T, M), and returns the new state.
                By default `tf.tensor_scatter_nd_update` of its `indices`.

        Returns:
            `ProjectedMemory` of the same shapes.
        """
        num_new = tf.shape(keys[0])[2] if lengths is None else lengths
        valid_length = tf.minimum(self.valid_length + num_new, self.length)
        if self.length == 0:
            return self._replace(valid_length=valid_length)
        if self.next_slot is None:
            update, next_slot = _keep_last, None
        else:
            ring = RingWrite(self.next_slot, self.length, keys[0], lengths)
            write = write or scatter

            def update(state, new):
                return write(state, ring, ring.values(new, state))

            next_slot = tf.math.floormod(self.next_slot + num_new, self.length)
        return ProjectedMemory(
            tuple(map(update, self.keys, keys)),
            tuple(map(update, self.values, values)),
            next_slot,
            valid_length,
        )


def scatter(state, ring, entries):
    """Returns a copy of a state with new entries."""
    return tf.tensor_scatter_nd_update(state, ring.indices, entries)


def _keep_last(state, new):
    extended = tf.concat([state, new], axis=2)  # [B, N, M + T, H]
    kept = extended[:, :, tf.shape(new)[2] :]
    return tf.ensure_shape(kept, state.shape)


class RingWrite:
    """Computes where the last W = min(T, M) real entries are written."""

    # Once for all layers, from the entries of any of them.

    def __init__(
        self,
        next_slot,  # [B], the slot of the oldest entry
        length,
        entries,  # [B, N, T, H]
        lengths=None,  # [B], the numbers of real tokens, before padding
        rows=None,  # [B], rows of the state to write, by default the first B
        first_slot=0,  # of the ring, if it is a part of the state
        num_slots=None,  # of the state
    ):
        batch = tf.shape(next_slot)[0]
        num_heads, num_new = ops.shape(entries)[1:3]
        # Python's `min` of integers keeps shapes static.
        smaller = min if isinstance(num_new, int) else tf.minimum
        window = smaller(num_new, length)
        self._sizes = num_heads, num_slots or length
        self._all_real = lengths is None
        self._start = num_new - window
        ends = num_new if self._all_real else lengths[:, None]
        # Indices of the entries in the segment, negative if before it.
        self._entry_indices = tf.broadcast_to(
            ends - window + tf.range(window), (batch, window)
        )
        slots = next_slot[:, None] + self._entry_indices
        slots = first_slot + tf.math.floormod(slots, length)
        rows = tf.range(batch) if rows is None else rows
        coordinates = rows[:, None, None], tf.range(num_heads)[:, None]
        shape = (batch, num_heads, window)
        # [B, N, W, 3], for `tf.tensor_scatter_nd_update` of [rows, N, M, H].
        self.indices = tf.stack(
            [
                tf.broadcast_to(coordinate, shape)
                for coordinate in (*coordinates, slots[:, None])
            ],
            axis=-1,
        )

    @functools.cached_property
    def flat_indices(self):
        """Returns `indices` of a state in the shape `(rows N M, H)`."""
        num_heads, num_slots = self._sizes
        row, head, slot = tf.unstack(self.indices, axis=-1)
        return tf.reshape((row * num_heads + head) * num_slots + slot, (-1,))

    def values(self, entries, state=None):
        """Returns the entries to write, `(B, N, W, H)`."""
        if self._all_real:
            return entries[:, :, self._start :]
        # Rows with fewer than W real tokens write back what the state has.
        indices = tf.maximum(self._entry_indices, 0)
        return tf.where(
            self._entry_indices[:, None, :, None] >= 0,
            tf.gather(entries, indices, axis=2, batch_dims=1),
            tf.gather_nd(state, self.indices),
        )
