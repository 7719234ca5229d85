"""Reads segments for inference, with cached keys and values."""

import math
import threading
import types
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops
from keras import tree

from txl_keras.backend import ON_TENSORFLOW
from txl_keras.backend import tf
from txl_keras.checks import check_integer
from txl_keras.compilation import compile_layers
from txl_keras.compilation import compile_stateful
from txl_keras.compilation import specs_of
from txl_keras.layers.memory import Memory
from txl_keras.layers.memory import assign_variables
from txl_keras.layers.memory import check_memory_length
from txl_keras.layers.memory import choose_rows
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

    `read_texts` reads texts of different lengths. If you call `read` and
    `remember` yourself, compile them separately: in one program XLA would copy
    the whole memory instead of writing the new entries in place. `compile` is
    for functions that read one token per row at a time.

    Args:
        backbone: `TransformerXLBackbone` or `LSTMBackbone`.
        batch_size: Integer `B`, the rows of one replica. With `None`, each call
            of `begin`, outside of graphs, gives their number.
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
    texts = [range(20), range(9), [5]]
    largest = reader.read_texts(lambda x: tf.reduce_max(x, axis=-1), texts)

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
        batch_size: int | None,
        segment_length: int,
        memory_length: int | None = None,
    ):
        if memory_length is None:
            memory_length = backbone.memory_length
        if batch_size is not None:
            check_integer("batch_size", batch_size, 1)
        check_integer("segment_length", segment_length, 1)
        check_memory_length(memory_length)
        backbone.check_positions(segment_length)
        self._backbone = backbone
        self._batch_size = batch_size
        self._rows = None  # since `begin`
        self._segment_length = segment_length
        self._num_distances = (
            backbone.past_length(memory_length) + segment_length
        )
        self._memory_length = memory_length
        self._programs = {}  # of `read_texts`, by function
        self.lock = threading.Lock()  # of threads that share the memory

        def project():
            memory = backbone.initial_memory(batch_size or 1, memory_length)
            return backbone.project_memory(memory), self._project_positions()

        def variable(spec, *rows):
            shape = (*rows, *spec.shape[len(rows) :])
            dtype = keras.backend.standardize_dtype(spec.dtype)
            return replica_variable(shape, dtype)

        memory, positions = specs_of(project)
        # Neither Keras nor tf.train.Checkpoint tracks the contents of a
        # SimpleNamespace.
        self._holder = types.SimpleNamespace(
            memory=tree.map_structure(
                lambda x: variable(x, batch_size), memory
            ),
            positions=tree.map_structure(variable, positions),
        )

    def _project_positions(self):
        return self._backbone.project_positions(self._num_distances)

    @property
    def num_bytes(self) -> int:
        """Returns the size of memory and positions on one replica."""
        return bytes_of(self._state(), self._batch_size or self._rows or 0)

    def begin(
        self, memory: Memory | None = None, rows: int | None = None
    ) -> None:
        """Projects positions, and a memory, with the current weights.

        Args:
            memory: Optional `Memory` of B rows and M entries, as
                `backbone.initial_memory` and calls of the backbone return; by
                default all rows are reset.
            rows: Optional integer `B`, required without `memory` and
                `batch_size`.
        """
        if rows is not None:
            check_integer("rows", rows, 1)
        of_memory = None
        if memory is not None:
            memory = self._backbone.project_memory(memory)
            of_memory = tree.flatten(memory)[0].shape[0]
        sizes = {self._batch_size, rows, of_memory} - {None}
        if len(sizes) != 1:
            raise ValueError(
                "`batch_size` of the reader, `rows` and the rows of `memory` "
                "must be the same number, and one must be given. Received: "
                f"batch_size={self._batch_size}, rows={rows}, {of_memory} rows "
                "of `memory`"
            )
        (self._rows,) = sizes
        assign_variables(self._holder.positions, self._project_positions())
        if memory is None:
            memory = tree.map_structure(
                lambda x, row: ops.broadcast_to(
                    row, (self._rows, *x.shape[1:])
                ),
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
            memory = choose_rows(reset, self._empty_row(), self.memory())
            assign_variables(self._holder.memory, memory)

        # Conditional, since resets are rare and rewrite the whole memory.
        # Masking the entries is not enough: zero times NaN is NaN.
        if ON_TENSORFLOW:
            tf.cond(tf.reduce_any(reset), forget, lambda: None)
        elif ops.any(reset):
            forget()

    def reorder_rows(self, rows: Tensor) -> None:
        """Replaces the memory of each row by another row's, for beam search.

        Args:
            rows: int32 tensor `(B,)`. Row r continues from the memory of row
                `rows[r]`.
        """
        memory = tree.map_structure(
            lambda state: ops.take(state, rows, axis=0), self.memory()
        )
        assign_variables(self._holder.memory, memory)

    def memory(self) -> Any:
        """Returns the memory as a value, such as a `ProjectedMemory`."""
        dtype = self._backbone.compute_dtype
        return read_variables(self._holder.memory, dtype)

    def read(self, token_ids: Tensor) -> tuple[Tensor, Any]:
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

    def read_texts(self, function: Callable | None, *texts: Sequence) -> list:
        """Reads texts of different lengths, segment by segment.

        Each text continues from the memory of its row. Calls with the same
        function reuse compiled functions.

        Args:
            function: Function of the hidden states of a segment `(B, T, D)`
                and of the other integers of `texts`, `(B, T)`, that returns a
                tensor `(B, T, ...)`. `None` only remembers the texts, with one
                graph for segments of any length that XLA does not compile.
            *texts: List of at most B integer sequences `(P,)`, the token ids;
                then, for `function`, lists of sequences of the same lengths,
                such as targets.

        Returns:
            List of arrays `(P, ...)`, one per text, with the results of
            `function`; empty without a function.
        """
        if function not in self._programs:
            self._programs[function] = self.compile_segments(function)
        read, segment_length = self._programs[function], self._segment_length
        if not 1 <= len(texts[0]) <= (self._rows or 0):
            raise ValueError(
                "`texts` must be from 1 to as many texts as the reader has "
                f"rows since `begin`, {self._rows}. Received: {len(texts[0])} "
                "texts"
            )
        missing = [[]] * (self._rows - len(texts[0]))
        texts = [[*rows, *missing] for rows in texts]
        lengths = np.array([*map(len, texts[0])], np.int32)
        # A result for zero tokens needs a shape, too.
        width = int(max(lengths.max(), function is not None))
        if function is not None and self._backbone.remembers:
            # One shape for XLA. With absolute positions padding would count.
            width += -width % segment_length
        padded = [
            keras.utils.pad_sequences(rows, width, padding="post")
            for rows in texts
        ]
        results = []
        for start in range(0, width, segment_length):
            parts = [x[:, start : start + segment_length] for x in padded]
            counts = np.clip(lengths - start, 0, parts[0].shape[1])
            results.append(read(*map(ops.convert_to_tensor, (counts, *parts))))
        if function is None:
            return []
        results = np.concatenate([*map(ops.convert_to_numpy, results)], axis=1)
        rows = zip(results, lengths, strict=True)
        return [x[:n] for x, n in rows][: len(texts[0]) - len(missing)]

    def compile_segments(self, function: Callable | None) -> Callable:
        """Compiles reading and remembering of a segment.

        Args:
            function: See `read_texts`.

        Returns:
            Function of `lengths` as in `remember`, of token ids, and of the
            other arguments of `function`. It returns the result of `function`.
        """
        if not ON_TENSORFLOW:

            def read_and_remember(lengths, *segment):
                hidden, entries = self.read(segment[0])
                self.remember(entries, lengths)
                return function and function(hidden, *segment[1:])

            return self._compile_stateful(read_and_remember)
        if function is None:
            lengths = tf.TensorSpec((self._batch_size,), tf.int32)
            token_ids = tf.TensorSpec((self._batch_size, None), tf.int32)
            return tf.function(
                lambda lengths, ids: self.remember(self.read(ids)[1], lengths),
                input_signature=[lengths, token_ids],
                autograph=False,
            )

        def compute(token_ids, *others):
            hidden, entries = self.read(token_ids)
            return function(hidden, *others), entries

        def read(lengths, *segment):
            result, entries = compute(*segment)
            remember(entries, lengths)
            return result

        strategy = tf.distribute.get_strategy()
        compute = compile_layers(compute, strategy, self._backbone)
        remember = compile_layers(self.remember, strategy)
        return read

    def _state(self):
        """Returns the variables of memory and positions."""
        return tree.flatten((self._holder.memory, self._holder.positions))

    def _compile_stateful(self, function):
        models = [self._backbone, *self._backbone.owners]
        weights = {id(w): w for model in models for w in model.weights}
        return compile_stateful(function, [*weights.values()], self._state())

    def compile(self, function: Callable) -> Callable:
        """Compiles a function that reads single tokens, with XLA.

        XLA multiplies a vector by a matrix at full memory bandwidth only if the
        matrix is an argument of the compiled function. Attention kernels have
        three axes; XLA would fuse their reshape into a matmul that is five
        times slower. So they are reshaped before the function is called.

        Args:
            function: Function of tensors that calls `read`. XLA compiles it for
                each of their shapes.

        Returns:
            `tf.function`.
        """
        if not ON_TENSORFLOW:
            return self._compile_stateful(function)
        kernels = [w for w in self._backbone.weights if len(w.shape) == 3]

        # AutoGraph would spend seconds on converting the functions called here.
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


def bytes_of(variables, rows=0):
    """Returns the size of variables; some have `rows` where none are set."""
    return sum(
        math.prod(rows if size is None else size for size in variable.shape)
        * np.dtype(keras.backend.standardize_dtype(variable.dtype)).itemsize
        for variable in variables
    )


def as_float32(hidden):
    """Casts hidden states to float32, for `SegmentReader.read_texts`."""
    return ops.cast(hidden, "float32")
