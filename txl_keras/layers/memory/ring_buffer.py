"""Where a ring buffer of M entries keeps what.

Letters: `B` batch, `T` segment, `M` memory, `N` heads, `H` head size, `W` =
min(T, M) entries to write.
"""

import tensorflow as tf


def age_order(next_slot, length):
    """Returns which entry is in a slot, counted from the oldest.

    Args:
        next_slot: int32 tensor `(B,)`, the slot of the oldest entry.
        length: Integer `M`.

    Returns:
        int32 tensor `(B, M)`.
    """
    slots = tf.range(length) - next_slot[:, None]
    return tf.math.floormod(slots, max(length, 1))


def slots_by_age(next_slot, length):
    """Returns the slots of all entries, oldest first, int32 `(B, M)`."""
    slots = tf.range(length) + next_slot[:, None]
    return tf.math.floormod(slots, max(length, 1))


class RingWrite:
    """Places of the last W real entries of a segment, the same in all layers.

    Args:
        next_slot: int32 tensor `(B,)`, the slot of the oldest entry.
        length: Integer `M`, at least 1.
        entries: Tensor `(B, N, T, H)`, those of one layer.
        lengths: Optional int32 tensor `(B,)`: the first tokens of a row that
            are real; the rest is padding. By default all are.
        rows: Optional int32 tensor `(B,)`, which rows of a state are written;
            by default the first B.

    Attributes:
        indices: int32 tensor `(B, N, W, 3)`, where in a state `(rows, N, M,
            H)` the entries go.
    """

    def __init__(self, next_slot, length, entries, lengths=None, rows=None):
        batch = tf.shape(next_slot)[0]
        num_heads, num_new = entries.shape[1:3]
        if num_new is None:
            num_new = tf.shape(entries)[2]
            window = tf.minimum(num_new, length)
        else:
            window = min(num_new, length)
        self._all_real = lengths is None
        self._start = num_new - window
        ends = num_new if self._all_real else lengths[:, None]
        # Numbers of the entries in the segment; negative: before it.
        self._numbers = tf.broadcast_to(
            ends - window + tf.range(window), (batch, window)
        )
        slots = tf.math.floormod(next_slot[:, None] + self._numbers, length)
        rows = tf.range(batch) if rows is None else rows
        places = (
            rows[:, None, None],
            tf.range(num_heads)[None, :, None],
            slots[:, None, :],
        )
        shape = (batch, num_heads, window)
        self.indices = tf.stack(
            [tf.broadcast_to(place, shape) for place in places], axis=-1
        )

    def values(self, entries, state=None):
        """Returns what to write there, `(B, N, W, H)`.

        Args:
            entries: Tensor `(B, N, T, H)`.
            state: Tensor with the entries that a row keeps where it has fewer
                than W real ones; of no use without `lengths`.
        """
        if self._all_real:
            return entries[:, :, self._start :]
        return tf.where(
            self._numbers[:, None, :, None] >= 0,
            tf.gather(
                entries, tf.maximum(self._numbers, 0), axis=2, batch_dims=1
            ),
            tf.gather_nd(state, self.indices),
        )
