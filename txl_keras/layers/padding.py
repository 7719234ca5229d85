"""Padding anywhere in a segment. Letters: `B` batch, `T` segment."""

import tensorflow as tf


class Padding:
    """Moves padding to the end of each row, and back.

    `mask` is boolean `(B, T)`, false for padding, and `lengths` `(B,)` are the
    numbers of other places. Both are `None` without padding.
    """

    def __init__(self, mask):
        self.mask, self.lengths = mask, None
        if mask is None:
            return
        self.lengths = tf.reduce_sum(tf.cast(mask, tf.int32), axis=1)
        self._order = tf.argsort(tf.cast(~mask, tf.int32), axis=1, stable=True)

    def at_the_end(self, x):
        if self.mask is None:
            return x
        return tf.gather(x, self._order, axis=1, batch_dims=1)

    def in_place(self, x):
        if self.mask is None:
            return x
        inverse = tf.argsort(self._order, axis=1)
        return tf.gather(x, inverse, axis=1, batch_dims=1)
