"""A reader of segments for inference, with cached keys and values.

Letters: `B` batch, `T` segment, `M` memory, `D` hidden size, `N` heads, `H`
head size, `L` layers.
"""

import math
import types
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.compilation import compile_layers
from txl_keras.layers.memory import Memory
from txl_keras.layers.memory import assign_variables
from txl_keras.layers.memory import check_memory_length
from txl_keras.layers.memory import read_variables
from txl_keras.layers.memory import replica_variable
from txl_keras.types import Tensor


class SegmentReader:
    """Reads text segment by segment and projects every token once.

    Caches the projected keys and values of the last M tokens of every row, and
    the projected positions, in variables of each replica. For an LSTM it keeps
    the state. A segment costs the projections of its own T tokens, whereas
    `TransformerXLBackbone` called with a `Memory` projects M + T. The hidden
    states are the same. The weights must not change after `begin`.

    Compile `read` and `remember` separately: in one program XLA would copy the
    whole memory instead of writing the new entries in place. `compile` is for
    functions that read one token of one row at a time.

    Args:
        backbone: `TransformerXLBackbone` or `LSTMBackbone`.
        batch_size: Integer `B`, the rows of one replica.
        segment_length: Integer, the longest segment `T` that will be read.
        memory_length: Optional integer `M`; by default
            `backbone.memory_length`.

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
        self,
        backbone: keras.Model,
        batch_size: int,
        segment_length: int,
        memory_length: int | None = None,
    ):
        if memory_length is None:
            memory_length = backbone.memory_length
        check_integer("batch_size", batch_size, 1)
        check_integer("segment_length", segment_length, 1)
        check_memory_length(memory_length)
        backbone.check_positions(segment_length)
        self._backbone = backbone
        self._segment_length = segment_length
        self._num_distances = (
            backbone.past_length(memory_length) + segment_length
        )
        self._memory_length = memory_length

        def project_memory():
            memory = backbone.initial_memory(batch_size, memory_length)
            return backbone.project_memory(memory)

        # Neither Keras nor tf.train.Checkpoint tracks what is in a
        # SimpleNamespace.
        self._holder = types.SimpleNamespace(
            memory=_variables_like(project_memory, batch_size),
            positions=_variables_like(self._project_positions),
        )

    def _project_positions(self):
        return self._backbone.project_positions(self._num_distances)

    @property
    def num_bytes(self) -> int:
        """Returns the size of memory and positions on one replica."""
        return sum(
            math.prod(variable.shape) * variable.dtype.size
            for variable in tf.nest.flatten(vars(self._holder))
        )

    def begin(self, memory: Memory | None = None) -> None:
        """Projects positions, and a memory, with the current weights.

        Args:
            memory: Optional `Memory` of B rows and M entries, as
                `backbone.initial_memory` and calls of the backbone return; by
                default all rows are reset.
        """
        assign_variables(self._holder.positions, self._project_positions())
        if memory is not None:
            memory = self._backbone.project_memory(memory)
        else:
            memory = tf.nest.map_structure(
                lambda variable, row: tf.broadcast_to(row, variable.shape),
                self._holder.memory,
                self._empty_row(),
            )
        assign_variables(self._holder.memory, memory)

    def _empty_row(self):
        return self._backbone.empty_projected_memory(self._memory_length)

    def reset_rows(self, reset: Tensor) -> None:
        """Resets the memory of rows where a document or a stream begins.

        Args:
            reset: Boolean tensor `(B,)`.
        """

        def forget():
            memory = self.memory().reset_rows(reset, self._empty_row())
            assign_variables(self._holder.memory, memory)

        # Conditional, since resets are rare and rewrite the whole memory.
        # Masking the entries is not enough: zero times a NaN is a NaN.
        tf.cond(tf.reduce_any(reset), forget, lambda: None)

    def reorder_rows(self, rows: Tensor) -> None:
        """Replaces the memory of each row by that of another, for beam search.

        Args:
            rows: int32 tensor `(B,)`. Row r continues from what row `rows[r]`
                remembers.
        """
        memory = tf.nest.map_structure(
            lambda state: tf.gather(state, rows), self.memory()
        )
        assign_variables(self._holder.memory, memory)

    def memory(self) -> Any:
        """Returns the memory as a value, such as a `ProjectedMemory`."""
        dtype = self._backbone.compute_dtype
        return read_variables(self._holder.memory, dtype)

    def read(self, token_ids: Tensor) -> bytes:
        """Reads a segment without changing the memory.

        Args:
            token_ids: Integer tensor of shape `(B, T)`; or floats
                `(B, T, D)`, the `embeddings` of a `TransformerXLBackbone`.

        Returns:
            The pair of hidden states `(B, T, D)` and the entries to pass to
            `remember`: L keys and L values `(B, N, T, H)`, or for an LSTM its
            2 L states `(B, T, D)`.
        """
        if (token_ids.shape[1] or 0) > self._segment_length:
            raise ValueError(
                "`token_ids` must have a shape (B, T) with T at most "
                f"segment_length={self._segment_length}. Received: shape "
                f"{token_ids.shape}"
            )
        dtype = self._backbone.compute_dtype
        positions = read_variables(self._holder.positions, dtype)
        hidden, *entries = self._backbone.call_projected(
            token_ids, self.memory(), positions
        )
        return hidden, tuple(entries)

    def remember(self, entries: Any, lengths: Tensor | None = None) -> None:
        """Appends the entries of a segment to the memory.

        Args:
            entries: The second value that `read` returned.
            lengths: Optional int32 tensor `(B,)`, the number of real tokens at
                the start of each row; the others are padding. By default all.
        """
        memory = self._backbone.append(self.memory(), entries, lengths)
        assign_variables(self._holder.memory, memory)

    def compile(self, function: Callable) -> Callable:
        """Compiles a function that reads single tokens, with XLA.

        XLA multiplies a vector by a matrix at full memory bandwidth only if the
        matrix is an argument of the compiled function. It would fuse the
        reshape of attention's kernels, of three axes, into a matmul that is
        five times slower. So they are reshaped before the function is called.

        Args:
            function: Function of tensors with static shapes that calls `read`.

        Returns:
            `tf.function`.
        """
        kernels = [w for w in self._backbone.weights if len(w.shape) == 3]

        # AutoGraph would spend seconds converting what is called from here.
        @tf.function(jit_compile=True, autograph=False)
        def compiled(matrices, *args):
            values = [
                (kernel, tf.reshape(matrix, kernel.shape))
                for kernel, matrix in zip(kernels, matrices, strict=True)
            ]
            with keras.StatelessScope(state_mapping=values):
                return function(*args)

        @tf.function(autograph=False)
        def call(*args):
            return compiled([*map(self._as_matrix, kernels)], *args)

        return call

    def _as_matrix(self, kernel):
        """Reshapes `(D, N, H)` to `(D, N H)`, and `(N, H, D)` to `(N H, D)`."""
        is_output = kernel.shape[-1] == self._backbone.hidden_dim
        columns = kernel.shape[-1] if is_output else -1
        rows = -1 if is_output else kernel.shape[0]
        return tf.reshape(kernel.value, (rows, columns))


def compile_segments(reader, model, answer):
    """Returns `read(token_ids, *args, lengths)`: `answer(hidden, *args)`."""
    strategy = tf.distribute.get_strategy()

    def compute(token_ids, *args):
        hidden, entries = reader.read(token_ids)
        return answer(hidden, *args), entries

    compute = compile_layers(compute, strategy, model, training=False)
    remember = compile_layers(reader.remember, strategy)

    def read(token_ids, *args, lengths=None):
        result, entries = compute(token_ids, *args)
        remember(entries, lengths)
        return result

    return read


def padded_segment(texts, start, num_rows, length):
    """Returns ids of texts from `start` on, padded, and how many, `(B,)`."""
    ids = np.zeros((num_rows, length), np.int32)
    counts = np.zeros(num_rows, np.int32)
    for row, text in enumerate(texts):
        part = text[start : start + length]
        counts[row] = len(part)
        ids[row, : len(part)] = part
    return tf.constant(ids), tf.constant(counts)


def _variables_like(function, batch_size=None):
    """Creates zero variables with the shapes that `function()` returns."""

    def variable(spec):
        # With M = 0 the static batch size is lost in Keras operations.
        shape = (spec.shape[0] or batch_size, *spec.shape[1:])
        return replica_variable(shape, spec.dtype.name)

    traced = tf.function(function, autograph=False).get_concrete_function()
    return tf.nest.map_structure(variable, traced.structured_outputs)
