"""Stateless signatures of a SavedModel, as functions of tensors.

Letters: `B` batch, `T` segment, `P` prompt, `M` memory, `D` hidden size, `N`
heads, `H` head size, `L` layers, `V` vocabulary.
"""

import functools
import inspect

import tensorflow as tf

from txl_keras.samplers.sampler import Sampler
from txl_keras.serving.graph_checks import check
from txl_keras.serving.graph_checks import check_range
from txl_keras.serving.graph_checks import check_shape
from txl_keras.serving.graph_writer import write_tokens

# Defaults for requests to a server; none of them changes the distribution.
_SAMPLING = {
    "seed": 0,
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
}


def sampling_specs():
    """Returns the input specs of the seed and the parameters of `Sampler`."""
    return [
        tf.TensorSpec((), tf.constant(value).dtype, name)
        for name, value in _SAMPLING.items()
    ]


def with_names(function, specs):
    """Wraps a function, so that its arguments have the names of `specs`."""
    # Sampling parameters have defaults. Those of a signature must be tensors.
    # They are created here, because in the definition of the function they
    # would initialize devices at import.
    signature = inspect.Signature(
        [
            inspect.Parameter(
                spec.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=tf.constant(_SAMPLING[spec.name])
                if spec.name in _SAMPLING
                else inspect.Parameter.empty,
            )
            for spec in specs
        ]
    )

    @functools.wraps(function)
    def call(*args, **kwargs):
        return function(*signature.bind(*args, **kwargs).args)

    call.__signature__ = signature
    return call


class FunctionalSignatures:
    """Holds the signatures that take and return memory; see `export`."""

    def __init__(self, served):
        self._served = served
        self._softmax = served.model.softmax

    def endpoints(self):
        """Returns a dictionary from names to functions and input specs."""
        ids = _spec("ids", None, None)
        memory = self._served.memory_specs
        endpoints = {
            "serving_default": (self.serving_default, [ids, *memory]),
            "initial_memory": (self.initial_memory, [_spec("batch_size")]),
            "score": (
                self.score,
                [ids, _spec("targets", None, None), *memory],
            ),
            "hidden_states": (self.hidden_states, [ids, *memory]),
        }
        if self._served.remembers:
            endpoints["generate"] = (
                self.generate,
                [
                    _spec("prompt_ids", None, None),
                    _spec("prompt_length", None),
                    *memory,
                    _spec("length"),
                    *sampling_specs(),
                ],
            )
        return {
            name: (with_names(function, specs), specs)
            for name, (function, specs) in endpoints.items()
        }

    def initial_memory(self, batch_size):
        """Returns the initial memory of a batch."""
        can_be_made = check_range(
            "batch_size", batch_size, 0, self._served.max_batch_size
        )
        with tf.control_dependencies([can_be_made]):
            tensors = self._served.empty(tf.identity(batch_size))
        return {
            spec.name: tensor
            for spec, tensor in zip(
                self._served.memory_specs, tensors, strict=True
            )
        }

    def serving_default(self, ids, *memory):
        """Computes log-probabilities of the next token at every position."""
        hidden, memory = self._read(ids, memory)
        return {"log_probs": self._softmax.log_probs(hidden), **memory}

    def score(self, ids, targets, *memory):
        """Computes the negative log-likelihood of every target."""
        checks = [
            check_shape("targets", targets, tf.shape(ids), "that of `ids`"),
            self._served.check_ids("targets", targets),
        ]
        with tf.control_dependencies(checks):
            targets = tf.identity(targets)
        hidden, memory = self._read(ids, memory)
        return {"nll": self._softmax(hidden, targets), **memory}

    def hidden_states(self, ids, *memory):
        """Computes the hidden states of the last layer at every position."""
        hidden, memory = self._read(ids, memory)
        return {"hidden_states": tf.cast(hidden, tf.float32), **memory}

    def _read(self, ids, memory):
        """Returns hidden states and, as outputs, memory after a segment."""
        checks = self._served.check_segment(ids)
        checks += self._served.check_memory(tf.shape(ids)[0], *memory)
        with tf.control_dependencies(checks):
            ids = tf.identity(ids)
            past = self._served.from_tensors(*map(tf.identity, memory))
        hidden, *entries = self._served.read(ids, past)
        past = self._served.backbone.append(past, entries)
        return hidden, self._served.to_tensors(past)

    def generate(self, prompt_ids, prompt_length, *arguments):
        """Generates tokens after prompts; rows do not affect each other."""
        at = len(self._served.memory_specs)
        memory, (length, seed, *sampling) = arguments[:at], arguments[at:]
        checks = self._check_prompt(prompt_ids, prompt_length, length)
        checks += self._served.check_memory(tf.shape(prompt_ids)[0], *memory)
        with tf.control_dependencies(checks):
            prompt_ids = tf.where(
                _is_real(prompt_ids, prompt_length), prompt_ids, 0
            )
            past = self._served.ring_from_tensors(*map(tf.identity, memory))
            length = tf.identity(length)
        ids, past = write_tokens(
            self._served,
            prompt_ids,
            prompt_length,
            past,
            length,
            Sampler(*sampling),
            seed,
        )
        return {"ids": ids, **self._served.to_tensors(past)}

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
            self._served.check_ids(
                "prompt_ids",
                # Padding may hold any numbers.
                tf.where(_is_real(prompt_ids, prompt_length), prompt_ids, 0),
            ),
            self._served.check_length(length),
        ]


def _spec(name, *shape):
    return tf.TensorSpec(shape, tf.int32, name)


def _is_real(prompt_ids, prompt_length):
    return tf.sequence_mask(prompt_length, tf.shape(prompt_ids)[1])
