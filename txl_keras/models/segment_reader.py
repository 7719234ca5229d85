"""Reading with weights that do not change.

Letters: `B` batch, `T` segment, `M` memory, `D` hidden size, `N` heads, `H`
head size, `L` layers.
"""

import math
import types

import keras
import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.layers.memory.memory_stack import check_memory_length
from txl_keras.layers.memory.memory_stack import replica_variable
from txl_keras.layers.memory.projected_memory import ProjectedMemory


class SegmentReader:
    """Reads text segment by segment and never projects the past twice.

    Keeps, in variables of each replica, the projected keys and values of the
    last M tokens of every row, and the projected positions. A segment costs
    the projections of its own T tokens; `TransformerXLBackbone` called with a
    `Memory` projects M + T. The hidden states are the same.

    Reading and remembering are two steps, to be compiled apart: in one program
    XLA would copy all of the memory rather than write the new entries in
    place. `compile` is for what reads one token of one row at a time.

    Args:
        backbone: `TransformerXLBackbone`.
        batch_size: Integer `B`, the rows of one replica.
        segment_length: Integer, the longest segment `T` that will be read.
        memory_length: Optional integer `M`; by default the backbone's own.

    Raises:
        ValueError: On sizes that are not positive, memory of a model that can
            have none, or a segment of more tokens than it has positions.

    Example:

    ```python
    import tensorflow as tf
    from txl_keras.models import SegmentReader, TransformerXLBackbone

    backbone = TransformerXLBackbone(
        vocabulary_size=50, num_layers=2, num_heads=2, hidden_dim=16,
        intermediate_dim=32, memory_length=12,
    )
    reader = SegmentReader(backbone, batch_size=3, segment_length=8)
    reader.begin()
    read = tf.function(reader.read, jit_compile=True)
    remember = tf.function(reader.remember, jit_compile=True)
    for segment in (tf.zeros((3, 8), "int32"), tf.ones((3, 1), "int32")):
        hidden, entries = read(segment)  # (3, T, 16)
        remember(*entries)
    ```
    """

    def __init__(
        self, backbone, batch_size, segment_length, memory_length=None
    ):
        if memory_length is None:
            memory_length = backbone.memory_length
        check_integer("batch_size", batch_size, 1)
        check_integer("segment_length", segment_length, 1)
        check_memory_length(memory_length)
        backbone.check_remembers(memory_length)
        backbone.check_positions(segment_length)
        self._backbone = backbone
        self._segment_length = segment_length
        self._num_distances = memory_length + segment_length
        self._memory_length = memory_length
        shape = (
            batch_size,
            backbone.num_heads,
            memory_length,
            backbone.head_dim,
        )

        def states():
            return tuple(
                replica_variable(shape, backbone.compute_dtype)
                for _ in range(backbone.num_layers)
            )

        # In a holder that neither Keras nor tf.train.Checkpoint looks into.
        self._holder = types.SimpleNamespace(
            memory=ProjectedMemory(
                states(),
                states(),
                replica_variable((batch_size,), "int32"),
                replica_variable((batch_size,), "int32"),
            ),
            positions=tf.nest.map_structure(
                lambda spec: replica_variable(spec.shape, spec.dtype.name),
                tf.function(self._project_positions)
                .get_concrete_function()
                .structured_outputs,
            ),
        )

    def _project_positions(self):
        return self._backbone.project_positions(self._num_distances)

    @property
    def num_bytes(self):
        """Integer, what memory and positions take on one replica."""
        return sum(
            math.prod(variable.shape) * variable.dtype.size
            for variable in tf.nest.flatten(vars(self._holder))
        )

    def begin(self):
        """A cold start of all rows, with the weights as they are now."""
        tf.nest.map_structure(
            _assign, self._holder.positions, self._project_positions()
        )
        empty = self._empty()._replace(next_slot=tf.zeros((1,), "int32"))
        self._assign(
            tf.nest.map_structure(
                lambda variable, row: tf.broadcast_to(row, variable.shape),
                self._holder.memory,
                empty,
            )
        )

    def reset_rows(self, reset):
        """Forgets rows where a document or a stream begins.

        Args:
            reset: Boolean tensor `(B,)`.
        """

        def forget():
            self._assign(self.memory().reset_rows(reset, self._empty()))

        # It goes over all of the memory, and is rare. That entries are not
        # valid is not enough: a NaN among them would stay one.
        tf.cond(tf.reduce_any(reset), forget, lambda: None)

    def _empty(self):
        return self._backbone.empty_projected_memory(self._memory_length)

    def memory(self):
        """What is remembered, as a value.

        Returns:
            `ProjectedMemory`, a ring.
        """
        memory = self._holder.memory

        def read(states):
            return tuple(
                tf.cast(state.read_value(), self._backbone.compute_dtype)
                for state in states
            )

        return ProjectedMemory(
            read(memory.keys),
            read(memory.values),
            memory.next_slot.read_value(),
            memory.valid_length.read_value(),
        )

    def read(self, token_ids):
        """Reads a segment, and remembers nothing of it yet.

        Args:
            token_ids: Integer tensor of shape `(B, T)`.

        Returns:
            The pair of hidden states `(B, T, D)` and the entries for
            `remember`: L keys and L values `(B, N, T, H)`.

        Raises:
            ValueError: If T is more than `segment_length`.
        """
        if (token_ids.shape[1] or 0) > self._segment_length:
            raise ValueError(
                "`token_ids` must have a shape (B, T) with T at most "
                f"segment_length={self._segment_length}. Received: shape "
                f"{token_ids.shape}"
            )
        positions = tf.nest.map_structure(
            lambda variable: tf.cast(
                variable.read_value(), self._backbone.compute_dtype
            ),
            self._holder.positions,
        )
        hidden, *entries = self._backbone.attend_projected(
            token_ids, self.memory(), positions
        )
        return hidden, tuple(entries)

    def remember(self, keys, values, lengths=None):
        """Keeps what `read` returned: see `ProjectedMemory.append`."""
        self._assign(self.memory().append(keys, values, lengths))

    def compile(self, function):
        """Compiles by XLA a function that calls `read`, for single tokens.

        XLA's product of a vector and a matrix reads the matrix as fast as
        memory gives it, but only where the matrix is an argument as it is.
        The kernels of attention have three axes, and XLA fuses their reshape
        into a product of its own that is five times slower for the whole
        model. So they are reshaped before the compiled function is called.

        Args:
            function: Function of tensors, with static shapes.

        Returns:
            `tf.function`.
        """
        kernels = [w for w in self._backbone.weights if len(w.shape) == 3]

        @tf.function(jit_compile=True)
        def compiled(matrices, *args):
            values = [
                (kernel, tf.reshape(matrix, kernel.shape))
                for kernel, matrix in zip(kernels, matrices, strict=True)
            ]
            with keras.StatelessScope(state_mapping=values):
                return function(*args)

        @tf.function
        def call(*args):
            return compiled(
                [self._as_matrix(kernel) for kernel in kernels], *args
            )

        return call

    def _as_matrix(self, kernel):
        """`(D, N, H)` as `(D, N H)`, `(N, H, D)` as `(N H, D)`."""
        is_output = kernel.shape[-1] == self._backbone.hidden_dim
        columns = kernel.shape[-1] if is_output else -1
        rows = -1 if is_output else kernel.shape[0]
        return tf.reshape(kernel.value, (rows, columns))

    def _assign(self, memory):
        tf.nest.map_structure(_assign, self._holder.memory, memory)


def _assign(variable, value):
    variable.assign(tf.cast(value, variable.dtype))
