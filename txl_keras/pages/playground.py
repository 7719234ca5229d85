"""Answers questions that visitors of the playground ask a model.

Letters: `M` memory.
"""

import itertools
import threading
import warnings

import tensorflow as tf
from absl import logging

from txl_keras.checks import check_integer
from txl_keras.json_files import check_fields
from txl_keras.models.generation.generator import generation_memory_length
from txl_keras.pages.surprise import SurpriseReader
from txl_keras.samplers.sampler import NO_EFFECT
from txl_keras.samplers.sampler import Sampler

# Limits on what one visitor can ask for, so that others need not wait long.
MAX_PROMPT_TOKENS = 5_000
MAX_NEW_TOKENS = 2_000
MAX_TEXT_TOKENS = 5_000
_SEGMENT_LENGTH = 64
_SHORTER_MEMORIES = (0, 4, 16, 64, 256, 1024)
_WRITE_FIELDS = {
    "prompt": "a string",
    "max_tokens": "an integer",
    "temperature": "a number",
    "top_k": "an integer or null",
    "top_p": "a number or null",
    "repetition_penalty": "a number or null",
    "seed": "an integer",
    "other_memory_length": "an integer or null",
}


class Playground:
    """Answers the visitors of the page, one after another.

    An answer is an iterator of events, dictionaries that JSON can hold.
    The last event is `{"done": True}` or `{"error": message}`. While another
    visitor is answered, it yields `{"waiting": True}`. Close it to stop.
    """

    def __init__(self, model, memory_length=None, segment_length=None):
        limit = model.backbone.max_segment_length or _SEGMENT_LENGTH
        segment_length = segment_length or min(_SEGMENT_LENGTH, limit)
        self._reader = SurpriseReader(model, segment_length=segment_length)
        self._model = model
        self._memory_length = generation_memory_length(
            model.backbone, memory_length
        )
        lengths = _SHORTER_MEMORIES if model.backbone.has_attention else ()
        shortest = model.backbone.shortest_memory
        self._others = [
            x for x in lengths if shortest <= x < self._memory_length
        ]
        # Variables, because other numbers would need another compilation.
        self._settings = {
            name: tf.Variable(value) for name, value in NO_EFFECT.items()
        }
        self._sampler = Sampler(**self._settings)
        self._turn = threading.Lock()

    def describe(self):
        """Returns what the page shows about the model and the limits."""
        return {
            "num_weights": self._model.count_params(),
            "unit": self._reader.tokenizer.unit,
            "memory_length": self._memory_length,
            "other_memory_lengths": self._others,
            "max_prompt_tokens": MAX_PROMPT_TOKENS,
            "max_new_tokens": MAX_NEW_TOKENS,
            "max_text_tokens": MAX_TEXT_TOKENS,
        }

    def write(self, question):
        """Continues a prompt, with one or two memory lengths at once."""
        # Yields `{"note": text}` about words that are not in the vocabulary,
        # and `{"texts": parts}`, a list with the next part per memory length.
        return self._in_turn(self._write(question))

    def surprise(self, question):
        """Measures how surprising each token of `question["text"]` is."""
        # Yields `{"read": tokens, "of": tokens}`, then `{"page": HTML}`.
        return self._in_turn(self._surprise(question))

    def _in_turn(self, events):
        """Yields events while it is the turn of this visitor."""
        while not self._turn.acquire(timeout=1):
            yield {"waiting": True}
        try:
            yield from events
            yield {"done": True}
        except (ValueError, FloatingPointError) as error:
            yield {"error": str(error)}
        except Exception:  # noqa: BLE001, other visitors must be served
            logging.exception("A visitor of the demo got no answer:")
            yield {"error": "The server failed; its terminal shows the error."}
        finally:
            self._turn.release()

    def _write(self, question):
        check_fields(question, _WRITE_FIELDS, "The question")
        other = question.get("other_memory_length")
        if other is not None and other not in self._others:
            raise ValueError(
                f"`other_memory_length` must be null or one of {self._others}. "
                f"Received: other_memory_length={other}"
            )
        num_new = check_integer(
            "max_tokens", question["max_tokens"], 1, MAX_NEW_TOKENS
        )
        received = len(self._reader.tokenizer.encode(question["prompt"]))
        if received > MAX_PROMPT_TOKENS:
            raise ValueError(
                f"`prompt` must have at most {MAX_PROMPT_TOKENS:,} tokens. "
                f"Received: a prompt of {received:,} tokens"
            )
        numbers = {name: question.get(name) for name in self._settings}
        Sampler(**numbers)  # raises an error that names a wrong number
        lengths = [self._memory_length] + [other] * (other is not None)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            streams = [
                self._model.generate(
                    question["prompt"],
                    max_new_tokens=num_new,
                    sampler=self._sampler,
                    seed=question["seed"],
                    stream=True,
                    memory_length=length,
                )
                for length in lengths
            ]
        for note in dict.fromkeys(str(warning.message) for warning in caught):
            yield {"note": note}
        for name, variable in self._settings.items():
            value = numbers[name]
            variable.assign(NO_EFFECT[name] if value is None else value)
        for parts in itertools.zip_longest(*streams, fillvalue=""):
            yield {"texts": list(parts)}

    def _surprise(self, question):
        check_fields(question, {"text": "a string"}, "The question")
        ids = self._reader.encode(question["text"], MAX_TEXT_TOKENS)
        found = []
        for segment in self._reader.read_segments(ids):
            found += segment
            yield {"read": len(found) + 1, "of": len(ids)}
        data = {**self._reader.data(ids, found), "mode": "both"}
        yield {"page": self._reader.page("Surprise", data)}
