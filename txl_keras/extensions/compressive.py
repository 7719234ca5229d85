"""The Compressive Transformer (Rae et al., 2020).

What leaves the memory of M tokens is compressed by c to one into C older slots.
Blocks attend to `[compressed, memory, segment]`, where a slot counts as one
position.

The paper compresses what a segment pushes out in groups of c, and loses what
fills no group. Then nothing would be compressed where tokens are read one by
one. Here such tokens are pending, in c - 1 places, until they fill a group. A
memory without such places follows the paper.

Letters: `B` batch, `T` segment, `M` memory, `C` compressed slots, `c`
compression rate, `P` places for pending tokens, `G` groups, `D` hidden size,
`N` heads, `H` head size, `L` layers.
"""

import collections
import functools

import keras
import tensorflow as tf
from keras import ops

from txl_keras.checks import check_integer
from txl_keras.checks import check_one_of
from txl_keras.extending import register
from txl_keras.layers.config import ConfiguredLayer
from txl_keras.layers.kv_cache import Past
from txl_keras.layers.kv_cache import ProjectedMemory
from txl_keras.layers.memory import Memory
from txl_keras.layers.memory import MemoryStack
from txl_keras.layers.memory import keep_last
from txl_keras.models.presets import SIZES
from txl_keras.models.transformer_xl_backbone import TransformerXLBackbone
from txl_keras.scripts import options

COMPRESSIONS = ("conv", "dilated_conv", "mean_pool", "max_pool")


__all__ = ["CompressiveBackbone", "CompressiveMemory", "Compression"]


@keras.saving.register_keras_serializable(package="txl_keras")
class Compression(ConfiguredLayer):
    """Compresses c states to one.

    The functions of Rae et al. (2020), section 3.2:

    - `"conv"`: convolution over time with kernel and stride c. It starts as the
      mean of c states.
    - `"dilated_conv"`: its c taps are 2 apart, with c - 1 zeros in front. So
      groups overlap.
    - `"mean_pool"`, `"max_pool"`: mean and maximum of c states.

    Groups are formed from the first state on. The last `S mod c` states are
    lost.

    Args:
        compression: String, one of the functions above.
        rate: Integer `c`, at least 2.

    Call arguments:
        inputs: Tensor of shape `(B, S, D)`, oldest first.
        lengths: Optional int32 tensor `(B,)`, how many states of each row are
            real. The others are at the end. By default all are real.

    Returns:
        Tensor of shape `(B, G, D)`. Of row r the first `lengths[r] // c` are
        real.

    Example:

    ```python
    import numpy as np
    from txl_keras.extensions.compressive import Compression

    old = np.ones((2, 12, 8))
    compressed = Compression("conv", rate=3)(old)  # (2, 4, 8)
    ```

    Reference:
        [Rae et al., 2020](https://arxiv.org/abs/1911.05507), section 3.2.
    """

    def __init__(self, compression: str, rate: int, **kwargs):
        super().__init__(**kwargs)
        self.compression = check_one_of(
            "compression", compression, COMPRESSIONS
        )
        # So that an untrusted file cannot ask for much memory.
        self.rate = check_integer("compression_rate", rate, 2, 1 << 20)

    def build(self, inputs_shape):
        size = inputs_shape[-1]
        if self.compression in ("conv", "dilated_conv"):
            self.kernel = self.add_weight(
                shape=(self.rate, size, size), initializer=_mean, name="kernel"
            )
            self.bias = self.add_weight(
                shape=(size,), initializer="zeros", name="bias"
            )

    def call(self, inputs, lengths=None):
        batch, size, width = ops.shape(inputs)
        num_groups = size // self.rate
        if lengths is not None:
            # What is not real may be anything, also NaN.
            is_real = tf.sequence_mask(lengths, size)
            inputs = tf.where(is_real[..., None], inputs, 0)
        if self.compression == "dilated_conv":
            # Indices of states with c - 1 zeros in front.
            taps = (
                tf.range(num_groups)[:, None] * self.rate
                + tf.range(self.rate) * 2
            )
            padded = tf.pad(inputs, [[0, 0], [self.rate - 1, 0], [0, 0]])
            groups = tf.gather(padded, taps, axis=1)
        else:
            groups = inputs[:, : num_groups * self.rate]
        groups = tf.reshape(groups, (batch, num_groups, self.rate, width))
        if self.compression == "mean_pool":
            return tf.reduce_mean(groups, axis=2)
        if self.compression == "max_pool":
            return tf.reduce_max(groups, axis=2)
        kernel = tf.reshape(
            tf.cast(self.kernel, inputs.dtype), (self.rate * width, width)
        )
        groups = tf.reshape(groups, (batch, num_groups, self.rate * width))
        return tf.matmul(groups, kernel) + tf.cast(self.bias, inputs.dtype)


def _mean(shape, dtype=None):
    """Returns the kernel of a convolution that computes the mean."""
    rate, size, _ = shape
    return ops.tile(ops.eye(size, dtype=dtype)[None] / rate, (rate, 1, 1))


class CompressiveMemory(
    collections.namedtuple(
        "CompressiveMemory", [*Memory._fields, "pending", "pending_length"]
    )
):
    """Holds the memory of a `CompressiveBackbone`, like `Memory`.

    Attributes:
        states: Tuple of L tensors `(B, C + M, D)`: compressed slots, then the
            last M inputs of every block.
        valid_length: int32 tensor `(B,)`, the newest entries that are real.
        pending: Tuple of L tensors `(B, P, D)`: what left the M entries and is
            not compressed yet, newest last.
        pending_length: int32 tensor `(B,)`, the pending entries that are real.
    """

    __slots__ = ()
    length = Memory.length
    mask = Memory.mask
    reset_rows = Memory.reset_rows

    @classmethod
    def of(cls, memory: Memory, num_pending: int) -> "CompressiveMemory":
        """Adds places for pending tokens to the `Memory` of a cold start."""
        pending = tuple(
            tf.repeat(tf.zeros_like(state[:, :1]), num_pending, axis=1)
            for state in memory.states
        )
        none = tf.zeros_like(memory.valid_length)
        return cls(*memory, pending, none)


class CompressiveMemoryStack(MemoryStack):
    """Stores the memory of a `CompressiveBackbone`."""

    def __init__(self, places, **kwargs):
        self.places = places
        super().__init__(**kwargs)

    def initial_memory(self, rows):
        return CompressiveMemory.of(super().initial_memory(rows), self.places)


def extend_compressed(
    memory, hidden_states, compressions, num_compressed, lengths=None
):
    """Appends a segment to memory and compresses what does not fit."""
    # Algorithm 1. Also returns L pairs of states that left memory, `(B, S, D)`,
    # and compressed ones, `(B, G, D)`; and how many groups and steps are real.
    rate, size = compressions[0].rate, memory.length - num_compressed
    places = memory.pending[0].shape[1]
    length = ops.shape(hidden_states[0])[1]
    num_new = length if lengths is None else lengths
    num_new = tf.broadcast_to(num_new, tf.shape(memory.valid_length))
    num_tokens = tf.minimum(memory.valid_length, size)
    # Tokens are pending only if memory is full, so all real ones are adjacent.
    num_evicted = tf.maximum(
        memory.pending_length + num_tokens + num_new - size, 0
    )
    num_groups = num_evicted // rate
    # The pending tokens, those of memory and the segment follow each other.
    first = places + num_new - num_evicted
    states, pending, evicted = [], [], []
    for state, waiting, hidden, compress in zip(
        memory.states, memory.pending, hidden_states, compressions, strict=True
    ):
        hidden = tf.cast(tf.stop_gradient(hidden), state.dtype)
        slots, tokens = state[:, :num_compressed], state[:, num_compressed:]
        stream = tf.concat([waiting, tokens, hidden], axis=1)
        old = _take(stream, first, places + length)
        new = compress(old, lengths=num_evicted)
        evicted.append((old, new))
        slots = keep_last(slots, new, num_compressed, num_groups)
        tokens = keep_last(tokens, hidden, size, lengths)
        states.append(tf.concat([slots, tokens], axis=1))
        pending.append(_take(stream, num_new, places))
    num_slots = memory.valid_length - num_tokens + num_groups
    valid_length = tf.minimum(num_tokens + num_new, size)
    valid_length += tf.minimum(num_slots, num_compressed)
    pending_length = num_evicted % rate if places else memory.pending_length
    memory = CompressiveMemory(
        tuple(states), valid_length, tuple(pending), pending_length
    )
    return memory, evicted, num_groups, num_new


def _take(x, first, length):
    """Returns `length` entries of each row; beyond the end the last one."""
    indices = first[:, None] + tf.range(length)
    indices = tf.minimum(indices, tf.shape(x)[1] - 1)
    return tf.gather(x, indices, axis=1, batch_dims=1)


def reconstruction_loss(
    block, rate, inputs, evicted, compressed, num_groups, lengths
):
    """Computes how much attention changes when states are compressed.

    The mean squared difference of attention to evicted states and to their
    compressed ones, `(B,)`: Rae et al. (2020), algorithm 2. `inputs` are the
    segment that evicts them, with `lengths` real states per row.
    """
    # All but the compressed states are constants, also the weights.
    constants = [
        (weight, tf.stop_gradient(tf.convert_to_tensor(weight.value)))
        for weight in block.weights
    ]
    with keras.StatelessScope(state_mapping=constants):
        query = block.attention_inputs(tf.stop_gradient(inputs))

        def attend(states, num_real):
            mask = tf.sequence_mask(num_real, tf.shape(states)[1])
            attended = block.attention.attend_by_content(
                query, block.attention_inputs(states, mask), mask
            )
            return tf.cast(attended, "float32")

        expected = attend(tf.stop_gradient(evicted), rate * num_groups)
        found = attend(compressed, num_groups)
    loss = tf.reduce_mean(
        tf.math.squared_difference(tf.stop_gradient(expected), found),
        axis=(2, 3),
    )
    is_real = tf.sequence_mask(lengths, tf.shape(loss)[1])
    loss = tf.math.divide_no_nan(
        tf.reduce_sum(tf.where(is_real, loss, 0.0), axis=1),
        tf.cast(lengths, loss.dtype),
    )
    return tf.where(num_groups > 0, loss, 0.0)


class CompressiveCache(
    collections.namedtuple(
        "CompressiveCache", ["keys", "values", *CompressiveMemory._fields]
    )
):
    """Holds a `CompressiveMemory` with its keys and values, in text order."""

    __slots__ = ()
    length = Memory.length
    mask = Memory.mask
    reset_rows = ProjectedMemory.reset_rows

    def pasts(self):
        """Returns a list of L `Past`, one for each attention layer."""
        pairs = zip(self.keys, self.values, strict=True)
        return [Past(*pair, self.mask(), None) for pair in pairs]

    def as_ring(self):
        """Returns itself: there is no ring buffer."""
        return self

    in_order = as_ring

    @staticmethod
    def largest(shapes):
        """Returns the largest counts of served tensors `(B, *shape)`."""
        return {
            "valid_length": shapes["states"][1],
            "pending_length": shapes["pending"][1],
        }


def _keep_last(num_slots, num_groups, num_new, state, compressed, new):
    """Appends to the slots and to the tokens of a state `(B, N, C + M, H)`."""
    parts = []
    for old, more, count in (
        (state[:, :, :num_slots], compressed, num_groups),
        (state[:, :, num_slots:], new, num_new),
    ):
        places = count[:, None] + tf.range(old.shape[2])
        extended = tf.concat([old, more], axis=2)
        parts.append(tf.gather(extended, places, axis=2, batch_dims=1))
    return tf.concat(parts, axis=2)


@keras.saving.register_keras_serializable(package="txl_keras")
class CompressiveBackbone(TransformerXLBackbone):
    """Encodes a segment like Transformer-XL, with compressed older memory.

    The reach is `L (memory_length + compression_rate compressed_length)`
    tokens. In training the reconstruction loss, which trains the compression
    alone, is added to `losses`, as Keras layers do. `reset` must be of shape
    `(B,)`.

    Args:
        *args, **kwargs: Arguments of `TransformerXLBackbone`; `memory_length`
            must be at least 1.
        compression: String, the function of a `Compression` layer per block.
        compression_rate: Integer, how many tokens become one compressed slot.
        compressed_length: Integer, the number of compressed slots, by default
            `memory_length`. It may be larger in inference than in training.

    Example:

    ```python
    from txl_keras.extensions.compressive import CompressiveBackbone

    backbone = CompressiveBackbone(
        vocabulary_size=50, num_layers=2, num_heads=2, hidden_dim=16,
        intermediate_dim=32, memory_length=12, compression_rate=3,
        compressed_length=8,
    )
    backbone.past_length(), backbone.past_tokens()  # (20, 36)
    ```

    Reference:
        [Rae et al., 2020](https://arxiv.org/abs/1911.05507).
    """

    memory_class = CompressiveMemory
    # Which tokens are compressed together depends on where reading began.
    has_finite_reach = shows_attention = takes_episodes = False
    evaluation_arguments = (
        *TransformerXLBackbone.evaluation_arguments,
        "compressed_length",
    )

    def __init__(
        self,
        *args,
        memory_length: int = 0,
        compression: str = "conv",
        compression_rate: int = 3,
        compressed_length: int | None = None,
        **kwargs,
    ):
        if compressed_length is None:
            compressed_length = memory_length
        # The parts are made from them.
        self.compression = compression
        self.compression_rate = compression_rate
        self.compressed_length = check_integer(
            "compressed_length", compressed_length, 1
        )
        super().__init__(*args, memory_length=memory_length, **kwargs)

    def build(self, token_ids_shape):
        self.compressions = [
            Compression(
                self.compression,
                self.compression_rate,
                dtype=self.dtype_policy,
                name=f"compression_{i}",
            )
            for i in range(self.num_layers)
        ]
        super().build(token_ids_shape)

    def check_remembers(self, memory_length):
        super().check_remembers(memory_length)
        check_integer("memory_length", memory_length, 1)

    def past_length(self, memory_length=None):
        return super().past_length(memory_length) + self.compressed_length

    def past_tokens(self, memory_length=None):
        more = (self.compression_rate - 1) * self.compressed_length
        return self.past_length(memory_length) + more

    @property
    def auxiliary_variables(self):
        return [w for x in self.compressions for w in x.trainable_weights]

    def initial_memory(self, batch_size, memory_length=None):
        memory = super().initial_memory(batch_size, memory_length)
        return CompressiveMemory.of(memory, self.compression_rate - 1)

    def memory_stack(self, batch_size, memory_length=None, name=None):
        return CompressiveMemoryStack(
            num_layers=self.num_layers,
            batch_size=batch_size,
            memory_length=self.past_length(memory_length),
            hidden_dim=self.hidden_dim,
            cold_start=self.cold_start,
            places=self.compression_rate - 1,
            dtype=self.dtype_policy,
            name=name,
        )

    def remember(self, memory, states, lengths=None, training=False):
        inputs = states[:-1]
        memory, evicted, *counts = self._extend(memory, inputs, lengths)
        if training and self.auxiliary_variables:
            rate = self.compression_rate
            parts = zip(self.blocks, inputs, evicted, strict=True)
            losses = [
                reconstruction_loss(block, rate, x, *states, *counts)
                for block, x, states in parts
            ]
            self.add_loss(tf.reduce_mean(tf.add_n(losses)))
        return memory

    def _extend(self, memory, states, lengths):
        sizes = self.compressions, self.compressed_length
        return extend_compressed(memory, states, *sizes, lengths)

    def make_cache(self, memory, keys, values):
        return CompressiveCache(keys, values, *memory)

    def entries(self, states, keys, values):
        return *super().entries(states, keys, values), tuple(states[:-1])

    def append(self, memory, entries, lengths=None, **kwargs):
        keys, values, states = entries
        old = CompressiveMemory(*memory[2:])
        new, evicted, *counts = self._extend(old, states, lengths)
        groups = [
            block.project(compressed)
            for block, (_, compressed) in zip(self.blocks, evicted, strict=True)
        ]
        keep = functools.partial(_keep_last, self.compressed_length, *counts)
        return CompressiveCache(
            tuple(map(keep, memory.keys, [key for key, _ in groups], keys)),
            tuple(map(keep, memory.values, [x for _, x in groups], values)),
            *new,
        )

    def empty_projected_memory(self, memory_length):
        return self.project_memory(self.initial_memory(1, memory_length))


class CompressionOptions(options.Options):
    """Holds the arguments of the backbone.

    Model options:
    compression: How --backbone=compressive compresses tokens that leave the
        memory into a second, older part of it.
    compression_rate: Number of tokens that are compressed to one slot.
    compressed_length: Number of compressed slots; may be larger in evaluation
        than in training.
    """

    compression: options.one_of(COMPRESSIONS) = None
    compression_rate: int = None
    compressed_length: options.integer(1) = None


def _preset(sizes, memory, rate, length, **others):
    """Returns the lengths and rates of the paper; it states no widths."""
    return {
        **SIZES[sizes],
        "backbone": "compressive",
        "memory_length": memory,
        "compression_rate": rate,
        "compressed_length": length,
        **others,
    }


register("backbone", compressive=CompressiveBackbone)
register("model options", compressive=CompressionOptions)
register(
    "preset",
    # 352,753,868 weights, 360,686,410 and 523,867,392. The last are subwords.
    enwik8_compressive=_preset("enwik8_large", 768, 3, 1152),
    wikitext103_compressive=_preset(
        "wikitext103_large", 512, 4, 512, tie_attention_biases=True
    ),
    pg19_compressive=_preset(
        "enwik8_large", 512, 2, 512, vocabulary_size=32_000, num_layers=36
    ),
)
