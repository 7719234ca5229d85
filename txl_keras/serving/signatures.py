"""Signatures of a SavedModel of a language model, as functions of tensors.

Letters: `B` batch, `T` segment, `P` prompt or longest text, `M` memory, `D`
hidden size, `N` heads, `H` head size, `L` layers, `V` vocabulary.
"""

import tensorflow as tf

from txl_keras.checks import check_shape_in_graph
from txl_keras.checks import checked
from txl_keras.samplers.sampler import NO_EFFECT
from txl_keras.serving.graph_checks import check_not_empty
from txl_keras.serving.graph_checks import check_range
from txl_keras.serving.graph_writer import read_segments
from txl_keras.serving.graph_writer import write_tokens

# Defaults for requests to a server; none of them changes the distribution.
SAMPLING = {"seed": 0, **NO_EFFECT}


def _spec(name, *shape, dtype=tf.int32):
    return tf.TensorSpec(shape, dtype, name)


def _sampling_specs():
    """Returns the specs of the length, the seed and the sampler's arguments."""
    return [
        _spec("length"),
        *(
            _spec(name, dtype=tf.constant(value).dtype)
            for name, value in SAMPLING.items()
        ),
    ]


class Signatures:
    """Holds the signatures of ids, or those of text; see `export`."""

    def __init__(self, served, tokenizer=None):
        self._served = served
        self._softmax = served.model.softmax
        self._tokenizer = tokenizer

    def endpoints(self):
        """Returns a dictionary from names to functions and input specs."""
        if self._tokenizer is not None:
            text = _spec("text", None, dtype=tf.string)
            prompt = _spec("prompt", None, dtype=tf.string)
            specs = [prompt, *_sampling_specs()]
            return {
                "score_text": (self.score_text, [text]),
                "generate_text": (self.generate_text, specs),
            }
        ids = _spec("ids", None, None)
        memory = self._served.memory_specs
        targets = _spec("targets", None, None)
        prompt = [
            _spec("prompt_ids", None, None),
            _spec("prompt_length", None),
            *memory,
            *_sampling_specs(),
        ]
        endpoints = {
            "serving_default": (self.serving_default, [ids, *memory]),
            "initial_memory": (self.initial_memory, [_spec("batch_size")]),
            "score": (self.score, [ids, targets, *memory]),
            "hidden_states": (self.hidden_states, [ids, *memory]),
        }
        if self._served.backbone.remembers:
            endpoints["generate"] = (self.generate, prompt)
        return endpoints

    def initial_memory(self, batch_size):
        """Returns the initial memory of a batch."""
        return self._served.empty(
            check_range(
                "batch_size", batch_size, 0, self._served.max_batch_size
            )
        )

    def serving_default(self, ids, *memory):
        """Computes log-probabilities of the next token at every position."""
        hidden, memory = self._read(ids, memory)
        return {"log_probs": self._softmax.log_probs(hidden), **memory}

    def score(self, ids, targets, *memory):
        """Computes the negative log-likelihood of every target."""
        targets = check_shape_in_graph(
            "targets", targets, tf.unstack(tf.shape(ids))
        )
        targets = self._served.check_ids("targets", targets)
        hidden, memory = self._read(ids, memory)
        return {"nll": self._softmax(hidden, targets), **memory}

    def hidden_states(self, ids, *memory):
        """Computes the hidden states of the last layer at every position."""
        hidden, memory = self._read(ids, memory)
        return {"hidden_states": tf.cast(hidden, tf.float32), **memory}

    def _read(self, ids, memory):
        """Returns hidden states and, as outputs, memory after a segment."""
        served = self._served
        memory = served.check_memory(tf.shape(ids)[0], memory)
        past = served.from_tensors(memory, as_ring=False)
        hidden, *entries = served.read(served.check_segment(ids), past)
        return hidden, served.to_tensors(served.backbone.append(past, entries))

    def generate(self, prompt_ids, prompt_length, *arguments):
        """Generates tokens after prompts; rows do not affect each other."""
        served, at = self._served, len(self._served.memory_specs)
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
        prompt_length = check_range("prompt_length", prompt_length, 1, size)
        # Padding may hold any numbers.
        is_real = tf.sequence_mask(prompt_length, size)
        prompt_ids = tf.where(is_real, prompt_ids, 0)
        ids, past = write_tokens(
            served,
            served.check_ids("prompt_ids", prompt_ids),
            prompt_length,
            served.check_memory(batch_size, memory),
            *sampling,
        )
        return {"ids": ids, **served.to_tensors(past)}

    def score_text(self, text):
        """Computes the negative log-likelihood of texts and their tokens."""
        served = self._served
        ids, lengths = self._tokenizer.encode(text)
        lengths = check_not_empty("text", lengths)
        memory = served.from_tensors(served.empty(tf.size(lengths)))
        size = served.max_segment_length
        _, nll = read_segments(served, ids, lengths, memory, size, scores=True)
        nll = tf.where(tf.sequence_mask(lengths, tf.shape(ids)[1]), nll, 0.0)
        return {
            "nll": tf.reduce_sum(nll, axis=1),
            "token_nll": nll,
            "ids": ids,
            "lengths": lengths,
        }

    def generate_text(self, prompt, *sampling):
        """Generates text after prompts, which do not affect each other."""
        served = self._served
        ids, lengths = self._tokenizer.encode(prompt)
        batch_size = tf.size(lengths)
        lengths = checked(
            lengths, batch_size >= 1, "`prompt` must have at least one row"
        )
        written, _ = write_tokens(
            served,
            ids,
            check_not_empty("prompt", lengths),
            served.empty(batch_size),
            *sampling,
        )
        return {"text": self._tokenizer.decode(written), "ids": written}
