"""Episodes that begin inside a segment, as in reinforcement learning.

Letters: `B` batch, `T` segment, `M` memory.
"""

import tensorflow as tf


class Episodes:
    """Keeps the steps of one episode from those of another."""

    # `reset` (B, T) is true where an episode begins. Memory belongs to the one
    # that has the number 0.

    def __init__(self, reset):
        self._numbers = tf.cumsum(tf.cast(reset, tf.int32), axis=1)

    def attention_mask(self, memory_length, padding):
        """Returns a mask `(B, T, M + T)`, true in the query's episode."""
        numbers = self._numbers
        if padding is not None:
            numbers = padding.at_the_end(numbers)
        in_memory = tf.zeros((tf.shape(numbers)[0], memory_length), tf.int32)
        keys = tf.concat([in_memory, numbers], axis=1)
        return numbers[:, :, None] == keys[:, None, :]

    def keep_last(self, memory, size, padding):
        """Masks what a memory holds of episodes that ended in the segment."""
        # Of a new episode the last `size` steps are kept, and no compressed
        # ones, which may be mixed with other episodes.
        last = self._numbers[:, -1]
        is_last = self._numbers == last[:, None]
        if padding is not None:
            is_last &= padding.mask
        steps = tf.reduce_sum(tf.cast(is_last, tf.int32), axis=1)
        valid_length = tf.where(
            last > 0, tf.minimum(steps, size), memory.valid_length
        )
        memory = memory._replace(
            valid_length=tf.minimum(valid_length, memory.valid_length)
        )
        if memory.pending:
            memory = memory._replace(
                pending_length=tf.where(last > 0, 0, memory.pending_length)
            )
        return memory
