"""The state that all signatures of an exported language model share.

Letters: `B` batch, `T` segment, `M` memory, `D` hidden size, `N` heads, `H`
head size, `L` layers.
"""

import functools

import keras
import numpy as np
import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.checks import check_one_of
from txl_keras.layers.memory.compressive import CompressiveCache
from txl_keras.layers.memory.projected_memory import ProjectedMemory
from txl_keras.serving.graph_checks import check
from txl_keras.serving.graph_checks import check_finite
from txl_keras.serving.graph_checks import check_range
from txl_keras.serving.graph_checks import check_shape

# Default limits of one request.
MAX_BATCH_SIZE = 128
MAX_GENERATE_LENGTH = 4096
_SEGMENT_LENGTH = 512
# Positions are projected for as many distances, and scores take its square.
LONGEST_SEGMENT = 1 << 16


class ServedModel:
    """Holds a language model and the constants that follow from its weights."""

    # Projected positions and initial memory are computed once, at export, and
    # stored as variables of the SavedModel.

    # The axes of the tensors of memory; others have the shape (B,).
    _meanings = {"memory": "(B, L, 2, N, M, H)"}

    def __init__(
        self,
        model,
        memory_length=None,
        max_segment_length=None,
        weights_dtype="float32",
        max_batch_size=MAX_BATCH_SIZE,
        max_generate_length=MAX_GENERATE_LENGTH,
    ):
        self.model = model
        self.backbone = model.backbone
        if memory_length is None:
            memory_length = self.backbone.memory_length
        check_integer("memory_length", memory_length, 0)
        self.backbone.check_remembers(memory_length)
        self.memory_length = memory_length
        longest = self.backbone.max_segment_length or LONGEST_SEGMENT
        if max_segment_length is None:
            max_segment_length = min(_SEGMENT_LENGTH, longest)
        check_integer("max_segment_length", max_segment_length, 1, longest)
        self.max_segment_length = max_segment_length
        check_one_of("weights_dtype", weights_dtype, ("float32", "bfloat16"))
        self.weights_dtype = weights_dtype
        largest = np.iinfo(np.int32).max
        check_integer("max_batch_size", max_batch_size, 1, largest)
        check_integer("max_generate_length", max_generate_length, 1, largest)
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
        empty = self.backbone.empty_projected_memory(memory_length)
        self._initial = {
            name: _constant(value[0])
            for name, value in self.to_tensors(empty).items()
        }
        self._shapes = {
            name: value.shape.as_list() for name, value in self._initial.items()
        }
        # Where all M entries are alike, only one is stored.
        size = self._shapes["memory"][3]
        self._shapes["memory"][3] = max(size, memory_length)

    @property
    def memory_specs(self):
        """Returns the specs of the tensors that clients pass as memory."""
        # All sizes are free, so that the checks in the graph can name a wrong
        # one.
        return [
            tf.TensorSpec([None] * (1 + value.shape.rank), value.dtype, name)
            for name, value in self._initial.items()
        ]

    @property
    def settings(self):
        """Returns what `settings.json` tells about the model."""
        shapes = self._shapes.items()
        return {
            "model": self.model.get_config(),
            "memory_length": self.memory_length,
            **{f"{name}_shape": shape for name, shape in shapes if shape},
            "max_segment_length": self.max_segment_length,
            "weights_dtype": self.weights_dtype,
            "max_batch_size": self.max_batch_size,
            "max_generate_length": self.max_generate_length,
        }

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

    def with_weights(self, function):
        """Wraps a function so that the model uses the stored weights in it."""
        if not self._weights:
            return function

        @functools.wraps(function)
        def call(*args):
            # Converted outside of any loop, and so only once per call.
            values = [(w, tf.cast(x, w.dtype)) for w, x in self._weights]
            with keras.StatelessScope(values):
                return function(*args)

        return call

    def positions(self, max_length):
        """Returns projected positions for segments of up to `max_length`."""
        # They are sorted by descending distance, so the nearest are last.
        start = -(self._past_length + max_length)

        def nearest(positions):
            positions = tf.convert_to_tensor(positions)[:, start:]
            return tf.cast(positions, self.backbone.compute_dtype)

        return tf.nest.map_structure(nearest, self._positions)

    def read(self, ids, memory, positions=None):
        """Returns a segment's hidden states `(B, T, D)`, L keys, L values."""
        if positions is None:
            positions = self.positions(self.max_segment_length)
        return self.backbone.call_projected(ids, memory, positions)

    def empty(self, batch_size):
        """Returns the initial memory as the tensors of `memory_specs`."""
        return [
            tf.broadcast_to(value, tf.stack([batch_size, *self._shapes[name]]))
            for name, value in self._initial.items()
        ]

    def from_tensors(self, *tensors):
        """Builds the memory of the backbone from what clients pass."""
        memory, valid_length = self._ensured(tensors)
        keys, values = self._unstacked(memory)
        return ProjectedMemory(keys, values, None, tf.identity(valid_length))

    def _ensured(self, tensors):
        """Returns tensors of memory with their static shapes."""
        return [
            tf.ensure_shape(tensor, (None, *shape))
            for tensor, shape in zip(
                tensors, self._shapes.values(), strict=True
            )
        ]

    def ring_from_tensors(self, *tensors):
        """Builds a memory that `append` can write to in place."""
        return self.from_tensors(*tensors).as_ring()

    def to_tensors(self, memory):
        """Converts memory of the backbone into a dictionary of tensors."""
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

    def check_memory(self, batch_size, *tensors):
        """Returns checks of the memory of `batch_size` rows."""
        tensors = dict(zip(self._shapes, tensors, strict=True))
        shapes = [
            check_shape(
                name,
                tensor,
                tf.stack([batch_size, *self._shapes[name]]),
                self._meanings.get(name, "(B,)"),
            )
            for name, tensor in tensors.items()
        ]
        numbers = [
            check_finite(name, tensor)
            for name, tensor in tensors.items()
            if tensor.dtype.is_floating
        ]
        return [*shapes, *numbers, self._check_counts(**tensors)]

    def _check_counts(self, valid_length, **_):
        """Returns a check of the integers of memory."""
        return check_range("valid_length", valid_length, 0, self.memory_length)

    def check_length(self, length):
        """Returns a check of the number of tokens to generate."""
        return check_range("length", length, 0, self.max_generate_length)


class ServedCompressiveModel(ServedModel):
    """Holds a language model with compressed memory."""

    # Clients pass a `CompressiveCache`: what is in it depends on the number of
    # tokens read, not only on the text, so it stays in the order of its slots.

    _meanings = {"memory": "(B, L, 2, N, C + M, H)", "states": "(B, L, W, D)"}

    def from_tensors(self, *tensors):
        memory, states, num_tokens, num_compressed = self._ensured(tensors)
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

    def _check_counts(self, num_tokens, num_compressed, **_):
        evicted = tf.maximum(num_tokens - self.memory_length, 0)
        return check(
            tf.reduce_all(num_tokens >= 0)
            & tf.reduce_all(num_compressed >= 0)
            & tf.reduce_all(
                num_compressed * self.backbone.compression_rate <= evicted
            ),
            "`num_tokens` and `num_compressed` must be those that a signature "
            "returned. Received:",
            num_tokens,
            num_compressed,
        )


def served_model(model, *arguments):
    """Returns the `ServedModel` of a language model, of either class."""
    if not model.backbone.has_attention:
        raise ValueError(
            "`model` must have a TransformerXLBackbone to be exported. "
            f"Received: backbone={type(model.backbone).__name__}"
        )
    compresses = model.backbone.num_pending is not None
    served_class = ServedCompressiveModel if compresses else ServedModel
    return served_class(model, *arguments)


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
