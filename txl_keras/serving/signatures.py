"""What a SavedModel can be asked, as functions of tensors.

Letters: `B` batch, `T` segment, `P` prompt, `M` memory, `D` hidden size, `N`
heads, `H` head size, `L` layers, `V` vocabulary.
"""

import contextlib
import functools
import inspect

import keras
import tensorflow as tf

from txl_keras.layers.memory.projected_memory import ProjectedMemory
from txl_keras.serving.graph_checks import check
from txl_keras.serving.graph_checks import check_finite
from txl_keras.serving.graph_checks import check_range
from txl_keras.serving.graph_checks import check_shape
from txl_keras.serving.graph_writer import GraphWriter
from txl_keras.serving.samplers import Sampler

# What one request may ask for, unless the export says otherwise.
MAX_BATCH_SIZE = 128
MAX_GENERATE_LENGTH = 4096
# What servers take where a request has none: nothing is cut or sharpened.
_SAMPLING = {
    "seed": 0,
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
}


def sampling_specs():
    """Input specs of the seed and of the parameters of `Sampler`."""
    return [
        tf.TensorSpec((), tf.constant(value).dtype, name)
        for name, value in _SAMPLING.items()
    ]


def with_sampling_defaults(function):
    """A function that may be called without them.

    Defaults of a signature are tensors. They are made here and not where the
    function is defined, or importing it would start TensorFlow's devices.
    """

    @functools.wraps(function)
    def call(*args, **kwargs):
        return function(*args, **kwargs)

    signature = inspect.signature(function)
    call.__signature__ = signature.replace(
        parameters=[
            parameter.replace(default=tf.constant(_SAMPLING[name]))
            if name in _SAMPLING
            else parameter
            for name, parameter in signature.parameters.items()
        ]
    )
    return call


class Reader:
    """Reads segments: a model and what its weights alone decide.

    The projected positions and the entry of an empty memory are computed here,
    once, and are variables of the SavedModel from then on.

    Args:
        model: `TransformerXLCausalLM`.
        memory_length: Integer `M`.
        max_segment_length: Integer, the longest segment.
        weights_dtype: String, `"float32"` or `"bfloat16"`: see `export`.
        max_batch_size: Integer, the most rows of a request.
        max_generate_length: Integer, the most tokens that a request writes.

    Attributes:
        memory_shape: Tuple, the shape `(L, 2, N, M, H)` of a row's memory.
        remembers: Boolean, false where positions are absolute and M is 0.
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
        self.remembers = self.backbone.remembers
        num_distances = memory_length + max_segment_length
        self._positions = tf.nest.map_structure(
            lambda value: _constant(_stored(value, weights_dtype)),
            self.backbone.project_positions(num_distances),
        )
        self._weights = []
        if weights_dtype != "float32":
            self._weights = [
                (weight, _constant(_stored(weight, weights_dtype)))
                for weight in self._read_weights()
            ]
        empty = self.backbone.empty_projected_memory(memory_length)
        self._cold_memory = _constant(self.to_tensors(empty)["memory"][0])
        self._cold_valid_length = int(empty.valid_length[0])
        self.memory_shape = (
            *self._cold_memory.shape[:3],
            memory_length,
            self.backbone.head_dim,
        )

    def _read_weights(self):
        """Those that a call reads: not what positions were projected by."""
        project = tf.function(self.backbone.project_positions, autograph=False)
        variables = project.get_concrete_function(1).variables
        not_read = {id(variable) for variable in variables}
        return [w for w in self.model.weights if id(w.value) not in not_read]

    @contextlib.contextmanager
    def weights(self):
        """Within it the model has the weights that are stored."""
        if not self._weights:
            yield
            return
        # Outside of any loop, so that a call converts each weight once.
        values = [(w, tf.cast(stored, w.dtype)) for w, stored in self._weights]
        with keras.StatelessScope(values):
            yield

    def positions(self, max_length):
        """Projected positions for segments of at most so many tokens."""
        # The nearest come last.
        start = -(self.memory_length + max_length)

        def nearest(positions):
            positions = tf.convert_to_tensor(positions)[:, start:]
            return tf.cast(positions, self.backbone.compute_dtype)

        return tf.nest.map_structure(nearest, self._positions)

    def read(self, ids, memory, positions=None):
        """Reads a segment, and remembers nothing of it yet.

        Args:
            ids: int32 tensor of shape `(B, T)`.
            memory: `ProjectedMemory`.
            positions: What `positions` returned; by default, for the longest
                segment.

        Returns:
            Triple of hidden states `(B, T, D)`, L keys and L values.
        """
        if positions is None:
            positions = self.positions(self.max_segment_length)
        return self.backbone.call_projected(ids, memory, positions)

    def empty(self, batch_size):
        """Memory of a cold start.

        Returns:
            The pair of tensors float32 `(B, L, 2, N, M, H)` and int32 `(B,)`.
        """
        shape = tf.concat([[batch_size], self.memory_shape], axis=0)
        memory = tf.broadcast_to(tf.convert_to_tensor(self._cold_memory), shape)
        return memory, tf.fill((batch_size,), self._cold_valid_length)

    def from_tensors(self, memory, valid_length):
        """`ProjectedMemory` of the two tensors that clients pass."""
        memory = tf.ensure_shape(memory, (None, *self.memory_shape))
        memory = tf.cast(memory, self.backbone.compute_dtype)
        layers = [
            tf.unstack(layer, axis=1) for layer in tf.unstack(memory, axis=1)
        ]
        keys, values = zip(*layers, strict=True)
        return ProjectedMemory(keys, values, None, tf.identity(valid_length))

    def to_tensors(self, memory):
        """The reverse of `from_tensors`, as a dictionary of outputs."""
        memory = memory.in_order()
        layers = [
            tf.stack(layer, axis=1)
            for layer in zip(memory.keys, memory.values, strict=True)
        ]
        return {
            "memory": tf.cast(tf.stack(layers, axis=1), tf.float32),
            "valid_length": memory.valid_length,
        }

    def check_ids(self, name, ids):
        """An operation that fails if there are ids outside the vocabulary."""
        return check_range(name, ids, 0, self.backbone.vocabulary_size - 1)

    def check_segment(self, ids):
        """Those that fail if a segment cannot be read."""
        length = tf.shape(ids)[1]
        is_in_range = (length >= 1) & (length <= self.max_segment_length)
        return [
            check(
                is_in_range,
                "`ids` must have the shape (B, T), T from 1 to "
                f"{self.max_segment_length}. Received:",
                tf.shape(ids),
            ),
            self.check_ids("ids", ids),
        ]

    def check_memory(self, batch_size, memory, valid_length):
        """Those that fail if memory is not that of so many rows."""
        shape = tf.concat([[batch_size], self.memory_shape], axis=0)
        return [
            check_shape("memory", memory, shape, "(B, L, 2, N, M, H)"),
            check_shape("valid_length", valid_length, [batch_size], "(B,)"),
            check_range("valid_length", valid_length, 0, self.memory_length),
            check_finite("memory", memory),
        ]

    def check_length(self, length):
        """An operation that fails if so many tokens may not be written."""
        return check_range("length", length, 0, self.max_generate_length)


class FunctionalSignatures:
    """Those with memory in and memory out; see `export`.

    Args:
        reader: `Reader`.
    """

    def __init__(self, reader):
        self._reader = reader
        self._softmax = reader.model.softmax

    def endpoints(self):
        """Dictionary of name to the pair of function and input specs."""
        ids = _spec("ids", None, None)
        endpoints = {
            "serving_default": (self.serving_default, [ids, *_MEMORY]),
            "initial_memory": (self.initial_memory, [_spec("batch_size")]),
            "score": (
                self.score,
                [ids, _spec("targets", None, None), *_MEMORY],
            ),
            "hidden_states": (self.hidden_states, [ids, *_MEMORY]),
        }
        if self._reader.remembers:
            endpoints["generate"] = (
                with_sampling_defaults(self.generate),
                [
                    _spec("prompt_ids", None, None),
                    _spec("prompt_length", None),
                    *_MEMORY,
                    _spec("length"),
                    *sampling_specs(),
                ],
            )
        return endpoints

    def initial_memory(self, batch_size):
        """Memory of a cold start."""
        can_be_made = check_range(
            "batch_size", batch_size, 0, self._reader.max_batch_size
        )
        with tf.control_dependencies([can_be_made]):
            memory, valid_length = self._reader.empty(tf.identity(batch_size))
        return {"memory": memory, "valid_length": valid_length}

    def serving_default(self, ids, memory, valid_length):
        """Log-probabilities of the next token at every position."""
        hidden, memory = self._read(ids, memory, valid_length)
        return {"log_probs": self._softmax.log_probs(hidden), **memory}

    def score(self, ids, targets, memory, valid_length):
        """Negative log-likelihood of every target."""
        checks = [
            check_shape("targets", targets, tf.shape(ids), "that of `ids`"),
            self._reader.check_ids("targets", targets),
        ]
        with tf.control_dependencies(checks):
            targets = tf.identity(targets)
        hidden, memory = self._read(ids, memory, valid_length)
        return {"nll": self._softmax(hidden, targets), **memory}

    def hidden_states(self, ids, memory, valid_length):
        """What the model makes of every position."""
        hidden, memory = self._read(ids, memory, valid_length)
        return {"hidden_states": tf.cast(hidden, tf.float32), **memory}

    def _read(self, ids, memory, valid_length):
        """Hidden states and, as outputs, the memory after a segment."""
        checks = self._reader.check_segment(ids)
        checks += self._reader.check_memory(
            tf.shape(ids)[0], memory, valid_length
        )
        with tf.control_dependencies(checks):
            ids = tf.identity(ids)
            past = self._reader.from_tensors(memory, valid_length)
        hidden, *entries = self._reader.read(ids, past)
        return hidden, self._reader.to_tensors(past.append(*entries))

    def generate(
        self,
        prompt_ids,
        prompt_length,
        memory,
        valid_length,
        length,
        seed,
        temperature,
        top_k,
        top_p,
        typical_p,
        repetition_penalty,
    ):
        """Tokens after prompts, each row as if it were alone."""
        checks = self._check_prompt(prompt_ids, prompt_length, length)
        checks += self._reader.check_memory(
            tf.shape(prompt_ids)[0], memory, valid_length
        )
        with tf.control_dependencies(checks):
            sampler = Sampler(
                temperature, top_k, top_p, typical_p, repetition_penalty
            )
            prompt_ids = tf.where(
                _is_real(prompt_ids, prompt_length), prompt_ids, 0
            )
            past = self._reader.from_tensors(memory, valid_length).as_ring()
            length = tf.identity(length)
        ids, past = GraphWriter(self._reader)(
            prompt_ids, prompt_length, past, length, sampler, seed
        )
        return {"ids": ids, **self._reader.to_tensors(past)}

    def _check_prompt(self, prompt_ids, prompt_length, length):
        batch_size, size = tf.unstack(tf.shape(prompt_ids))
        return [
            check(
                (batch_size >= 1) & (size >= 1),
                "`prompt_ids` must have the shape (B, P), both at least 1. "
                "Received:",
                tf.shape(prompt_ids),
            ),
            check_shape("prompt_length", prompt_length, [batch_size], "(B,)"),
            check_range("prompt_length", prompt_length, 1, size),
            self._reader.check_ids(
                "prompt_ids",
                # Padding may be anything.
                tf.where(_is_real(prompt_ids, prompt_length), prompt_ids, 0),
            ),
            self._reader.check_length(length),
        ]


def _constant(value):
    return tf.Variable(value, trainable=False)


def _stored(value, dtype):
    """Half as large, unless that would save nothing."""
    value = tf.convert_to_tensor(value)
    return tf.cast(value, dtype) if value.shape.rank > 1 else value


def _spec(name, *shape, dtype=tf.int32):
    return tf.TensorSpec(shape, dtype, name)


# Of free sizes, so that it can be said what is wrong with others.
_MEMORY = [
    _spec("memory", *(None,) * 6, dtype=tf.float32),
    _spec("valid_length", None),
]


def _is_real(prompt_ids, prompt_length):
    return tf.sequence_mask(prompt_length, tf.shape(prompt_ids)[1])
