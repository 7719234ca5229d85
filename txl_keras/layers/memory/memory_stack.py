"""Memory: the hidden states of earlier segments.

Letters: `B` batch, `T` segment, `M` memory, `D` hidden size, `L` layers.
"""

import collections
import inspect
import sys
import types

import keras
import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.checks import check_shape
from txl_keras.checks import check_shape_in_graph

COLD_STARTS = ("masked", "zeros")


class Memory(collections.namedtuple("Memory", ["states", "valid_length"])):
    """The memory of a model, as a value.

    Attributes:
        states: Tuple of L tensors `(B, M, D)`: the last M inputs of every
            block, oldest first.
        valid_length: int32 tensor `(B,)`. Only the newest `valid_length`
            entries of a row are real; those before them are masked.
    """

    __slots__ = ()

    @property
    def length(self):
        """M, an integer where it is static."""
        static = self.states[0].shape[1]
        return tf.shape(self.states[0])[1] if static is None else static

    def mask(self):
        """Boolean `(B, M)`, true where an entry is real."""
        return (
            tf.range(self.length)[None, :]
            >= self.length - self.valid_length[:, None]
        )

    def reset_rows(self, reset, cold_start="masked"):
        """Forgets rows where a document or a stream begins.

        Args:
            reset: Boolean tensor `(B,)`.
            cold_start: See `MemoryStack`.

        Returns:
            `Memory` of the same shapes.
        """
        if cold_start == "masked":
            return self._replace(
                valid_length=tf.where(reset, 0, self.valid_length)
            )
        states = tuple(
            tf.where(reset[:, None, None], tf.zeros((), state.dtype), state)
            for state in self.states
        )
        return Memory(states, tf.where(reset, self.length, self.valid_length))

    def extend(self, hidden_states):
        """Appends a segment and keeps the last M entries, gradient stopped.

        Section 3.2 of Dai et al., 2019: the memory of the next segment is
        `SG(last M of [memory, hidden states])`.

        Args:
            hidden_states: L tensors `(B, T, D)`, the inputs of every block.

        Returns:
            `Memory` of the same shapes.
        """
        length = tf.shape(hidden_states[0])[1]
        states = tuple(
            _keep_last(state, hidden, self.length)
            for state, hidden in zip(self.states, hidden_states, strict=True)
        )
        valid_length = tf.minimum(self.valid_length + length, self.length)
        return Memory(states, valid_length)


def _keep_last(state, hidden, length):
    hidden = tf.cast(tf.stop_gradient(hidden), state.dtype)
    together = tf.concat([state, hidden], axis=1)  # [B, M + T, D]
    # From the front: `[-M:]` would keep everything when M is 0.
    kept = together[:, tf.shape(together)[1] - length :]
    return tf.ensure_shape(kept, state.shape)


def initial_memory(
    num_layers,
    batch_size,
    memory_length,
    hidden_dim,
    cold_start="masked",
    dtype="float32",
):
    """Memory before anything was read.

    Args:
        num_layers, batch_size, memory_length, hidden_dim: `L`, `B`, `M`, `D`.
        cold_start: See `MemoryStack`.
        dtype: Of the states.

    Returns:
        `Memory` of zeros.
    """
    _check_cold_start(cold_start)
    if not tf.is_tensor(batch_size):
        check_integer("batch_size", batch_size, 0)
    check_memory_length(memory_length)
    zeros = tf.zeros((batch_size, memory_length, hidden_dim), dtype)
    valid_length = memory_length if cold_start == "zeros" else 0
    return Memory((zeros,) * num_layers, tf.fill((batch_size,), valid_length))


@keras.saving.register_keras_serializable(package="txl_keras")
class MemoryStack(keras.layers.Layer):
    """The only owner of memory: one variable `(B, M, D)` a block.

    Called with the input of a block, it hands back what the block remembers
    and keeps the last M entries of both for the next call, gradient stopped
    (section 3.2 of Dai et al., 2019). A model that runs all blocks as one
    function uses `read` and `write` instead.

    Row r of a batch goes on where row r of the batch before ended, so `fit`
    needs `shuffle=False`, and memory must be forgotten where a text is read
    from its beginning: pass `callbacks=[txl_keras.callbacks.ResetMemory()]` to
    `fit`, `evaluate` and `predict`, or call `reset_state`.

    The variables are local to a replica and no part of the weights: neither
    `save_weights` nor `model.weights` knows them, so a model may train with
    one batch size and memory length and serve with others.

    Args:
        num_layers: Integer `L`.
        batch_size: Integer `B`, the rows of one replica; `None` lets the
            memory grow with the rows it meets, and a batch of fewer rows goes
            on with the first ones.
        memory_length: Integer `M`.
        hidden_dim: Integer `D`.
        cold_start: `"masked"`: entries not yet written get no attention.
            `"zeros"`: they are attended to as zeros, as the original
            TensorFlow code does and its checkpoints expect.

    Call arguments:
        inputs: Tensor of shape `(B, T, D)`, the input of block `layer`.
        layer: Integer, which block; may be left out where there is but one.

    Returns:
        The pair `(memory, memory_mask)` of shapes `(B, M, D)` and `(B, M)`,
        as they were before `inputs`.

    Raises:
        ValueError: On an unknown `cold_start`, sizes that are negative, inputs
            of another shape, a `layer` that is not there, or in a `fit` that
            shuffles.

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
        num_layers,
        batch_size,
        memory_length,
        hidden_dim,
        cold_start="masked",
        **kwargs,
    ):
        super().__init__(**kwargs)
        _check_cold_start(cold_start)
        check_integer("num_layers", num_layers, 1)
        if batch_size is not None:
            check_integer("batch_size", batch_size, 1)
        check_memory_length(memory_length)
        check_integer("hidden_dim", hidden_dim, 1)
        self.num_layers = num_layers
        self.batch_size = batch_size
        self.memory_length = memory_length
        self.hidden_dim = hidden_dim
        self.cold_start = cold_start
        # XLA lets no variable change its shape.
        self.supports_jit = batch_size is not None
        self.built = True
        # In a holder that neither Keras nor tf.train.Checkpoint looks into:
        # they would store the memory of the first replica as if it were all.
        self._holder = types.SimpleNamespace(
            states=[
                replica_variable(
                    (batch_size, memory_length, hidden_dim), self.compute_dtype
                )
                for _ in range(num_layers)
            ],
            # One count a block, so that blocks can be called one by one.
            valid_lengths=[
                replica_variable((batch_size,), "int32")
                for _ in range(num_layers)
            ],
        )
        self.reset_state()

    @property
    def state_variables(self):
        """All variables, states first: for checkpoints, never for training."""
        return self._holder.states + self._holder.valid_lengths

    def call(self, inputs, layer=None):
        layer = self._checked_layer(layer)
        check_shape("inputs", inputs, (None, None, self.hidden_dim))
        check_batches(self.batch_size)
        inputs = self._check_batch_size(inputs)
        rows = tf.shape(inputs)[0] if self.batch_size is None else None
        # After the check, as all that is made of it.
        with tf.control_dependencies([inputs]):
            before = self._read_layer(layer, rows)
        self._write_layer(layer, before.extend([inputs]), rows)
        return before.states[0], before.mask()

    def read(self, rows=None):
        """The memory of all blocks.

        Args:
            rows: Number of rows to read; by default all.

        Returns:
            `Memory`.
        """
        layers = [self._read_layer(i, rows) for i in range(self.num_layers)]
        states = tuple(memory.states[0] for memory in layers)
        return Memory(states, layers[0].valid_length)

    def write(self, memory):
        """Keeps a `Memory`, for its rows.

        Args:
            memory: `Memory` of L states `(B, M, D)`.
        """
        rows = tf.shape(memory.valid_length)[0]
        for layer, state in enumerate(memory.states):
            layer_memory = Memory((state,), memory.valid_length)
            self._write_layer(layer, layer_memory, rows)

    def reset_state(self):
        """Forgets everything."""
        empty = self._empty(self.batch_size or 0)
        for state in self._holder.states:
            state.assign(tf.cast(empty.states[0], state.dtype))
        for valid_length in self._holder.valid_lengths:
            valid_length.assign(empty.valid_length)

    def _checked_layer(self, layer):
        if layer is None and self.num_layers > 1:
            raise ValueError(
                "`layer` must say of which block `inputs` are, an integer "
                f"below num_layers={self.num_layers}: the memory of another "
                "would hold this very segment. Received: layer=None"
            )
        layer = 0 if layer is None else layer
        return check_integer("layer", layer, 0, self.num_layers - 1)

    def _empty(self, rows):
        """Memory of one block at a cold start."""
        return initial_memory(
            1,
            rows,
            self.memory_length,
            self.hidden_dim,
            self.cold_start,
            self.compute_dtype,
        )

    def _check_batch_size(self, inputs):
        if self.batch_size is None:
            return inputs
        remedy = _remedy(self.batch_size)
        if inputs.shape[0] not in (None, self.batch_size):
            raise ValueError(
                "`inputs` must have the batch size of the memory, "
                f"{self.batch_size}. Received: inputs.shape="
                f"{inputs.shape}. {remedy}"
            )
        expected = (self.batch_size, None, self.hidden_dim)
        return check_shape_in_graph("inputs", inputs, expected, remedy=remedy)

    def _read_layer(self, layer, rows):
        state = tf.cast(
            self._holder.states[layer].read_value(), self.compute_dtype
        )
        valid_length = self._holder.valid_lengths[layer].read_value()
        if self.batch_size is None and rows is not None:
            new = self._empty(tf.maximum(rows - tf.shape(state)[0], 0))
            state = tf.concat([state, new.states[0]], axis=0)[:rows]
            valid_length = tf.concat([valid_length, new.valid_length], axis=0)
            valid_length = valid_length[:rows]
        return Memory((state,), valid_length)

    def _write_layer(self, layer, memory, rows):
        for variable, value in (
            (self._holder.states[layer], memory.states[0]),
            (self._holder.valid_lengths[layer], memory.valid_length),
        ):
            value = tf.cast(value, variable.dtype)
            if self.batch_size is None:
                value = tf.concat([value, variable[rows:]], axis=0)
            variable.assign(value)

    def compute_output_spec(self, inputs, layer=None):
        self._checked_layer(layer)
        batch = self.batch_size or inputs.shape[0]
        return (
            keras.KerasTensor(
                (batch, self.memory_length, self.hidden_dim),
                dtype=self.compute_dtype,
            ),
            keras.KerasTensor((batch, self.memory_length), dtype="bool"),
        )

    def get_config(self):
        return {
            **super().get_config(),
            "num_layers": self.num_layers,
            "batch_size": self.batch_size,
            "memory_length": self.memory_length,
            "hidden_dim": self.hidden_dim,
            "cold_start": self.cold_start,
        }


_LOOPS = {
    inspect.unwrap(loop).__code__
    for loop in (keras.Model.fit, keras.Model.evaluate, keras.Model.predict)
}


def check_batches(batch_size=None):
    """Checks the batches of the `fit`, `evaluate` or `predict` that runs.

    Neither layers nor callbacks are told: its frame on the stack is asked.

    Args:
        batch_size: Optional integer, the only one that there may be.

    Raises:
        ValueError: If `fit` shuffles samples, or a batch has fewer rows.
    """
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code in _LOOPS:
            adapter = frame.f_locals["epoch_iterator"].data_adapter
            # Of arrays and of `PyDataset`; a `tf.data.Dataset` has neither.
            shuffle = getattr(adapter, "_shuffle", False)
            if shuffle or getattr(adapter, "shuffle", False):
                raise ValueError(
                    "`shuffle` must be False to `fit` a model that keeps "
                    "memory: row r of a batch goes on where row r of the "
                    "batch before ended. A model that was not built before has "
                    "to be compiled again first. Received: shuffle=True, which "
                    "is the default of Keras"
                )
            if batch_size is not None and adapter.has_partial_batch:
                raise ValueError(
                    "The number of samples must be a multiple of `batch_size`. "
                    f"{_remedy(batch_size)} Received: a last batch of "
                    f"{adapter.partial_batch_size}"
                )
        frame = frame.f_back


def _remedy(batch_size):
    return (
        f"The memory was made with batch_size={batch_size}. Pass as many "
        "samples as a multiple of it, batch with `drop_remainder=True`, or "
        "make the memory with batch_size=None."
    )


def check_memory_length(memory_length):
    """Returns a memory length; raises `ValueError` unless int32 can hold it."""
    return check_integer("memory_length", memory_length, 0, 2**31 - 1)


def _check_cold_start(cold_start):
    if cold_start not in COLD_STARTS:
        raise ValueError(
            f"`cold_start` must be one of {COLD_STARTS}. "
            f"Received: cold_start={cold_start!r}"
        )


def replica_variable(shape, dtype):
    """A variable of zeros with a value of its own on each replica.

    Args:
        shape: Tuple of integers; `None` where a size may change.
        dtype: Of its values. Where a strategy cannot store it (workers cannot
            send each other bfloat16, which they do to begin with equal
            values) it is float32, which holds them exactly: cast what is read
            and what is assigned.

    Returns:
        `tf.Variable`, not trainable.
    """
    strategy = tf.distribute.get_strategy()
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        dtype = "float32" if dtype == "bfloat16" else dtype
    return tf.Variable(
        tf.zeros([size or 0 for size in shape], dtype),
        shape=tf.TensorShape(shape),
        trainable=False,
        # Each replica has rows of its own; ON_WRITE variables promise
        # TensorFlow that all replicas hold the same.
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
