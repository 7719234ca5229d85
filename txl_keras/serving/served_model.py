"""The state that all signatures of an exported language model share.

Letters: `B` batch, `T` segment, `M` memory, `D` hidden size, `N` heads, `H`
head size, `L` layers.
"""

import contextlib

import keras
import tensorflow as tf

from txl_keras.layers.memory.compressive import CompressiveCache
from txl_keras.layers.memory.projected_memory import ProjectedMemory
from txl_keras.serving.graph_checks import check
from txl_keras.serving.graph_checks import check_finite
from txl_keras.serving.graph_checks import check_range
from txl_keras.serving.graph_checks import check_shape

# Default limits of one request.
MAX_BATCH_SIZE = 128
MAX_GENERATE_LENGTH = 4096


class ServedModel:
    """Holds a language model and the constants that follow from its weights.

    These are the projected positions and the initial memory. They are computed
    once, at export, and stored as variables of the SavedModel.
    """

    def __init__(
        self,
        model,
        memory_length,
        max_segment_length,
        weights_dtype="float32",
        max_batch_size=MAX_BATCH_SIZE,
        max_generate_length=MAX_GENERATE_LENGTH,
    ):
        self.model = model
        self.backbone = model.backbone
        self.memory_length = memory_length
        self.max_segment_length = max_segment_length
        self.weights_dtype = weights_dtype
        self.max_batch_size = max_batch_size
        self.max_generate_length = max_generate_length
        # False for absolute positions, where M is 0.
        self.remembers = self.backbone.remembers
        self._past_length = self.backbone.past_length(memory_length)
        num_distances = self._past_length + max_segment_length
        self._positions = tf.nest.map_structure(
            lambda value: _constant(_stored(value, weights_dtype)),
            self.backbone.project_positions(num_distances),
        )
        self._weights = []
        if weights_dtype != "float32":
            self._weights = [
                (weight, _constant(_stored(weight, weights_dtype)))
                for weight in self._used_weights()
            ]
        self._begin()

    def _begin(self):
        """Computes the initial memory, and with it the shapes of memory."""
        empty = self.backbone.empty_projected_memory(self.memory_length)
        memory = _constant(self.to_tensors(empty)["memory"][0])
        self._initial = {"memory": memory}
        self._initial_valid_length = int(empty.valid_length[0])
        self.memory_shape = (
            *memory.shape[:3],
            self.memory_length,
            self.backbone.head_dim,
        )

    @property
    def memory_specs(self):
        """Returns the specs of the tensors that clients pass as memory."""
        # All sizes are free, so that the checks in the graph can name a wrong
        # one.
        return [
            tf.TensorSpec((None,) * 6, tf.float32, "memory"),
            tf.TensorSpec((None,), tf.int32, "valid_length"),
        ]

    @property
    def memory_settings(self):
        """Returns what `settings.json` says about memory."""
        return {"memory_shape": self.memory_shape}

    @property
    def variables(self):
        """Returns all variables that signatures read."""
        weights = [stored for _, stored in self._weights]
        return [
            *(weights or [weight.value for weight in self._used_weights()]),
            *tf.nest.flatten(self._positions),
            *self._initial.values(),
        ]

    def _used_weights(self):
        """Returns the weights that a call reads: all but those of positions."""
        project = tf.function(self.backbone.project_positions, autograph=False)
        variables = project.get_concrete_function(1).variables
        not_read = {id(variable) for variable in variables}
        return [w for w in self.model.weights if id(w.value) not in not_read]

    @contextlib.contextmanager
    def weights(self):
        """Makes the model use the stored weights within this context."""
        if not self._weights:
            yield
            return
        # Converted outside of any loop, and so only once per call.
        values = [(w, tf.cast(stored, w.dtype)) for w, stored in self._weights]
        with keras.StatelessScope(values):
            yield

    def positions(self, max_length):
        """Returns projected positions for segments of up to `max_length`."""
        # They are sorted by descending distance, so the nearest are last.
        start = -(self._past_length + max_length)

        def nearest(positions):
            positions = tf.convert_to_tensor(positions)[:, start:]
            return tf.cast(positions, self.backbone.compute_dtype)

        return tf.nest.map_structure(nearest, self._positions)

    def read(self, ids, memory, positions=None):
        """Reads a segment `(B, T)` without adding it to memory.

        Returns hidden states `(B, T, D)`, L keys and L values. `positions` are
        by default those of the longest segment.
        """
        if positions is None:
            positions = self.positions(self.max_segment_length)
        return self.backbone.call_projected(ids, memory, positions)

    def append(self, memory, entries, lengths=None, **kwargs):
        """Adds what `read` returned behind the hidden states to a memory."""
        return self.backbone.append(memory, entries, lengths, **kwargs)

    def empty(self, batch_size):
        """Returns the initial memory as the tensors of `memory_specs`."""
        shape = tf.concat([[batch_size], self.memory_shape], axis=0)
        memory = tf.broadcast_to(
            tf.convert_to_tensor(self._initial["memory"]), shape
        )
        return memory, tf.fill((batch_size,), self._initial_valid_length)

    def from_tensors(self, memory, valid_length):
        """Builds `ProjectedMemory` from the tensors that clients pass."""
        memory = tf.ensure_shape(memory, (None, *self.memory_shape))
        keys, values = self._unstacked(memory)
        return ProjectedMemory(keys, values, None, tf.identity(valid_length))

    def ring_from_tensors(self, *tensors):
        """Builds a memory that `append` can write to in place."""
        return self.from_tensors(*tensors).as_ring()

    def to_tensors(self, memory):
        """Converts `ProjectedMemory` into a dictionary of output tensors."""
        memory = memory.in_order()
        return {
            "memory": _stacked(memory),
            "valid_length": memory.valid_length,
        }

    def _unstacked(self, memory):
        """Returns L keys and L values of `(B, L, 2, N, M, H)`."""
        layers = tf.unstack(
            tf.cast(memory, self.backbone.compute_dtype), axis=1
        )
        return zip(*(tf.unstack(x, axis=1) for x in layers), strict=True)

    def check_ids(self, name, ids):
        """Returns a check that all ids are in the vocabulary."""
        return check_range(name, ids, 0, self.backbone.vocabulary_size - 1)

    def check_segment(self, ids):
        """Returns checks of the length and the ids of a segment."""
        length = tf.shape(ids)[1]
        is_in_range = (length >= 1) & (length <= self.max_segment_length)
        return [
            check(
                is_in_range,
                "`ids` must have the shape (B, T), with T from 1 to "
                f"{self.max_segment_length}. Received:",
                tf.shape(ids),
            ),
            self.check_ids("ids", ids),
        ]

    def check_memory(self, batch_size, memory, valid_length):
        """Returns checks of the memory of `batch_size` rows."""
        shape = tf.concat([[batch_size], self.memory_shape], axis=0)
        return [
            check_shape("memory", memory, shape, "(B, L, 2, N, M, H)"),
            check_shape("valid_length", valid_length, [batch_size], "(B,)"),
            check_range("valid_length", valid_length, 0, self.memory_length),
            check_finite("memory", memory),
        ]

    def check_length(self, length):
        """Returns a check of the number of tokens to generate."""
        return check_range("length", length, 0, self.max_generate_length)


class ServedCompressiveModel(ServedModel):
    """Holds a language model with compressed memory.

    Clients pass a `CompressiveCache`: what is in it depends on the number of
    tokens read, not only on the text, so it stays in the order of its slots.
    """

    def _begin(self):
        empty = self.backbone.empty_projected_memory(self.memory_length)
        self._initial = {
            name: _constant(value[0])
            for name, value in self.to_tensors(empty).items()
        }

    @property
    def memory_specs(self):
        return [
            tf.TensorSpec([None] * (1 + value.shape.rank), value.dtype, name)
            for name, value in self._initial.items()
        ]

    @property
    def memory_settings(self):
        return {
            f"{name}_shape": value.shape.as_list()
            for name, value in self._initial.items()
        }

    def empty(self, batch_size):
        return [
            tf.broadcast_to(value, tf.concat([[batch_size], value.shape], 0))
            for value in self._initial.values()
        ]

    def from_tensors(self, *tensors):
        memory, states, num_tokens, num_compressed = (
            tf.ensure_shape(tensor, (None, *value.shape))
            for tensor, value in zip(
                tensors, self._initial.values(), strict=True
            )
        )
        keys, values = self._unstacked(memory)
        states = tf.cast(states, self.backbone.compute_dtype)
        return CompressiveCache(
            keys,
            values,
            tuple(tf.unstack(states, axis=1)),
            num_tokens,
            num_compressed,
        )

    ring_from_tensors = from_tensors

    def to_tensors(self, memory):
        return {
            "memory": _stacked(memory),
            "states": tf.cast(tf.stack(memory.states, axis=1), tf.float32),
            "num_tokens": memory.num_tokens,
            "num_compressed": memory.num_compressed,
        }

    def check_memory(self, batch_size, *tensors):
        memory, states, num_tokens, num_compressed = tensors
        letters = ("(B, L, 2, N, C + M, H)", "(B, L, W, D)", "(B,)", "(B,)")
        rate = self.backbone.compression_rate
        evicted = tf.maximum(num_tokens - self.memory_length, 0)
        return [
            *(
                check_shape(
                    name,
                    tensor,
                    tf.concat([[batch_size], value.shape], 0),
                    meaning,
                )
                for tensor, (name, value), meaning in zip(
                    tensors, self._initial.items(), letters, strict=True
                )
            ),
            check_finite("memory", memory),
            check_finite("states", states),
            check(
                tf.reduce_all(num_tokens >= 0)
                & tf.reduce_all(num_compressed >= 0)
                & tf.reduce_all(num_compressed * rate <= evicted),
                "`num_tokens` and `num_compressed` must be those that a "
                "signature returned. Received:",
                num_tokens,
                num_compressed,
            ),
        ]


def _stacked(memory):
    """Returns keys and values as one tensor `(B, L, 2, N, M, H)`, float32."""
    layers = [
        tf.stack(layer, axis=1)
        for layer in zip(memory.keys, memory.values, strict=True)
    ]
    return tf.cast(tf.stack(layers, axis=1), tf.float32)


def _constant(value):
    return tf.Variable(value, trainable=False)


def _stored(value, dtype):
    """Casts a value to the stored dtype unless it is a vector, and small."""
    value = tf.convert_to_tensor(value)
    return tf.cast(value, dtype) if value.shape.rank > 1 else value
