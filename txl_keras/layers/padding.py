"""Padding anywhere in a segment. Letters: `B` batch, `T` segment."""

import tensorflow as tf


class Padding:
    """Moves padding to the end of each row, and back.

    `mask` is boolean `(B, T)`, false for padding, and `lengths` `(B,)` are the
    numbers of other places.
    """

    def __init__(self, mask):
        self.mask = mask
        self.lengths = tf.reduce_sum(tf.cast(mask, tf.int32), axis=1)
        self._order = tf.argsort(tf.cast(~mask, tf.int32), axis=1, stable=True)

    def at_the_end(self, x):
        return tf.gather(x, self._order, axis=1, batch_dims=1)

    def in_place(self, x):
        inverse = tf.argsort(self._order, axis=1)
        return tf.gather(x, inverse, axis=1, batch_dims=1)
