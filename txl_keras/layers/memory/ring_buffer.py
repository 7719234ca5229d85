"""Slots of a ring buffer of M entries.

Letters: `B` batch, `T` segment, `M` memory, `N` heads, `H` head size, `W` =
min(T, M) entries to write.
"""

import functools

import tensorflow as tf


def age_order(next_slot, length):
    """Returns age ranks `(B, M)` of slots, 0 for the oldest, `next_slot`."""
    slots = tf.range(length) - next_slot[:, None]
    return tf.math.floormod(slots, max(length, 1))


def slots_by_age(next_slot, length):
    """Returns the slots `(B, M)` of all entries, the oldest first."""
    slots = tf.range(length) + next_slot[:, None]
    return tf.math.floormod(slots, max(length, 1))


class RingWrite:
    """Computes where the last W real entries of a segment are written."""

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
        num_heads, num_new = entries.shape[1:3]
        if num_new is None:
            num_new = tf.shape(entries)[2]
            window = tf.minimum(num_new, length)
        else:
            window = min(num_new, length)
        self._sizes = num_heads, num_slots or length
        self._all_real = lengths is None
        self._start = num_new - window
        ends = num_new if self._all_real else lengths[:, None]
        # Indices of the entries in the segment, negative if before it.
        self._entry_indices = tf.broadcast_to(
            ends - window + tf.range(window), (batch, window)
        )
        slots = first_slot + tf.math.floormod(
            next_slot[:, None] + self._entry_indices, length
        )
        rows = tf.range(batch) if rows is None else rows
        coordinates = (
            rows[:, None, None],
            tf.range(num_heads)[None, :, None],
            slots[:, None, :],
        )
        shape = (batch, num_heads, window)
        # [B, N, W, 3], for `tf.tensor_scatter_nd_update` of [rows, N, M, H].
        self.indices = tf.stack(
            [tf.broadcast_to(coordinate, shape) for coordinate in coordinates],
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
