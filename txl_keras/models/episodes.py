"""Episodes that begin inside a segment, as in reinforcement learning.

Letters: `B` batch, `T` segment, `M` memory.
"""

from keras import ops

from txl_keras.layers.memory import Padding


class Episodes:
    """Separates the steps of consecutive episodes."""

    # `reset` (B, T) is true where an episode begins, or `None`. Memory belongs
    # to episode 0.

    def __init__(self, reset):
        self._numbers = None
        if reset is not None:
            self._numbers = ops.cumsum(ops.cast(reset, "int32"), axis=1)

    def attention_mask(self, memory_length, padding):
        """Returns a mask `(B, T, M + T)`, true in the query's episode."""
        if self._numbers is None:
            return None
        numbers = padding.at_the_end(self._numbers)
        shape = ops.shape(numbers)[0], memory_length
        in_memory = ops.zeros(shape, "int32")
        keys = ops.concatenate([in_memory, numbers], axis=1)
        return numbers[:, :, None] == keys[:, None, :]

    def last(self, memory, states, padding):
        """Returns the memory that each row's last episode leaves."""
        # Memory of earlier segments, states, and their lengths.
        if self._numbers is None:
            return memory, states, padding.lengths
        last = self._numbers[:, -1:]
        is_last = self._numbers == last
        if padding.mask is not None:
            is_last = is_last & padding.mask
        others = Padding(padding.at_the_end(is_last))
        states = [others.at_the_end(state) for state in states]
        return memory.reset_rows(last[:, 0] > 0), states, others.lengths
