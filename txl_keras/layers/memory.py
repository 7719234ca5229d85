"""Memory of hidden states, section 3.2 of the paper."""

import collections
import contextlib
import types
from collections.abc import Sequence
from typing import Any
from typing import Self

import keras
from keras import ops
from keras import tree

from txl_keras.backend import ON_TENSORFLOW
from txl_keras.backend import tf
from txl_keras.checks import check_integer
from txl_keras.checks import check_mask
from txl_keras.checks import check_one_of
from txl_keras.checks import check_shape
from txl_keras.checks import check_shape_in_graph
from txl_keras.keras_internals import GrowingVariable
from txl_keras.layers.config import ConfiguredLayer
from txl_keras.types import Tensor

COLD_STARTS = ("masked", "zeros")


class Memory(collections.namedtuple("Memory", ["states", "valid_length"])):
    """Holds the memory of a model as immutable tensors.

    Attributes:
        states: Tuple of L tensors `(B, M, D)`: the last M inputs (or outputs)
            of every block, oldest first.
        valid_length: int32 tensor `(B,)`. Only the newest `valid_length`
            entries of a row are real. The entries before them are masked.
    """

    __slots__ = ()

    @property
    def length(self) -> int:
        """Returns the length M of the states."""
        return ops.shape(self.states[0])[1]

    def mask(self) -> Tensor:
        """Returns a boolean tensor `(B, length)`, true for real entries."""
        return (
            ops.arange(self.length)[None, :]
            >= self.length - self.valid_length[:, None]
        )

    def reset_rows(self, reset: Tensor, cold_start: str = "masked") -> Self:
        """Clears the memory of rows in which a new document or text begins.

        Args:
            reset: Boolean tensor `(B,)`.
            cold_start: See `MemoryStack`.

        Returns:
            `Memory` of the same shapes.
        """
        # Also where a mask hides the old states, so that a row forgets NaN.
        empty = tree.map_structure(lambda x: ops.zeros((), x.dtype), self)
        if cold_start == "zeros":
            empty = empty._replace(valid_length=self.length)
        return choose_rows(reset, empty, self)

    def extend(
        self, hidden_states: Sequence[Tensor], lengths: Tensor | None = None
    ) -> Self:
        """Appends a segment and keeps the last M entries.

        No gradient flows into memory: with `SG` for `stop_gradient`, it is
        `SG(last M of [memory, hidden states])` (Dai et al., 2019, section 3.2).

        Args:
            hidden_states: L tensors `(B, T, D)`, which every block remembers:
                its inputs or its outputs.
            lengths: Optional int32 tensor `(B,)`, the number of real entries
                per row. The rest is padding at the end and not remembered.

        Returns:
            `Memory` of the same shapes.
        """
        states = tuple(
            keep_last(state, hidden, self.length, lengths)
            for state, hidden in zip(self.states, hidden_states, strict=True)
        )
        added = ops.shape(hidden_states[0])[1] if lengths is None else lengths
        valid_length = ops.minimum(self.valid_length + added, self.length)
        return Memory(states, valid_length)


def keep_last(state, hidden, length, lengths):
    """Appends to a state `(B, M, D)`; returns its last M entries."""
    hidden = ops.stop_gradient(ops.cast(hidden, state.dtype))
    extended = ops.concatenate([state, hidden], axis=1)  # [B, M + T, D]
    if lengths is None:
        kept = extended[:, ops.shape(hidden)[1] :]
    else:
        kept = take_steps(extended, lengths[:, None] + ops.arange(length))
    # If T is unknown, the number of steps to keep is unknown, too.
    return ops.reshape(kept, ops.shape(state))


def take_steps(x, indices):
    """Takes steps of `(B, T, ...)` by their indices `(B, n)` in each row."""
    batch_size, num_steps = ops.shape(x)[:2]
    first = num_steps * ops.arange(batch_size)[:, None]
    rows = ops.reshape(x, (-1, *x.shape[2:]))
    return ops.take(rows, first + indices, axis=0)


def initial_memory(
    num_layers,
    batch_size,
    memory_length,
    hidden_dim,
    cold_start="masked",
    dtype="float32",
):
    """Returns the `Memory` of a cold start: see `MemoryStack`."""
    is_symbol = hasattr(batch_size, "__jax_array__")  # a symbolic size in JAX
    if not is_symbol and not ops.is_tensor(batch_size):
        check_integer("batch_size", batch_size, 0)
    zeros = ops.zeros((batch_size, memory_length, hidden_dim), dtype)
    valid_length = memory_length if cold_start == "zeros" else 0
    lengths = ops.zeros((batch_size,), "int32") + valid_length
    return Memory((zeros,) * num_layers, lengths)


@keras.saving.register_keras_serializable(package="txl_keras")
class MemoryStack(ConfiguredLayer):
    """Stores memory, in one variable `(B, M, D)` per block.

    A call receives the input of a block and returns the block's memory. It then
    appends the input and keeps the last M entries for the next call, with the
    gradient stopped (section 3.2 of Dai et al., 2019). A model that runs all
    blocks in one function uses `read` and `write` instead. No other layer
    stores memory.

    Row r of a batch must continue the text of row r of the previous batch. So
    `fit` needs `shuffle=False`, which nothing checks. Memory must be reset when
    a text starts from its beginning: pass
    `callbacks=[txl_keras.callbacks.ResetMemory()]` to `fit`, `evaluate` and
    `predict`, or call `reset_state`.

    The variables are local to a replica. They are neither in `model.weights`
    nor in the files of `save_weights`, so batch size and memory length may
    differ between training and serving. On backends other than TensorFlow they
    are in `model.variables`, as state that a step takes and returns.

    Args:
        num_layers: Integer `L`.
        batch_size: Integer `B`, the per-replica batch, or `None`. With `None`
            the memory grows to the largest batch, and a smaller batch
            continues the first rows.
        memory_length: Integer `M`.
        hidden_dim: Integer `D`.
        cold_start: `"masked"` or `"zeros"`. With `"masked"`, entries that are
            not yet written are masked. With `"zeros"` they are attended to as
            zeros, as checkpoints of the original TensorFlow code expect.

    Call arguments:
        inputs: Tensor of shape `(B, T, D)`, the input of block `layer`.
        layer: Integer, the index of the block. Optional if there is only one.
        mask: Optional boolean tensor `(B, T)`, by default the mask of
            `keras.layers.Masking`. Masked entries are not remembered.

    Returns:
        Pair `(memory, memory_mask)` of shapes `(B, M, D)` and `(B, M)`, before
        the input is appended.

    Example:

    ```python
    import keras
    from txl_keras.layers import MemoryStack, RelativeMultiHeadAttention

    stack = MemoryStack(1, batch_size=4, memory_length=24, hidden_dim=32)
    segment = keras.Input((16, 32), batch_size=4)
    memory, memory_mask = stack(segment)
    attended = RelativeMultiHeadAttention(num_heads=4, key_dim=8)(
        segment, memory=memory, memory_mask=memory_mask
    )
    model = keras.Model(segment, attended)
    ```
    """

    def __init__(
        self,
        num_layers: int,
        batch_size: int,
        memory_length: int,
        hidden_dim: int,
        cold_start: str = "masked",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_layers = check_integer("num_layers", num_layers, 1)
        if batch_size is not None:
            batch_size = check_integer("batch_size", batch_size, 1)
        self.batch_size = batch_size
        self.memory_length = check_memory_length(memory_length)
        self.hidden_dim = check_integer("hidden_dim", hidden_dim, 1)
        self.cold_start = check_one_of("cold_start", cold_start, COLD_STARTS)
        # With XLA, TensorFlow cannot change the shape of a variable.
        self.supports_jit = batch_size is not None or not ON_TENSORFLOW
        self.built = True
        # Keras and tf.train.Checkpoint do not track a `SimpleNamespace`. They
        # would save the memory of the first replica only. Each block has its
        # own lengths, so that blocks can be called one by one.
        self._holder = types.SimpleNamespace(
            layers=[self._variables() for _ in range(num_layers)]
        )
        if not ON_TENSORFLOW:
            # State, which a step of JAX takes and returns.
            self._states = self.state_variables
        self.reset_state()

    @property
    def state_variables(self) -> list:
        """Returns all variables, states first, for use in checkpoints."""
        parts = zip(*map(tree.flatten, self._holder.layers), strict=True)
        return [variable for part in parts for variable in part]

    def _variables(self):
        """Creates the variables of one block, with the structure of memory."""

        def variable(value):
            shape = (self.batch_size, *value.shape[1:])
            dtype = keras.backend.standardize_dtype(value.dtype)
            return replica_variable(shape, dtype)

        return tree.map_structure(variable, self.initial_memory(1))

    @property
    def weights(self):
        return []  # Memory is in `variables`, as the state of metrics is.

    def save_own_variables(self, store: Any) -> None:
        """Leaves memory out of files."""

    load_own_variables = save_own_variables

    def call(self, inputs, layer=None, mask=None):
        layer = self._checked_layer(layer)
        remedy = self.batch_size and (
            f"The memory was created with batch_size={self.batch_size}. Pass "
            "this `batch_size` and a multiple of it as samples, batch with "
            "`drop_remainder=True`, or create the memory with batch_size=None. "
            "After an error in the first `fit`, call `compile` again."
        )
        expected = self.batch_size, None, self.hidden_dim
        inputs = check_shape_in_graph(
            "inputs", inputs, expected, remedy=remedy or ""
        )
        rows = ops.shape(inputs)[0] if self.batch_size is None else None
        # Memory is read and written only after the check of `inputs`.
        checked = contextlib.nullcontext()
        if ON_TENSORFLOW:
            checked = tf.control_dependencies([inputs])
        with checked:
            before = self._read_layer(layer, rows)
        padding = Padding(check_mask("mask", mask, ops.shape(inputs)[:2]))
        inputs = padding.at_the_end(inputs)
        after = before.extend([inputs], padding.lengths)
        self._write_layer(layer, after, rows)
        return before.states[0], before.mask()

    def read(self, rows: Tensor | None = None) -> Memory:
        """Reads the memory of all blocks.

        Args:
            rows: Optional integer or scalar tensor. With `batch_size=None`,
                the number of rows to read; by default all.

        Returns:
            `Memory` of L states.
        """
        layers = [self._read_layer(i, rows) for i in range(self.num_layers)]
        # Fields with one tensor per block are tuples.
        fields = (
            sum(field, ()) if isinstance(field[0], tuple) else field[0]
            for field in zip(*layers, strict=True)
        )
        return type(layers[0])(*fields)

    def write(self, memory: Any) -> None:
        """Writes the memory of all blocks.

        Args:
            memory: `Memory` of L states `(B, M, D)`. With `batch_size=None`
                it may have fewer rows; the other rows keep their memory.
        """
        rows = ops.shape(memory.valid_length)[0]
        for layer in range(self.num_layers):
            fields = (
                (field[layer],) if isinstance(field, tuple | list) else field
                for field in memory
            )
            self._write_layer(layer, type(memory)(*fields), rows)

    def reset_state(self, rows: int = 0) -> None:
        """Resets all memory to a cold start.

        Args:
            rows: Integer, the initial number of rows if `batch_size` is None.
                JAX compiles a step again when the number grows.
        """
        for variables in self._holder.layers:
            # Separate tensors: JAX cannot use one for two variables.
            assign_variables(
                variables, self.initial_memory(self.batch_size or rows)
            )

    def _checked_layer(self, layer):
        if layer is None and self.num_layers > 1:
            raise ValueError(
                "`layer` must be the index of the block that `inputs` belong "
                f"to, an integer below num_layers={self.num_layers}. "
                "Received: layer=None"
            )
        layer = 0 if layer is None else layer
        return check_integer("layer", layer, 0, self.num_layers - 1)

    def initial_memory(self, rows: int) -> Memory:
        """Returns the memory of one block at a cold start."""
        return initial_memory(
            1,
            rows,
            self.memory_length,
            self.hidden_dim,
            self.cold_start,
            self.compute_dtype,
        )

    def _read_layer(self, layer, rows):
        memory = read_variables(self._holder.layers[layer], self.compute_dtype)
        if self.batch_size is None and rows is not None:
            missing = rows  # on JAX it may be a symbol
            if ON_TENSORFLOW:
                held = tf.shape(memory.valid_length)[0]
                missing = tf.maximum(rows - held, 0)
            memory = tree.map_structure(
                lambda value, new: ops.concatenate([value, new], axis=0)[:rows],
                memory,
                self.initial_memory(missing),
            )
        return memory

    def _write_layer(self, layer, memory, rows):
        def write(variable, value):
            value = ops.cast(value, variable.dtype)
            if self.batch_size is None:
                kept = ops.convert_to_tensor(variable)[rows:]
                value = ops.concatenate([value, kept], axis=0)
            variable.assign(value)

        tree.map_structure(write, self._holder.layers[layer], memory)

    def compute_mask(self, inputs, previous_mask=None):
        return None  # the second output is the mask of the first

    def compute_output_spec(self, inputs, layer=None, mask=None):
        self._checked_layer(layer)
        check_shape("inputs", inputs, (None, None, self.hidden_dim))
        batch = self.batch_size or inputs.shape[0]
        shape = (batch, self.memory_length)
        memory = keras.KerasTensor(
            (*shape, self.hidden_dim), dtype=self.compute_dtype
        )
        return memory, keras.KerasTensor(shape, dtype="bool")


def check_memory_length(memory_length, shortest=0):
    """Checks that a memory length is at least `shortest` and fits in int32."""
    return check_integer("memory_length", memory_length, shortest, 2**31 - 1)


def replica_variable(shape, dtype):
    """Creates a variable of zeros with a separate value on each replica."""
    sizes = [size or 0 for size in shape]
    if not ON_TENSORFLOW:
        variable = GrowingVariable(
            "zeros", sizes, dtype, trainable=False, name="memory"
        )
        variable.grows = shape[0] is None
        return variable
    if dtype == "int32":  # XLA on GPUs finds no variables of int32
        dtype = "int64"
    strategy = tf.distribute.get_strategy()
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        # The initial value is broadcast, which does not support bfloat16. So
        # callers use `read_variables` and `assign_variables`.
        dtype = "float32" if dtype == "bfloat16" else dtype
    return tf.Variable(
        tf.zeros(sizes, dtype),
        shape=tf.TensorShape(shape),
        trainable=False,
        # Replicas have different rows. ON_WRITE variables would have to be
        # equal on all replicas.
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )


def read_variables(variables, dtype):
    """Reads a structure of variables; floats become `dtype`, others int32."""

    def read(variable):
        value = variable.read_value()
        is_float = keras.backend.is_float_dtype(value.dtype)
        return ops.cast(value, dtype if is_float else "int32")

    return tree.map_structure(read, variables)


def assign_variables(variables, values):
    """Assigns a structure of values, cast to the dtypes of the variables."""
    pairs = zip(tree.flatten(variables), tree.flatten(values), strict=True)
    for variable, value in pairs:
        variable.assign(ops.cast(value, variable.dtype))


def choose_rows(chosen, new, old):
    """Returns `new` in chosen rows, boolean `(B,)`, and `old` in the others.

    Both are structures of tensors, or of `None` where `old` has none.
    """

    def choose(new, old):
        if old is None:
            return None
        shape = (-1, *(1 for _ in old.shape[1:]))
        return ops.where(ops.reshape(chosen, shape), new, old)

    return tree.map_structure(choose, new, old)


class Padding:
    """Moves padding to the end of each row of a segment, and back."""

    # `mask` is boolean `(B, T)`, false for padding. `lengths` `(B,)` are the
    # numbers of real steps. Both are `None` without padding.

    def __init__(self, mask):
        self.mask, self.lengths = mask, None
        if mask is None:
            return
        self.lengths = ops.sum(ops.cast(mask, "int32"), axis=1)
        self._order = ops.argsort(ops.cast(~mask, "int32"), axis=1)  # stable

    def at_the_end(self, x):
        if self.mask is None:
            return x
        return take_steps(x, self._order)

    def in_place(self, x):
        if self.mask is None:
            return x
        return take_steps(x, ops.argsort(self._order, axis=1))
