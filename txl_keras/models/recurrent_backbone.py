"""What every backbone that remembers is.

Letters: `B` batch, `T` segment, `M` memory, `D` hidden size.
"""

import keras
import tensorflow as tf
from keras import ops

from txl_keras.checks import check_dtype_policy
from txl_keras.checks import check_integer
from txl_keras.checks import check_mask
from txl_keras.checks import check_shape
from txl_keras.checks import check_token_ids
from txl_keras.checks import shown
from txl_keras.layers.memory.memory_stack import Memory
from txl_keras.layers.memory.memory_stack import MemoryStack
from txl_keras.layers.memory.memory_stack import initial_memory

_REMEDY = (
    "Begin with `memory=None` or `initial_memory(batch_size)` of this model, "
    "and keep the number of rows from call to call."
)


class RecurrentBackbone(keras.Model):
    """Base of the models that read a text segment by segment with a memory.

    A subclass sets `num_layers`, `hidden_dim` and `memory_length`, and its
    `call` begins with `_begin`.
    """

    cold_start = "masked"
    # What others ask for, rather than for a class.
    has_attention = True
    # Whether a call takes `return_attention_scores`.
    shows_attention = False
    # Whether its layers have a form that is compiled in parts on a CPU.
    has_parts = False

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        check_dtype_policy(self.dtype_policy)

    @property
    def remembers(self):
        """Whether a segment may go on where another ended.

        Not where positions are those inside of a segment; then padding after a
        text would change its numbers, too.
        """
        return True

    @property
    def max_segment_length(self):
        """Integer, tokens that a segment has at most, or `None`."""
        return None

    def check_takes_padding(self):
        """Raises `ValueError` if padding after a text would change it."""
        if not self.remembers:
            raise ValueError(
                "`model` must have relative positions, 'relative' or 'shaw', "
                "for texts of different lengths. Received: attention_type="
                f"{self.attention_type!r}"
            )

    def layer_flops(self, segment_length, memory_length):
        """Returns the floating-point operations of a layer, forward.

        Counted nominally, as `model_flops` says.

        Args:
            segment_length: Integer `T`.
            memory_length: Integer `M`.

        Returns:
            Integer, of one row.
        """
        num_keys = memory_length + segment_length
        width = self.num_heads * self.head_dim
        products = 3 if self.remembers else 2
        return (
            4 * segment_length * self.hidden_dim * width
            + 4 * num_keys * self.hidden_dim * width
            + 4 * segment_length * self.hidden_dim * self.intermediate_dim
            + 2 * products * segment_length * num_keys * width
        )

    @property
    def num_states(self):
        """Integer, the number of tensors `(B, M, D)` in a memory."""
        return self.num_layers

    def compute_output_shape(self, token_ids_shape):
        """Returns the shape of the hidden states, for `summary`."""
        return (*token_ids_shape, self.hidden_dim)

    def compute_output_spec(self, *args, **kwargs):
        # Keras would take that shape for all that a call returns.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def check_remembers(self, memory_length):
        """Raises `ValueError` if the model can have no such memory."""

    def check_positions(self, segment_length):
        """Raises `ValueError` if a segment has more tokens than positions."""

    def initial_memory(self, batch_size, memory_length=None):
        """Returns the memory of a cold start.

        Args:
            batch_size: Integer `B`.
            memory_length: Integer `M`; by default the model's own.

        Returns:
            `Memory` of `num_states` states `(B, M, D)`.
        """
        return initial_memory(
            self.num_states,
            batch_size,
            self._memory_length(memory_length),
            self.hidden_dim,
            self.cold_start,
            self.compute_dtype,
        )

    def memory_stack(self, batch_size, memory_length=None, name=None):
        """Returns variables that hold the memory of this model.

        Args:
            batch_size: Integer, the rows of one replica, or `None`: see
                `MemoryStack`.
            memory_length: Integer `M`; by default the model's own.
            name: Optional string.

        Returns:
            `MemoryStack`, which the caller owns.
        """
        return MemoryStack(
            self.num_states,
            batch_size,
            self._memory_length(memory_length),
            self.hidden_dim,
            cold_start=self.cold_start,
            dtype=self.dtype_policy,
            name=name,
        )

    def _memory_length(self, memory_length):
        if memory_length is None:
            return self.memory_length
        self.check_remembers(memory_length)
        return memory_length

    def _rows(self, first_row, batch_size):
        """Returns the numbers of the rows of a call, int32 `(B,)`."""
        if not tf.is_tensor(first_row):
            check_integer("first_row", first_row, 0)
        return first_row + tf.range(batch_size)

    def _begin(self, token_ids, memory, reset):
        """Checks what a call got; returns ids and the memory to begin with."""
        # Their values are checked where they are looked up.
        token_ids = tf.convert_to_tensor(token_ids)
        check_shape("token_ids", token_ids, (None, None))
        batch_size = ops.shape(token_ids)[0]
        if memory is None:
            memory = self.initial_memory(batch_size)
        memory = self._check_memory(memory, batch_size)
        reset = check_mask("reset", reset, (batch_size,))
        if reset is not None:
            memory = memory.reset_rows(reset, self.cold_start)
        return token_ids, memory

    def _check_memory(self, memory, batch_size):
        """Returns a memory whose `valid_length` is an int32 tensor."""
        if not isinstance(memory, Memory):
            raise ValueError(
                "`memory` must be a Memory, as `initial_memory` and calls of "
                f"the model return. Received: memory={shown(memory)}"
            )
        if len(memory.states) != self.num_states:
            raise ValueError(
                f"`memory` must have {self.num_states} states, as many as "
                "this model. Received: a memory of another model, with "
                f"{len(memory.states)} states. {_REMEDY}"
            )
        length = memory.states[0].shape[1:2]
        for i, state in enumerate(memory.states):
            expected = (batch_size, *length, self.hidden_dim)
            check_shape(f"memory.states[{i}]", state, expected, _REMEDY)
            if "float" not in keras.backend.standardize_dtype(state.dtype):
                raise ValueError(
                    f"`memory.states[{i}]` must be of floats, as calls of the "
                    f"model return. Received: dtype {state.dtype}"
                )
        valid_length = check_token_ids(
            "memory.valid_length", memory.valid_length, memory.length + 1
        )
        check_shape("memory.valid_length", valid_length, (batch_size,), _REMEDY)
        return memory._replace(valid_length=tf.cast(valid_length, tf.int32))
