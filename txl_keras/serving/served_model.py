"""The signatures of a language model's SavedModel, and what they share.

More letters: `P` prompt or longest text.
"""

import functools

import numpy as np
import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.checks import check_shape_in_graph
from txl_keras.checks import check_token_ids
from txl_keras.checks import checked
from txl_keras.models.generation.generator import generation_memory_length
from txl_keras.models.transformer_xl_causal_lm import TransformerXLCausalLM
from txl_keras.samplers.sampler import NO_EFFECT
from txl_keras.serving.graph_writer import read_segments
from txl_keras.serving.graph_writer import write_tokens

# Defaults for requests to a server; none of them changes the distribution.
SAMPLING = {"seed": 0, **NO_EFFECT}
# Default limits of one request.
MAX_BATCH_SIZE = 128
MAX_GENERATE_LENGTH = 4096
_SEGMENT_LENGTH = 512
# Positions are projected for as many distances, and scores take its square.
LONGEST_SEGMENT = 1 << 16


class ServedModel:
    """Holds the signatures of a language model; see `export`."""

    # Projected positions and initial memory are computed once, at export, and
    # stored as variables of the SavedModel.

    def __init__(
        self,
        model,
        memory_length=None,
        max_segment_length=None,
        max_batch_size=MAX_BATCH_SIZE,
        max_generate_length=MAX_GENERATE_LENGTH,
    ):
        self.model = model
        self.backbone = backbone = getattr(model, "backbone", None)
        is_causal = isinstance(model, TransformerXLCausalLM)
        if not is_causal or not backbone.has_attention:
            raise ValueError(
                "`model` must be a TransformerXLCausalLM of a "
                "TransformerXLBackbone to be exported. For a classifier, use "
                f"`export_classifier`. Received: {type(model).__name__} of a "
                f"{type(backbone).__name__}"
            )
        if memory_length is None:
            memory_length = backbone.memory_length
            if backbone.remembers:
                memory_length = generation_memory_length(backbone, None)
        self._past_length = backbone.past_length(memory_length)
        longest = backbone.max_segment_length or LONGEST_SEGMENT
        if max_segment_length is None:
            max_segment_length = min(_SEGMENT_LENGTH, longest)
        check_integer("max_segment_length", max_segment_length, 1, longest)
        largest = np.iinfo(np.int32).max
        check_integer("max_batch_size", max_batch_size, 1, largest)
        check_integer("max_generate_length", max_generate_length, 1, largest)
        self.memory_length = memory_length
        self.max_segment_length = max_segment_length
        self.max_batch_size = max_batch_size
        self.max_generate_length = max_generate_length
        num_distances = self._past_length + max_segment_length
        self._positions = tf.nest.map_structure(
            _variable, backbone.project_positions(num_distances)
        )
        empty = backbone.empty_projected_memory(memory_length)
        self._cache = type(empty)
        self._initial = {
            name: _variable(value[0])
            for name, value in self.to_tensors(empty).items()
        }
        self._shapes = {
            name: value.shape.as_list() for name, value in self._initial.items()
        }
        # If all M entries are equal, only one is stored.
        size = self._shapes["memory"][3]
        self._shapes["memory"][3] = max(size, memory_length)
        # Description of the model in `settings.json`.
        shapes = self._shapes.items()
        self.settings = {
            "model": model.get_config(),
            "memory_length": memory_length,
            **{f"{name}_shape": shape for name, shape in shapes if shape},
            "max_segment_length": max_segment_length,
            "max_batch_size": max_batch_size,
            "max_generate_length": max_generate_length,
        }

    def positions(self, max_length):
        """Returns projected positions for segments of up to `max_length`."""
        # They are sorted by descending distance, so the nearest are last.
        start = -(self._past_length + max_length)
        return tf.nest.map_structure(
            lambda positions: tf.convert_to_tensor(positions)[:, start:],
            self._positions,
        )

    def read(self, ids, memory, positions=None):
        """Returns a segment's hidden states `(B, T, D)`, L keys, L values."""
        if positions is None:
            positions = self.positions(self.max_segment_length)
        return self.backbone.call_projected(ids, memory, positions)

    def empty(self, batch_size):
        """Returns the initial memory as a dictionary of tensors."""
        return {
            name: tf.broadcast_to(
                value, tf.stack([batch_size, *self._shapes[name]])
            )
            for name, value in self._initial.items()
        }

    def from_tensors(self, tensors, as_ring=True):
        """Builds the memory of the backbone from a dictionary of tensors."""
        # By default, `append` can write to it in place.
        fields = dict.fromkeys(self._cache._fields)
        for name, tensor in tensors.items():
            value = tf.ensure_shape(tensor, (None, *self._shapes[name]))
            if value.dtype.is_floating:  # (B, L, ...)
                value = tf.cast(value, self.backbone.compute_dtype)
                value = tuple(tf.unstack(value, axis=1))
            fields[name] = value
        pairs = [tf.unstack(layer, axis=1) for layer in fields.pop("memory")]
        fields["keys"], fields["values"] = zip(*pairs, strict=True)
        memory = self._cache(**fields)
        return memory.as_ring() if as_ring else memory

    def to_tensors(self, memory):
        """Converts memory of the backbone into a dictionary of tensors."""
        fields = memory.in_order()._asdict()
        pairs = zip(fields.pop("keys"), fields.pop("values"), strict=True)
        fields = {"memory": [tf.stack(x, axis=1) for x in pairs], **fields}
        return {
            name: tf.cast(tf.stack(value, axis=1), tf.float32)
            if isinstance(value, (list, tuple))
            else value
            for name, value in fields.items()
            if value is not None
        }

    def check_ids(self, name, ids):
        """Checks that all ids are in the vocabulary."""
        return check_token_ids(name, ids, self.backbone.vocabulary_size)

    def check_segment(self, ids):
        """Checks the length and the ids of a segment."""
        length = tf.shape(ids)[1]
        ids = checked(
            ids,
            (length >= 1) & (length <= self.max_segment_length),
            "`ids` must have the shape (B, T), with T from 1 to "
            f"{self.max_segment_length}. Received:",
            tf.shape(ids),
        )
        return self.check_ids("ids", ids)

    def check_memory(self, batch_size, tensors):
        """Checks the memory of `batch_size` rows that a client passed."""
        tensors = {
            name: check_shape_in_graph(
                name, value, [batch_size, *self._shapes[name]]
            )
            for name, value in zip(self._shapes, tensors, strict=True)
        }
        for name, value in tensors.items():
            if value.dtype.is_floating:
                # `tf.debugging.check_numerics` is ten times slower on a CPU.
                tensors[name] = checked(
                    value,
                    tf.reduce_all(tf.math.is_finite(value)),
                    f"`{name}` must be finite. Received: NaN or infinity",
                )
        for name, largest in self._cache.largest(self._shapes).items():
            tensors[name] = check_token_ids(name, tensors[name], largest + 1)
        return tensors

    def endpoints(self, tokenizer=None):
        """Returns a dictionary from names to functions and input specs."""
        # They take and return text with a `GraphTokenizer`.
        sampling = [
            _spec("length"),
            *(
                _spec(name, dtype=tf.constant(value).dtype)
                for name, value in SAMPLING.items()
            ),
        ]
        if tokenizer is not None:
            score = functools.partial(self.score_text, tokenizer)
            generate = functools.partial(self.generate_text, tokenizer)
            text = _spec("text", None, dtype=tf.string)
            prompt = _spec("prompt", None, dtype=tf.string)
            return {
                "score_text": (score, [text]),
                "generate_text": (generate, [prompt, *sampling]),
            }
        ids = _spec("ids", None, None)
        # All sizes are free, so that the checks in the graph can name a wrong
        # size.
        memory = [
            tf.TensorSpec([None] * (1 + value.shape.rank), value.dtype, name)
            for name, value in self._initial.items()
        ]
        targets = _spec("targets", None, None)
        prompt = [
            _spec("prompt_ids", None, None),
            _spec("prompt_length", None),
            *memory,
            *sampling,
        ]
        endpoints = {
            "serving_default": (self.serving_default, [ids, *memory]),
            "initial_memory": (self.initial_memory, [_spec("batch_size")]),
            "score": (self.score, [ids, targets, *memory]),
            "hidden_states": (self.hidden_states, [ids, *memory]),
        }
        if self.backbone.remembers:
            endpoints["generate"] = (self.generate, prompt)
        return endpoints

    def initial_memory(self, batch_size):
        """Returns the initial memory of a batch."""
        return self.empty(
            check_token_ids("batch_size", batch_size, self.max_batch_size + 1)
        )

    def serving_default(self, ids, *memory):
        """Computes log-probabilities of the next token at every position."""
        hidden, memory = self._read_segment(ids, memory)
        return {"log_probs": self.model.softmax.log_probs(hidden), **memory}

    def score(self, ids, targets, *memory):
        """Computes the negative log-likelihood of every target."""
        targets = check_shape_in_graph(
            "targets", targets, tf.unstack(tf.shape(ids))
        )
        targets = self.check_ids("targets", targets)
        hidden, memory = self._read_segment(ids, memory)
        return {"nll": self.model.softmax(hidden, targets), **memory}

    def hidden_states(self, ids, *memory):
        """Computes the hidden states of the last layer at every position."""
        hidden, memory = self._read_segment(ids, memory)
        return {"hidden_states": tf.cast(hidden, tf.float32), **memory}

    def _read_segment(self, ids, memory):
        """Returns hidden states and, as outputs, memory after a segment."""
        memory = self.check_memory(tf.shape(ids)[0], memory)
        past = self.from_tensors(memory, as_ring=False)
        hidden, *entries = self.read(self.check_segment(ids), past)
        return hidden, self.to_tensors(self.backbone.append(past, entries))

    def generate(self, prompt_ids, prompt_length, *arguments):
        """Generates tokens after prompts; rows do not affect each other."""
        at = len(self._initial)
        memory, sampling = arguments[:at], arguments[at:]
        batch_size, size = tf.unstack(tf.shape(prompt_ids))
        prompt_ids = checked(
            prompt_ids,
            (batch_size >= 1) & (size >= 1),
            "`prompt_ids` must have the shape (B, P), both at least 1. "
            "Received:",
            tf.shape(prompt_ids),
        )
        prompt_length = check_shape_in_graph(
            "prompt_length", prompt_length, [batch_size]
        )
        prompt_length = check_token_ids(
            "prompt_length", prompt_length, size + 1, 1
        )
        # Padding may hold any numbers.
        is_real = tf.sequence_mask(prompt_length, size)
        prompt_ids = tf.where(is_real, prompt_ids, 0)
        ids, past = write_tokens(
            self,
            self.check_ids("prompt_ids", prompt_ids),
            prompt_length,
            self.check_memory(batch_size, memory),
            *sampling,
        )
        return {"ids": ids, **self.to_tensors(past)}

    def score_text(self, tokenizer, text):
        """Computes the negative log-likelihood of texts and their tokens."""
        ids, lengths = tokenizer.encode_input("text", text)
        memory = self.from_tensors(self.empty(tf.size(lengths)))
        size = self.max_segment_length
        _, nll = read_segments(self, ids, lengths, memory, size, scores=True)
        nll = tf.where(tf.sequence_mask(lengths, tf.shape(ids)[1]), nll, 0.0)
        return {
            "nll": tf.reduce_sum(nll, axis=1),
            "token_nll": nll,
            "ids": ids,
            "lengths": lengths,
        }

    def generate_text(self, tokenizer, prompt, *sampling):
        """Generates text after prompts, which do not affect each other."""
        batch_size = tf.size(prompt)
        prompt = checked(
            prompt, batch_size >= 1, "`prompt` must have at least one row"
        )
        ids, lengths = tokenizer.encode_input("prompt", prompt)
        ids, lengths = tokenizer.after_line_end(ids, lengths)
        lengths, allowed, known = tokenizer.take_back(ids, lengths)
        empty = self.empty(batch_size)
        written, _ = write_tokens(
            self, ids, lengths, empty, *sampling, allowed=allowed
        )
        text = tokenizer.decode(written)
        if known is not None:
            size = tf.strings.length(text)
            known = tf.minimum(known, size)
            text = tf.strings.substr(text, known, size - known)
        return {"text": text, "ids": written}


def _spec(name, *shape, dtype=tf.int32):
    return tf.TensorSpec(shape, dtype, name)


def _variable(value):
    return tf.Variable(value, trainable=False)
