"""The checked arguments of one call of `generate`, and its result."""

import copy
import random
import warnings

import numpy as np

from txl_keras.checks import check_integer
from txl_keras.checks import check_list
from txl_keras.checks import check_no_empty_text
from txl_keras.checks import check_token_ids
from txl_keras.checks import shown
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
        max_length=None,
        max_new_tokens=None,
        stop_token_ids=(),
        stop=(),
        seed=None,
    ):
        vocabulary_size = model.backbone.vocabulary_size
        self._tokenizer = None
        self._is_single = isinstance(prompts, (str, bytes))
        if self._is_single:
            prompts = [prompts]
        check_list("prompts", prompts)
        if any(isinstance(prompt, (str, bytes)) for prompt in prompts):
            self._tokenizer = model.tokenizer
            for i, prompt in enumerate(prompts):
                if not isinstance(prompt, str):
                    raise ValueError(
                        "`prompts` must be either all strings or all token "
                        "ids; turn bytes into a string with `.decode()`. "
                        f"Received: prompts[{i}]={shown(prompt)}"
                    )
            self.ids = encode_texts(model, "prompts", prompts)
            _warn_of_unknown_words(model.tokenizer, prompts, self.ids)
        else:
            self._is_single = len(prompts) > 0 and _is_scalar(prompts[0])
            rows = [prompts] if self._is_single else prompts
            self.ids = check_prompts(rows, vocabulary_size)
        self._prompts = prompts
        lengths = [len(ids) for ids in self.ids]
        self._num_new = _num_new_tokens(lengths, max_length, max_new_tokens)
        check_list("stop_token_ids", stop_token_ids)
        self._stop_token_ids = frozenset()
        if len(stop_token_ids):
            ids = check_token_ids(
                "stop_token_ids", stop_token_ids, vocabulary_size
            )
            self._stop_token_ids = frozenset(np.ravel(ids).tolist())
        self._stop = check_stop(stop)
        if self._tokenizer is None and self._stop:
            raise ValueError(
                "`stop` must be empty for prompts of token ids. Use "
                f"`stop_token_ids`, or prompts of text. Received: stop={stop!r}"
            )
        limit = np.iinfo(np.int32).max - len(self.ids)
        if seed is None:
            seed = random.randrange(limit)
        self._seed = check_integer("seed", seed, 0, limit)

    def continuations(self):
        """Returns a new `Continuation` for each prompt."""
        stream = None
        if self._tokenizer is not None:
            stream = TextStream(self._tokenizer.decode_bytes, self._stop)
        return [
            Continuation(copy.copy(stream), num_new, self._stop_token_ids)
            for num_new in self._num_new
        ]

    def continue_with(self, generator):
        """Yields the continuations after each step of a `Generator`."""
        continuations = self.continuations()
        yield continuations
        for row_tokens in generator(self.ids, max(self._num_new), self._seed):
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
        if not strip_prompt:
            is_text = self._tokenizer is not None
            before = self._prompts if is_text else self.ids
            join = str.__add__ if is_text else np.append
            rows = list(map(join, before, rows))
        return self._as_given(rows)

    def _as_given(self, rows):
        return rows[0] if self._is_single else rows


class Continuation:
    """Collects the tokens after one prompt until something ends them."""

    def __init__(self, stream, max_tokens, stop_token_ids):
        self._stream = stream  # a `TextStream`, or None to collect ids
        self._num_left = max_tokens
        self._stop_token_ids = stop_token_ids
        self._pieces = []
        self.is_ended = max_tokens == 0

    def copy(self):
        """Returns a continuation that is independent of this one."""
        other = copy.copy(self)
        other._stream = copy.copy(self._stream)
        other._pieces = list(self._pieces)
        return other

    def add(self, token):
        """Adds a token; ignores it after the end."""
        if self.is_ended:
            return
        token, stream = int(token), self._stream
        self._num_left -= 1
        is_stop = token in self._stop_token_ids
        if not is_stop:
            self._pieces.append(stream.add(token) if stream else token)
        is_stop |= stream is not None and stream.is_stopped
        self.is_ended = is_stop or self._num_left == 0
        if self.is_ended and stream:
            self._pieces.append(stream.finish())

    def take(self):
        """Returns what is certain and was not taken yet: text or int32 ids."""
        pieces, self._pieces = self._pieces, []
        if self._stream is None:
            return np.array(pieces, np.int32)
        return "".join(pieces)


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


def encode_texts(model, name, texts, contexts=None):
    """Returns the ids of texts, int32 `(P,)`, which may follow contexts."""
    check_has_tokenizer(model, name)
    check_list(name, texts)
    rows = []
    for i, text in enumerate(texts):
        received = f"Received: {name}[{i}]={shown(text)}"
        if not isinstance(text, (str, bytes)):
            raise ValueError(f"`{name}` must be a list of strings. {received}")
        context = contexts[i] if contexts else ""
        begins_line = not context or context[-1:] in ("\n", b"\n")
        try:
            ids = model.tokenizer.encode(text, begins_line=begins_line)
        except ValueError as error:
            raise ValueError(
                f"`{name}` must consist of symbols of the model's vocabulary. "
                f"{received}. {error}"
            ) from error
        rows.append(np.asarray(ids, np.int32))
    if name != "contexts":
        check_no_empty_text(name, texts, rows)
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
            stacklevel=4,
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
