"""The Compressive Transformer (Rae et al., 2020).

Tokens that leave the memory of M tokens are compressed by c to one, into C
older slots. Blocks attend to `[compressed, memory, segment]`, where a slot
counts as one position.

The paper compresses the tokens that a segment pushes out in groups of c, and
loses tokens that do not fill a group. If tokens are read one by one, nothing
would be compressed. So here such tokens are pending, in c - 1 places, until
they fill a group. A memory without places for them follows the paper.

More letters: `C` compressed slots, `c` compression rate, `P` places for
pending tokens, `G` groups.
"""

import collections
import functools
import itertools

import keras
import tensorflow as tf
from keras import ops

from txl_keras.checks import check_integer
from txl_keras.checks import check_one_of
from txl_keras.extending import register
from txl_keras.layers.config import ConfiguredLayer
from txl_keras.layers.kv_cache import Past
from txl_keras.layers.kv_cache import ProjectedMemory
from txl_keras.layers.kv_cache import RingWrite
from txl_keras.layers.kv_cache import scatter
from txl_keras.layers.memory import Memory
from txl_keras.layers.memory import MemoryStack
from txl_keras.layers.memory import keep_last
from txl_keras.models.transformer_xl_backbone import TransformerXLBackbone
from txl_keras.scripts import options

_POOLS = {"mean_pool": tf.reduce_mean, "max_pool": tf.reduce_max}
COMPRESSIONS = ("conv", "dilated_conv", *_POOLS, "most_used")

__all__ = ["CompressiveBackbone", "CompressiveMemory", "Compression"]


@keras.saving.register_keras_serializable(package="txl_keras")
class Compression(ConfiguredLayer):
    """Compresses c states to one.

    These are the functions of Rae et al. (2020), section 3.2:

    - `"conv"`: convolution over time with kernel and stride c. It starts as the
      mean of c states.
    - `"dilated_conv"`: its c taps are 2 apart, with c - 1 zeros in front. So
      groups overlap.
    - `"mean_pool"`, `"max_pool"`: mean and maximum of c states.
    - `"most_used"`: the `S / c` states that received most attention, in order.

    Groups are formed from the first state on. The last `S mod c` states are
    lost.

    Args:
        compression: String, one of the functions above.
        rate: Integer `c`, at least 2.

    Call arguments:
        inputs: Tensor of shape `(B, S, D)`, oldest first.
        lengths: Optional int32 tensor `(B,)`, the number of real states per
            row. Padding is at the end. By default all are real.
        usage: Float tensor `(B, S)`, the attention that each state received,
            for `"most_used"`.

    Returns:
        Tensor of shape `(B, G, D)`. In row r the first `lengths[r] // c` states
        are real.

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

    def call(self, inputs, lengths=None, usage=None):
        batch, size, _ = ops.shape(inputs)
        num_groups = size // self.rate
        if lengths is None:
            lengths = tf.fill((batch,), size)
        is_real = tf.sequence_mask(lengths, size)
        if self.compression == "most_used":
            usage = tf.where(is_real, tf.cast(usage, "float32"), -1.0)
            _, kept = tf.math.top_k(usage, num_groups)
            is_kept = tf.sequence_mask(lengths // self.rate, num_groups)
            kept = tf.sort(tf.where(is_kept, kept, size - 1))
            return tf.gather(inputs, kept, axis=1, batch_dims=1)
        # Padding may have any value, even NaN.
        inputs = tf.where(is_real[..., None], inputs, 0)
        gap = 2 if self.compression == "dilated_conv" else 1
        padding = [[0, 0], [(gap - 1) * (self.rate - 1), 0], [0, 0]]
        taps = tf.range(num_groups)[:, None] * self.rate
        taps += tf.range(self.rate) * gap
        groups = tf.gather(tf.pad(inputs, padding), taps, axis=1)
        if self.compression in _POOLS:
            return _POOLS[self.compression](groups, axis=2)
        kernel, bias = (tf.cast(x, inputs.dtype) for x in self.weights)
        return tf.einsum("bgcd,cde->bge", groups, kernel) + bias


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
        valid_length: int32 tensor `(B,)`, the number of newest entries that are
            real.
        pending: Tuple of L tensors `(B, P, D)`: states that left the M entries
            and are not yet compressed, newest last.
        pending_length: int32 tensor `(B,)`, the number of real pending entries.
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

    def __init__(self, places, *args, **kwargs):
        self.places = places
        super().__init__(*args, **kwargs)

    def initial_memory(self, rows):
        return CompressiveMemory.of(super().initial_memory(rows), self.places)


def evict(memory, tokens, hidden_states, compressions, num_slots, lengths):
    """Finds the states that leave memory; reads its T oldest `tokens` of M."""
    # Returns L states `(B, S, D)`, a function that compresses them, the numbers
    # of groups and of real steps, and fields of a new memory.
    rate, size = compressions[0].rate, memory.length - num_slots
    places, length = memory.pending[0].shape[1], ops.shape(hidden_states[0])[1]
    num_new = length if lengths is None else lengths
    num_new = tf.broadcast_to(num_new, tf.shape(memory.valid_length))
    num_tokens = tf.minimum(memory.valid_length, size)
    # Tokens are pending only if memory is full, so all real ones are adjacent.
    num_evicted = tf.maximum(
        memory.pending_length + num_tokens + num_new - size, 0
    )
    num_groups = num_evicted // rate
    num_compressed = memory.valid_length - num_tokens + num_groups
    # Joined in order: pending tokens, tokens in memory, tokens of the segment.
    streams = [
        tf.concat([*old, tf.stop_gradient(tf.cast(new, old[1].dtype))], axis=1)
        for *old, new in zip(memory.pending, tokens, hidden_states, strict=True)
    ]
    first = places + num_new - num_evicted
    states = [_take(stream, first, places + length) for stream in streams]

    def compress(usage):
        used = itertools.repeat(None)
        if compressions[0].compression == "most_used":
            used = (_take(x, first, places + length) for x in usage(num_new))
        parts = zip(compressions, states, used, strict=False)
        # States that stay pending are no choice of `most_used`.
        real = num_groups * rate if places else num_evicted
        return [layer(x, real, used) for layer, x, used in parts]

    fields = {
        "valid_length": tf.minimum(num_tokens + num_new, size)
        + tf.minimum(num_compressed, num_slots),
        "pending": tuple(_take(stream, num_new, places) for stream in streams),
    }
    if places:
        fields["pending_length"] = num_evicted % rate
    return states, compress, (num_groups, num_new), fields


def _take(x, first, length):
    """Returns `length` entries per row; repeats the last beyond the end."""
    indices = first[:, None] + tf.range(length)
    indices = tf.minimum(indices, tf.shape(x)[1] - 1)
    return tf.gather(x, indices, axis=1, batch_dims=1)


def extend_compressed(
    memory, hidden_states, compressions, num_slots, usage, lengths=None
):
    """Appends a segment to memory: algorithm 1 of Rae et al. (2020).

    `usage` is a function from the numbers of real steps to the attention that
    they pay to each entry, L tensors `(B, P + M + T)`. Also returns the states
    that left memory, their compression, and the numbers of groups and steps.
    """
    size = memory.length - num_slots
    tokens = [state[:, num_slots:] for state in memory.states]
    evicted, compress, counts, fields = evict(
        memory, tokens, hidden_states, compressions, num_slots, lengths
    )
    compressed, states = compress(usage), []
    for state, old, new, hidden in zip(
        memory.states, tokens, compressed, hidden_states, strict=True
    ):
        slots = keep_last(state[:, :num_slots], new, num_slots, counts[0])
        kept = keep_last(old, hidden, size, lengths)
        states.append(tf.concat([slots, kept], axis=1))
    memory = memory._replace(states=tuple(states), **fields)
    return memory, evicted, compressed, counts


def reconstruction_loss(
    block, inputs, evicted, compressed, rate, num_groups, lengths
):
    """Computes how much attention changes when states are compressed.

    This is the mean squared difference of attention to evicted states and to
    their compressed states, `(B,)`: Rae et al. (2020), algorithm 2. `inputs`
    are the segment that evicts them, with `lengths` real states per row.
    """
    # Everything except the compressed states is constant, even the weights.
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

        change = attend(tf.stop_gradient(evicted), rate * num_groups)
        change -= attend(compressed, num_groups)
    loss = tf.reduce_mean(tf.square(change), axis=(2, 3))
    is_real = tf.sequence_mask(lengths, tf.shape(loss)[1])
    total = tf.reduce_sum(tf.where(is_real, loss, 0.0), axis=1)
    mean = tf.math.divide_no_nan(total, tf.cast(lengths, total.dtype))
    return tf.where(num_groups > 0, mean, 0.0)


class CompressiveCache(
    collections.namedtuple(
        "CompressiveCache",
        ["keys", "values", *CompressiveMemory._fields, "order"],
    )
):
    """Holds a `CompressiveMemory` with its keys and values `(B, N, C + M, H)`.

    Slots, followed by tokens, are two ring buffers. `order` is the age rank of
    each entry, `(B, C + M)`, and the states of all blocks are one tensor
    `(B, L, C + M, D)`. Without `order` all is in text order, as in memory.
    """

    __slots__ = ()
    length = ProjectedMemory.length
    mask = Memory.mask

    def pasts(self):
        """Returns a list of L `Past`, one for each attention layer."""
        pairs = zip(self.keys, self.values, strict=True)
        return [Past(*pair, self.mask(), self.order) for pair in pairs]

    def as_ring(self):
        """Returns the same entries as ring buffers."""
        if self.order is not None:
            return self
        order = tf.zeros_like(self.valid_length)[:, None]
        return self._replace(
            states=(tf.stack(self.states, axis=1),),
            order=order + tf.range(self.length),
        )

    def in_order(self):
        """Returns the same entries in text order."""
        if self.order is None:
            return self
        slots = tf.argsort(self.order)
        keys, values, states = (
            tuple(tf.gather(x, slots, axis=2, batch_dims=1) for x in entries)
            for entries in (self.keys, self.values, self.states)
        )
        states = tuple(tf.unstack(*states, axis=1))
        return CompressiveCache(keys, values, states, *self[3:-1], None)

    def write(self, first, end, entries, lengths, num_new, write=scatter):
        """Writes entries to a ring buffer, as `ProjectedMemory.append` does."""
        size, order = end - first, self.order
        ages = order[:, first:end] - first
        slot = tf.math.floormod(-ages[:, 0], size)
        ages = first + tf.math.floormod(ages - num_new[:, None], size)
        order = tf.concat([order[:, :first], ages, order[:, end:]], axis=1)
        parts = []
        for states, new in zip(self[:3], entries, strict=True):
            place = new[0], lengths, None, first, self.length
            ring = RingWrite(slot, size, *place)
            updates = (
                write(state, ring, ring.values(entry, state))
                for state, entry in zip(states, new, strict=True)
            )
            parts.append(tuple(updates))
        return CompressiveCache(*parts, *self[3:-1], order)

    @staticmethod
    def largest(shapes):
        """Returns the maximum of each count: see `ProjectedMemory`."""
        names = {"valid_length": "states", "pending_length": "pending"}
        return {name: shapes[states][1] for name, states in names.items()}


@keras.saving.register_keras_serializable(package="txl_keras")
class CompressiveBackbone(TransformerXLBackbone):
    """Encodes a segment like Transformer-XL, with compressed older memory.

    The reach is `L (memory_length + compression_rate compressed_length)`
    tokens. In training, the reconstruction loss is added to `losses`, as Keras
    layers do. It trains only the compression layers.

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
    has_finite_reach = shows_attention = False
    shortest_memory = 1
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
            compressed_length = memory_length or 1
        # The layers below are created from these arguments.
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

    def _stack_class(self, *args, **kwargs):
        places = self.compression_rate - 1
        return CompressiveMemoryStack(places, *args, **kwargs)

    def remember(self, memory, states, lengths=None, training=False):
        memory, *evicted, counts = extend_compressed(
            memory,
            states[:-1],
            self.compressions,
            self.compressed_length,
            functools.partial(self._usage, memory, states),
            lengths,
        )
        if training and self.auxiliary_variables:
            parts = zip(self.blocks, states, *evicted, strict=False)
            losses = [
                reconstruction_loss(*part, self.compression_rate, *counts)
                for part in parts
            ]
            self.add_loss(tf.reduce_mean(tf.add_n(losses)))
        return memory

    def _usage(self, memory, states, lengths):
        """Computes how much a segment attends to each entry.

        Pending tokens get the attention that they would get in memory.
        """
        at, usage, mask = self.compressed_length, [], memory.mask()
        places = self.compression_rate - 1
        waits = tf.sequence_mask(memory.pending_length, places)[:, ::-1]
        mask = tf.concat([mask[:, :at], waits, mask[:, at:]], axis=1)
        is_real = tf.sequence_mask(lengths, ops.shape(states[0])[1])
        for block, x, state, waiting in zip(
            self.blocks, states, memory.states, memory.pending, strict=False
        ):
            _, scores = block(
                x,
                tf.concat([state[:, :at], waiting, state[:, at:]], axis=1),
                inputs_mask=is_real,
                memory_mask=mask,
                attention_biases=self._attention_biases(),
                return_attention_scores=True,
            )
            scores = tf.where(is_real[:, None, :, None], scores, 0.0)
            usage.append(tf.reduce_sum(scores, axis=(1, 2))[:, at:])
        return usage

    def make_cache(self, memory, keys, values):
        return CompressiveCache(keys, values, *memory, None).as_ring()

    def entries(self, states, keys, values):
        return *super().entries(states, keys, values), tuple(states[:-1])

    def call_projected(self, token_ids, memory, positions):
        # Also returns the states of tokens that may leave memory. If `append`
        # read them where it writes, XLA would copy all states.
        outputs = super().call_projected(token_ids, memory, positions)
        memory, first = memory.as_ring(), self.compressed_length
        last = first + ops.shape(token_ids)[1]
        slots = tf.argsort(memory.order)[:, first:last]
        oldest = tf.gather(*memory.states, slots, axis=2, batch_dims=1)
        return *outputs, tuple(tf.unstack(oldest, axis=1))

    def append(self, memory, entries, lengths=None, **kwargs):
        *projected, inputs, oldest = entries
        memory, num_slots = memory.as_ring(), self.compressed_length
        _, make_groups, (num_groups, num_new), fields = evict(
            memory, oldest, inputs, self.compressions, num_slots, lengths
        )
        entries = *projected, (tf.stack(inputs, axis=1),)

        def compress():
            usage = functools.partial(self._usage, memory.in_order(), inputs)
            states = make_groups(usage)
            pairs = zip(self.blocks, states, strict=True)
            projected = [block.project(state) for block, state in pairs]
            return *zip(*projected, strict=True), (tf.stack(states, axis=1),)

        # If tokens are read one by one, few of them complete a group.
        most = (ops.shape(inputs[0])[1] - 1) // self.compression_rate + 1
        groups = tf.cond(
            tf.reduce_any(num_groups > 0),
            compress,
            lambda: tf.nest.map_structure(lambda x: x[:, :, :most], entries),
        )
        # Entries to overwrite were read before.
        with tf.control_dependencies(oldest):
            memory = memory.write(
                0, num_slots, groups, num_groups, num_groups, **kwargs
            )
            end = memory.length
            memory = memory.write(
                num_slots, end, entries, lengths, num_new, **kwargs
            )
        return memory._replace(**fields)

    def empty_projected_memory(self, memory_length):
        return self.project_memory(self.initial_memory(1, memory_length))


class CompressionOptions(options.Options):
    """Holds the arguments of the backbone.

    Model options:
    compression: Function with which --backbone=compressive compresses tokens
        that leave the memory into a second, older part of it.
    compression_rate: Number of tokens to compress to one slot.
    compressed_length: Number of compressed slots; may be larger in evaluation
        than in training.
    """

    compression: options.one_of(COMPRESSIONS) = None
    compression_rate: int = None
    compressed_length: options.integer(1) = None


register("backbone", compressive=CompressiveBackbone)
register("model options", compressive=CompressionOptions)
