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


class SegmentReader:
    """Reads text segment by segment and never projects the past twice.

    Keeps, in variables of each replica, the projected keys and values of the
    last M tokens of every row, and the projected positions; of an LSTM, its
    state. A segment costs the projections of its own T tokens, where
    `TransformerXLBackbone` called with a `Memory` projects M + T. The hidden
    states are the same.

    Reading and remembering are two steps, to be compiled apart: in one program
    XLA would copy all of the memory rather than write the new entries in
    place. `compile` is for functions that read one token of one row at a time.

    Args:
        backbone: `TransformerXLBackbone` or `LSTMBackbone`.
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
        remember(entries)
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

        def project_memory():
            memory = backbone.initial_memory(batch_size, memory_length)
            return backbone.project_memory(memory)

        # In a holder that neither Keras nor tf.train.Checkpoint looks into.
        self._holder = types.SimpleNamespace(
            memory=_variables_like(project_memory, batch_size),
            positions=_variables_like(self._project_positions),
        )

    def _project_positions(self):
        return self._backbone.project_positions(self._num_distances)

    @property
    def num_bytes(self):
        """Integer, the size of memory and positions on one replica."""
        return sum(
            math.prod(variable.shape) * variable.dtype.size
            for variable in tf.nest.flatten(vars(self._holder))
        )

    def begin(self):
        """Forgets all rows, and takes the weights as they are now."""
        _assign(self._holder.positions, self._project_positions())
        memory = tf.nest.map_structure(
            lambda variable, row: tf.broadcast_to(row, variable.shape),
            self._holder.memory,
            self._empty_row(),
        )
        _assign(self._holder.memory, memory)

    def _empty_row(self):
        return self._backbone.empty_projected_memory(self._memory_length)

    def reset_rows(self, reset):
        """Forgets rows where a document or a stream begins.

        Args:
            reset: Boolean tensor `(B,)`.
        """

        def forget():
            memory = self.memory().reset_rows(reset, self._empty_row())
            _assign(self._holder.memory, memory)

        # It goes over all of the memory, and is rare. That entries are not
        # valid is not enough: a NaN among them would stay one.
        tf.cond(tf.reduce_any(reset), forget, lambda: None)

    def memory(self):
        """Returns the memory as a value, such as a `ProjectedMemory`."""
        return self._read_variables(self._holder.memory)

    def _read_variables(self, variables):
        def read(variable):
            value = variable.read_value()
            if value.dtype.is_floating:
                value = tf.cast(value, self._backbone.compute_dtype)
            return value

        return tf.nest.map_structure(read, variables)

    def read(self, token_ids):
        """Reads a segment, and remembers none of it yet.

        Args:
            token_ids: Integer tensor of shape `(B, T)`.

        Returns:
            The pair of hidden states `(B, T, D)` and the entries for
            `remember`: L keys and L values `(B, N, T, H)`, or the 2 L states
            `(B, T, D)` of an LSTM.

        Raises:
            ValueError: If T is more than `segment_length`.
        """
        if (token_ids.shape[1] or 0) > self._segment_length:
            raise ValueError(
                "`token_ids` must have a shape (B, T) with T at most "
                f"segment_length={self._segment_length}. Received: shape "
                f"{token_ids.shape}"
            )
        positions = self._read_variables(self._holder.positions)
        hidden, *entries = self._backbone.call_projected(
            token_ids, self.memory(), positions
        )
        return hidden, tuple(entries)

    def remember(self, entries, lengths=None):
        """Keeps what `read` returned.

        Args:
            entries: The second of what `read` returned.
            lengths: Optional int32 tensor `(B,)`, how many tokens of a row
                are real, the first ones; by default all.
        """
        memory = self.memory().append(*entries, lengths=lengths)
        _assign(self._holder.memory, memory)

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


def _variables_like(function, batch_size=None):
    """Returns variables of zeros for what a function of no tensors returns."""

    def variable(spec):
        # Without entries Keras loses sight of the batch.
        shape = (spec.shape[0] or batch_size, *spec.shape[1:])
        return replica_variable(shape, spec.dtype.name)

    outputs = tf.function(function).get_concrete_function().structured_outputs
    return tf.nest.map_structure(variable, outputs)


def _assign(variables, values):
    tf.nest.map_structure(
        lambda variable, value: variable.assign(tf.cast(value, variable.dtype)),
        variables,
        values,
    )
