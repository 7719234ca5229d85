"""Two tiers of memory, those of the Compressive Transformer.

Rae et al. (2020), algorithm 1. What leaves the memory of M tokens is
compressed by c to one into C older slots. Blocks attend to all of them,
`[compressed, memory, segment]`, where a slot counts as one position.

The paper compresses what a segment pushes out in groups of c, and loses what
fills no group. Then nothing would be compressed where tokens are read one by
one. Here such tokens are pending, in c - 1 places, until they fill a group. A
memory without such places follows the paper.

Letters: `B` batch, `T` segment, `M` memory, `C` compressed slots, `c`
compression rate, `P` places for pending tokens, `D` hidden size, `N` heads,
`H` head size, `L` layers, `W` = M + c - 1.
"""

import collections
import functools

import tensorflow as tf

from txl_keras.layers.memory.memory_stack import Memory
from txl_keras.layers.memory.memory_stack import keep_last
from txl_keras.layers.memory.projected_memory import Past
from txl_keras.layers.memory.projected_memory import choose_rows
from txl_keras.layers.memory.projected_memory import scatter
from txl_keras.layers.memory.ring_buffer import RingWrite
from txl_keras.layers.memory.ring_buffer import age_order
from txl_keras.layers.memory.ring_buffer import slots_by_age

# States `(B, S, D)` that left memory, and compressed ones `(B, G, D)`.
Evicted = collections.namedtuple("Evicted", ["states", "compressed"])


def extend_compressed(
    memory,  # of L states [B, C + M, D]: compressed slots, then tokens
    hidden_states,
    compressions,
    num_compressed,
    lengths=None,
    usage=(),  # with "most_used", attention to keys: L tensors [B, C + M + T]
):
    """Appends a segment to memory and compresses what does not fit."""
    # Gradients reach the compressions from what was evicted only.
    rate, size = compressions[0].rate, memory.length - num_compressed
    places = memory.pending[0].shape[1]
    num_new = tf.shape(hidden_states[0])[1] if lengths is None else lengths
    num_new = tf.broadcast_to(num_new, tf.shape(memory.valid_length))
    num_tokens = tf.minimum(memory.valid_length, size)
    # Tokens are pending only if memory is full, so all real ones are adjacent.
    num_evicted = tf.maximum(
        memory.pending_length + num_tokens + num_new - size, 0
    )
    num_groups = num_evicted // rate
    # The pending tokens, those of memory and the segment follow each other.
    end = places + num_new  # of what is not kept in memory
    length = hidden_states[0].shape[1] or tf.shape(hidden_states[0])[1]
    window = places + length
    first = end - num_evicted
    states, pending, evicted = [], [], []
    for i, (state, hidden) in enumerate(
        zip(memory.states, hidden_states, strict=True)
    ):
        hidden = tf.cast(tf.stop_gradient(hidden), state.dtype)
        tokens = state[:, num_compressed:]
        stream = tf.concat([memory.pending[i], tokens, hidden], axis=1)
        used = None
        if usage:  # without pending tokens
            used = _take(usage[i][:, num_compressed:], first, window)
        old = _take(stream, first, window)
        new = compressions[i](old, lengths=num_evicted, usage=used)
        evicted.append(Evicted(old, new))
        slots = state[:, :num_compressed]
        slots = keep_last(slots, new, num_compressed, num_groups)
        tokens = keep_last(tokens, hidden, size, lengths)
        states.append(tf.concat([slots, tokens], axis=1))
        pending.append(_take(stream, num_new, places))
    num_slots = memory.valid_length - num_tokens + num_groups
    valid_length = tf.minimum(num_tokens + num_new, size)
    valid_length += tf.minimum(num_slots, num_compressed)
    pending_length = num_evicted % rate if places else memory.pending_length
    memory = Memory(tuple(states), valid_length, tuple(pending), pending_length)
    return memory, evicted, num_groups  # [B], how many groups are real


class CompressiveCache(
    collections.namedtuple(
        "CompressiveCache",
        [
            "keys",  # tuples of L tensors [B, N, C + M, H]
            "values",
            "states",  # L tensors [B, W, D], what blocks remember of W tokens
            "num_tokens",  # int64 [B], tokens read
            "num_compressed",  # int64 [B], groups compressed
        ],
    )
):
    """Holds a compressive memory as projected keys and values."""

    # Slots and tokens are ring buffers, next to each other in one tensor. The
    # hidden states of tokens are kept until they are compressed.

    __slots__ = ()

    @classmethod
    def of(cls, memory, keys, values, num_slots, rate):
        """Builds it from a `Memory` and its keys and values in text order."""
        size = memory.length - num_slots
        tokens = tf.cast(tf.minimum(memory.valid_length, size), tf.int64)
        num_compressed = tf.cast(memory.valid_length, tf.int64) - tokens
        pending = tf.cast(memory.pending_length, tf.int64)
        num_tokens = tokens + rate * num_compressed + pending
        order = _ring_order(
            age_order, num_compressed, num_slots, num_tokens, size
        )
        places = memory.pending[0].shape[1]
        length = size + rate - 1
        hidden_order = age_order(_slot(num_tokens, length), length)

        def arrange(x):
            return tf.gather(x, order, axis=2, batch_dims=1)

        def arrange_states(state, pending):
            state = tf.concat([pending, state[:, num_slots:]], axis=1)
            state = tf.pad(state, [[0, 0], [rate - 1 - places, 0], [0, 0]])
            return tf.gather(state, hidden_order, axis=1, batch_dims=1)

        return cls(
            tuple(map(arrange, keys)),
            tuple(map(arrange, values)),
            tuple(map(arrange_states, memory.states, memory.pending)),
            num_tokens,
            num_compressed,
        )

    def sizes(self, rate):
        """Returns the pair C and M."""
        num_tokens = self.states[0].shape[1] - (rate - 1)
        return self.keys[0].shape[2] - num_tokens, num_tokens

    def pasts(self, rate, in_order=False):
        """Returns a list of L `Past`, with `in_order` in text order."""
        num_slots, num_tokens = self.sizes(rate)
        length = num_slots + num_tokens
        valid = tf.minimum(self.num_tokens, num_tokens) + tf.minimum(
            self.num_compressed, num_slots
        )
        mask = tf.range(length) >= length - tf.cast(valid[:, None], tf.int32)
        of_ring = slots_by_age if in_order else age_order
        counts = self.num_compressed, num_slots, self.num_tokens, num_tokens
        order = _ring_order(of_ring, *counts)
        pairs = zip(self.keys, self.values, strict=True)
        if not in_order:
            return [Past(*pair, mask, order) for pair in pairs]
        sort = functools.partial(tf.gather, indices=order, axis=2, batch_dims=1)
        return [Past(*map(sort, pair), mask, None) for pair in pairs]

    def reset_rows(self, reset, empty):
        """Clears rows, as `ProjectedMemory.reset_rows` does."""
        return choose_rows(reset, empty, self)

    def append(
        self,
        keys,
        values,
        states,  # L tensors [B, T, D], what blocks remember
        attention=(),  # with "most_used", L tensors [B, T, C + M + T]
        lengths=None,
        write=scatter,
        *,
        compressions,
        project,  # of a block's index and states [B, G, D]: keys and values
    ):
        """Appends a segment and compresses what does not fit."""
        rate = compressions[0].rate
        num_slots, size = self.sizes(rate)
        num_new = tf.shape(states[0])[1] if lengths is None else lengths
        num_new = tf.cast(num_new, tf.int64)
        num_tokens = self.num_tokens + num_new
        before, after = (
            tf.maximum(n - size, 0) for n in (self.num_tokens, num_tokens)
        )  # how many tokens have left the M
        window = states[0].shape[1] or tf.shape(states[0])[1]
        first = before
        if not attention:  # and so with pending tokens
            first = self.num_compressed * rate
            window += rate - 1
        old = [
            self._tokens(*pair, first, window)
            for pair in zip(self.states, states, strict=True)
        ]
        counts = tf.cast(after - first, tf.int32)
        num_groups = counts // rate
        usage = [self._usage(x, num_new, num_slots, size) for x in attention]
        usage = usage or [None] * len(states)

        def compress():
            return tuple(
                project(i, layer(x, lengths=counts, usage=used))
                for i, (layer, x, used) in enumerate(
                    zip(compressions, old, usage, strict=True)
                )
            )

        def nothing():
            batch = tf.shape(self.num_tokens)[0]
            _, num_heads, _, head_dim = keys[0].shape
            shape = (batch, num_heads, window // rate, head_dim)
            return ((tf.zeros(shape, keys[0].dtype),) * 2,) * len(keys)

        # Where tokens are read one by one, few of them complete a group.
        new = tf.cond(tf.reduce_any(num_groups > 0), compress, nothing)
        # The old entries are read before they are overwritten.
        with tf.control_dependencies(tf.nest.flatten([old, new])):
            keys, values, states = tf.nest.map_structure(
                tf.identity, (keys, values, states)
            )
        part = {"num_slots": num_slots + size}
        tokens = RingWrite(
            _slot(self.num_tokens, size), size, keys[0], lengths,
            first_slot=num_slots, **part,
        )  # fmt: skip
        groups = RingWrite(
            _slot(self.num_compressed, num_slots), num_slots, new[0][0],
            num_groups, **part,
        )  # fmt: skip
        length = self.states[0].shape[1]
        hidden = RingWrite(
            _slot(self.num_tokens, length), length, states[0][:, None], lengths
        )

        def write_both(state, entries, compressed):
            state = write(state, tokens, tokens.values(entries, state))
            return write(state, groups, groups.values(compressed, state))

        def write_states(state, entries):
            state = state[:, None]
            entries = hidden.values(entries[:, None], state)
            return write(state, hidden, entries)[:, 0]

        return CompressiveCache(
            tuple(map(write_both, self.keys, keys, [x[0] for x in new])),
            tuple(map(write_both, self.values, values, [x[1] for x in new])),
            tuple(map(write_states, self.states, states)),
            num_tokens,
            self.num_compressed + tf.cast(num_groups, tf.int64),
        )

    def _tokens(self, ring, new, first, length):
        """Returns `length` states `(B, length, D)` from token `first` on."""
        tokens = first[:, None] + tf.range(length, dtype=tf.int64)
        in_ring = tf.math.floormod(tokens, ring.shape[1])
        since = tokens - self.num_tokens[:, None]  # negative in the ring
        last = tf.cast(tf.shape(new)[1] - 1, tf.int64)
        return tf.where(
            (since < 0)[..., None],
            tf.gather(ring, in_ring, axis=1, batch_dims=1),
            tf.gather(
                new, tf.clip_by_value(since, 0, last), axis=1, batch_dims=1
            ),
        )

    def _usage(self, attention, num_new, num_slots, size):
        """Returns the attention to the T tokens that leave first, `(B, T)`."""
        length = tf.shape(attention)[1]
        queries = tf.range(length, dtype=tf.int64)[None, :]
        is_real = queries < tf.reshape(num_new, (-1, 1))
        usage = tf.reduce_sum(
            tf.where(is_real[..., None], attention, 0), axis=1
        )
        empty = tf.maximum(size - self.num_tokens, 0)
        keys = num_slots + empty[:, None] + queries
        return tf.gather(usage, keys, axis=1, batch_dims=1)


def _take(x, first, length):
    """Returns `length` entries of each row; beyond the end the last one."""
    indices = first[:, None] + tf.range(length)
    indices = tf.minimum(indices, tf.shape(x)[1] - 1)
    return tf.gather(x, indices, axis=1, batch_dims=1)


def _ring_order(of_ring, num_compressed, num_slots, num_tokens, size):
    """Returns `of_ring` of compressed slots and of tokens, `(B, C + M)`."""
    slots = of_ring(_slot(num_compressed, num_slots), num_slots)
    tokens = num_slots + of_ring(_slot(num_tokens, size), size)
    return tf.concat([slots, tokens], axis=1)


def _slot(count, length):
    """Returns the slot of the next entry of a ring buffer, int32."""
    return tf.cast(tf.math.floormod(count, length), tf.int32)
