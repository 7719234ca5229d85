"""Reading with a state of fixed size, and weights that do not change.

Letters: `B` batch, `T` segment, `D` hidden size, `L` layers.
"""

import math

import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.layers.memory.memory_stack import Memory


class StateReader:
    """What `SegmentReader` is to attention, for an LSTM: used in its place.

    Args:
        backbone: `LSTMBackbone`.
        batch_size: Integer `B`, the rows of one replica.

    Raises:
        ValueError: If `batch_size` is not positive.

    Example:

    ```python
    import tensorflow as tf
    from txl_keras.models import LSTMBackbone

    backbone = LSTMBackbone(vocabulary_size=50, num_layers=2, hidden_dim=16)
    reader = backbone.segment_reader(batch_size=3, segment_length=8)
    reader.begin()
    for segment in (tf.zeros((3, 8), "int32"), tf.ones((3, 1), "int32")):
        hidden, entries = reader.read(segment)  # (3, T, 16)
        reader.remember(*entries)
    ```
    """

    def __init__(self, backbone, batch_size):
        self._backbone = backbone
        self._batch_size = check_integer("batch_size", batch_size, 1)
        self._stack = backbone.memory_stack(batch_size)

    @property
    def num_bytes(self):
        """Integer, what the states take on one replica."""
        return sum(
            math.prod(variable.shape) * variable.dtype.size
            for variable in self._stack.state_variables
        )

    def begin(self):
        """A cold start of all rows."""
        self._stack.write(self._backbone.initial_memory(self._batch_size))

    def reset_rows(self, reset):
        """Forgets rows where a document or a stream begins.

        Args:
            reset: Boolean tensor `(B,)`.
        """
        self._stack.write(self._stack.read().reset_rows(reset, "zeros"))

    def read(self, token_ids):
        """Reads a segment, and remembers nothing of it yet.

        Args:
            token_ids: Integer tensor of shape `(B, T)`.

        Returns:
            The pair of hidden states `(B, T, D)` and the entries for
            `remember`: 2 L states `(B, T, D)`.
        """
        hidden, states = self._backbone.states_after(
            token_ids, self._stack.read()
        )
        return hidden, (states,)

    def remember(self, states, lengths=None):
        """Keeps what `read` returned.

        Args:
            states: 2 L states `(B, T, D)`.
            lengths: Optional int32 tensor `(B,)`, how many tokens of a row
                are real, the first ones; by default all. A row of none is as
                it was.
        """
        memory = self._stack.read()
        if lengths is None:
            lengths = tf.fill((self._batch_size,), tf.shape(states[0])[1])
        kept = tuple(
            tf.gather(
                tf.concat([before, after], axis=1),  # [B, 1 + T, D]
                lengths[:, None],
                batch_dims=1,
            )
            for before, after in zip(memory.states, states, strict=True)
        )
        self._stack.write(Memory(kept, memory.valid_length))

    def compile(self, function):
        """Compiles by XLA a function that calls `read`."""
        return tf.function(function, jit_compile=True)
