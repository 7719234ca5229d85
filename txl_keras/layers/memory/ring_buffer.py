"""Slots of a ring buffer of M entries.

Letters: `B` batch, `T` segment, `M` memory, `N` heads, `H` head size, `W` =
min(T, M) entries to write.
"""

import functools

import tensorflow as tf


def age_order(next_slot, length):
    """Returns the age rank `(B, M)` of the entry in each slot, 0 the oldest.

    `next_slot`, int32 `(B,)`, is the slot of the oldest entry.
    """
    slots = tf.range(length) - next_slot[:, None]
    return tf.math.floormod(slots, max(length, 1))


def slots_by_age(next_slot, length):
    """Returns the slots `(B, M)` of all entries, the oldest first."""
    slots = tf.range(length) + next_slot[:, None]
    return tf.math.floormod(slots, max(length, 1))


class RingWrite:
    """Computes where the last W real entries of a segment are written.

    It is computed once for all layers, from the `entries` `(B, N, T, H)` of
    any of them. `next_slot` `(B,)` is the slot of the oldest entry. `lengths`
    `(B,)` are the numbers of real tokens, before padding. `rows` `(B,)` are
    the rows of the state that are written, by default the first B.

    `indices`, int32 `(B, N, W, 3)`, are for `tf.tensor_scatter_nd_update` of a
    state `(rows, N, M, H)`. The ring may be a part of a state with `num_slots`
    slots, from `first_slot` on.
    """

    def __init__(
        self,
        next_slot,
        length,
        entries,
        lengths=None,
        rows=None,
        first_slot=0,
        num_slots=None,
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
        """Returns the entries to write, `(B, N, W, H)`.

        With `lengths`, a row with fewer than W real tokens writes back what
        `state` has at the other indices.
        """
        if self._all_real:
            return entries[:, :, self._start :]
        return tf.where(
            self._entry_indices[:, None, :, None] >= 0,
            tf.gather(
                entries,
                tf.maximum(self._entry_indices, 0),
                axis=2,
                batch_dims=1,
            ),
            tf.gather_nd(state, self.indices),
        )
