"""The checked arguments of one call of `generate`."""

import random
import warnings

import numpy as np

from txl_keras.checks import check_integer
from txl_keras.checks import check_list
from txl_keras.checks import check_token_ids
from txl_keras.checks import shown
from txl_keras.models.generation.continuation import Continuation
from txl_keras.models.generation.text_stream import TextStream
from txl_keras.models.generation.text_stream import check_stop
from txl_keras.models.generation.token_reader import check_prompts

# New tokens if neither `max_length` nor `max_new_tokens` is given.
_DEFAULT_NEW_TOKENS = 256


class Request:
    """Holds the checked arguments of `model.generate`, and makes its result."""

    def __init__(
        self,
        model,
        prompts,
        max_length,
        max_new_tokens,
        stop_token_ids,
        stop,
        seed,
        memory_length,
    ):
        vocabulary_size = model.backbone.vocabulary_size
        self._tokenizer = None
        self._is_single = isinstance(prompts, str)
        if self._is_single:
            prompts = [prompts]
        items = prompts if isinstance(prompts, list | tuple) else [prompts]
        if any(isinstance(prompt, bytes) for prompt in items):
            raise ValueError(
                "`prompts` must be a string, a list of strings, or token ids: "
                "turn bytes into a string with `.decode()`. "
                f"Received: prompts={shown(prompts)}"
            )
        check_list("prompts", prompts)
        self._prompts = list(prompts)
        if any(isinstance(prompt, str) for prompt in self._prompts):
            _check_all_text(self._prompts)
            check_has_tokenizer(model, "prompts")
            self._tokenizer = model.tokenizer
            self.ids = _encode(self._tokenizer, self._prompts)
        elif self._prompts and _is_scalar(self._prompts[0]):
            self._is_single = True
            self.ids = check_prompts([prompts], vocabulary_size)
        else:
            self.ids = check_prompts(prompts, vocabulary_size)
        lengths = [len(ids) for ids in self.ids]
        self._num_new = _num_new_tokens(lengths, max_length, max_new_tokens)
        self.num_new_tokens = max(self._num_new)
        self._stop_token_ids = check_stop_ids(
            "stop_token_ids", stop_token_ids, vocabulary_size
        )
        self._stop = check_stop(stop)
        if self._tokenizer is None and self._stop:
            raise ValueError(
                "`stop` must be empty for prompts of token ids. Use "
                f"`stop_token_ids`, or prompts of text. Received: stop={stop!r}"
            )
        self.seed = generation_seed(seed, len(self.ids))
        self.memory_length = generation_memory_length(
            model.backbone, memory_length
        )

    def continuations(self):
        """Returns a new `Continuation` for each prompt."""
        streams = [None] * len(self.ids)
        if self._tokenizer is not None:
            streams = [
                TextStream(self._tokenizer.decode_bytes, self._stop)
                for _ in self.ids
            ]
        return [
            Continuation(stream, num_new, self._stop_token_ids)
            for stream, num_new in zip(streams, self._num_new, strict=True)
        ]

    def continue_with(self, tokens):
        """Yields the continuations after each of the `tokens` `(B,)`."""
        continuations = self.continuations()
        yield continuations
        for row_tokens in tokens:
            for row, token in zip(continuations, row_tokens, strict=True):
                row.add(token)
            yield continuations
            if all(row.is_ended for row in continuations):
                return

    def parts(self, steps):
        """Yields what is new in each of the steps, if anything is."""
        for continuations in steps:
            rows = [row.take() for row in continuations]
            if any(len(row) for row in rows):
                yield self._as_given(rows)

    def result(self, steps, strip_prompt):
        """Returns text or ids as they are after the last of the steps."""
        *_, continuations = steps
        rows = [row.take() for row in continuations]
        if not strip_prompt and self._tokenizer is not None:
            pairs = zip(self._prompts, rows, strict=True)
            rows = [prompt + text for prompt, text in pairs]
        elif not strip_prompt:
            rows = list(map(np.append, self.ids, rows))
        return self._as_given(rows)

    def _as_given(self, rows):
        return rows[0] if self._is_single else rows


def check_has_tokenizer(model, name):
    """Raises `ValueError` unless a model has a tokenizer."""
    if model.tokenizer is None:
        raise ValueError(
            f"`tokenizer` must be set in a model that is to read text as "
            f"`{name}`. Build the model with `tokenizer`, or set "
            "`model.tokenizer`. Received: model.tokenizer=None"
        )


def _is_scalar(value):
    return getattr(value, "ndim", int(hasattr(value, "__len__"))) == 0


def _check_all_text(prompts):
    for row, prompt in enumerate(prompts):
        if not isinstance(prompt, str):
            raise ValueError(
                "`prompts` must be either all strings or all token ids. "
                f"Received: prompts[{row}]={shown(prompt)}"
            )


def _encode(tokenizer, prompts):
    """Returns the ids of texts, int32 arrays of shape `(P,)`."""
    rows = []
    for row, prompt in enumerate(prompts):
        received = f"Received: prompts[{row}]={shown(prompt)}"
        try:
            ids = np.asarray(tokenizer.encode(prompt), np.int32)
        except ValueError as error:
            raise ValueError(
                "`prompts` must consist of symbols of the model's vocabulary. "
                f"{received}. {error}"
            ) from error
        if not len(ids):
            raise ValueError(
                "`prompts` must have at least one token each, such as a "
                f"newline. {received}"
            )
        rows.append(ids)
    _warn_of_unknown_words(tokenizer, prompts, rows)
    return rows


def _warn_of_unknown_words(tokenizer, prompts, rows):
    unknown = tokenizer.unknown_id
    if unknown is None:
        return
    mark = tokenizer.decode([unknown]).strip()
    words = dict.fromkeys(
        word
        for prompt, ids in zip(prompts, rows, strict=True)
        if unknown in ids
        for word in prompt.split()
        if word != mark and unknown in tokenizer.encode(word)
    )
    if words:
        warnings.warn(
            "Words of `prompts` that are not in the vocabulary, read as "
            f"{mark}: {shown(list(words))}",
            stacklevel=5,
        )


def _num_new_tokens(lengths, max_length, max_new_tokens):
    """Returns how many tokens may follow each of the prompts."""
    if max_length is None:
        if max_new_tokens is None:
            max_new_tokens = _DEFAULT_NEW_TOKENS
        check_integer("max_new_tokens", max_new_tokens, 0)
        return [max_new_tokens for _ in lengths]
    if max_new_tokens is not None:
        raise ValueError(
            "`max_length` and `max_new_tokens` exclude each other. Received: "
            f"max_length={max_length}, max_new_tokens={max_new_tokens}"
        )
    check_integer("max_length", max_length, 1)
    if max_length < max(lengths):
        raise ValueError(
            "`max_length` must be at least the length of each prompt, "
            f"{max(lengths)} tokens: it counts the prompt, too. "
            "`max_new_tokens` does not. Received: "
            f"max_length={max_length}"
        )
    return [max_length - length for length in lengths]


def check_stop_ids(name, stop_token_ids, vocabulary_size):
    """Returns the ids that end a row, as a set."""
    check_list(name, stop_token_ids)
    if not len(stop_token_ids):
        return frozenset()
    ids = check_token_ids(name, stop_token_ids, vocabulary_size)
    return frozenset(np.asarray(ids).ravel().tolist())


def generation_seed(seed, num_rows):
    """Returns the seed of the first row, by default a random one."""
    limit = np.iinfo(np.int32).max - num_rows
    if seed is None:
        seed = random.randrange(limit)
    return check_integer("seed", seed, 0, limit)


def generation_memory_length(backbone, memory_length):
    """Returns the memory length for generating token by token."""
    if memory_length is None:
        memory_length = backbone.default_memory_length
        if not memory_length:
            raise ValueError(
                "`memory_length` must be given for a model without memory, "
                "where each token would attend to itself only. Pass the "
                "segment length of training. Received: memory_length=None"
            )
    check_integer(
        "memory_length", memory_length, 0, backbone.max_segment_length
    )
    if backbone.remembers:
        backbone.check_remembers(memory_length)
    return memory_length
