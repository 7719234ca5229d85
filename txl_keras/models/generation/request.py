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
        num_return_sequences=1,
        begins_line=True,
    ):
        vocabulary_size = model.backbone.vocabulary_size
        is_single = isinstance(prompts, (str, bytes))
        if is_single:
            prompts = [prompts]
        check_list("prompts", prompts)
        self._tokenizer = None
        if any(isinstance(prompt, (str, bytes)) for prompt in prompts):
            self._tokenizer = model.tokenizer
            for i, prompt in enumerate(prompts):
                if not isinstance(prompt, str):
                    raise ValueError(
                        "`prompts` must be either all strings or all token "
                        "ids; turn bytes into a string with `.decode()`. "
                        f"Received: prompts[{i}]={shown(prompt)}"
                    )
            begins_line = [begins_line] * len(prompts)
            self.ids = encode_texts(model, "prompts", prompts, begins_line)
            _warn_of_unknown_words(model.tokenizer, prompts, self.ids)
        else:
            is_single = len(prompts) > 0 and _is_scalar(prompts[0])
            prompts = [prompts] if is_single else prompts
            self.ids = prompts = check_prompts(prompts, vocabulary_size)
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
        self._count = check_integer(
            "num_return_sequences", num_return_sequences, 1
        )
        self._is_single = is_single and self._count == 1
        limit = np.iinfo(np.int32).max - len(self.ids) * self._count
        if seed is None:
            seed = random.randrange(limit)
        self.seed = check_integer("seed", seed, 0, limit)

    def continuations(self):
        """Returns new ones, `num_return_sequences` for each prompt."""
        stream = None
        if self._tokenizer is not None:
            stream = TextStream(self._tokenizer.decode_bytes, self._stop)
        return [
            Continuation(
                prompt, num_new, self._stop_token_ids, copy.copy(stream)
            )
            for prompt, num_new in zip(self.ids, self._num_new, strict=True)
            for _ in range(self._count)
        ]

    def parts(self, rows, steps):
        """Yields what is new in each of the steps, if anything is."""
        for _ in steps:
            parts = [row.take() for row in rows]
            if any(len(part) for part in parts):
                yield self.as_given(parts)

    def result(self, rows, strip_prompt):
        """Returns text or ids of ended continuations."""
        results = [row.take() for row in rows]
        if not strip_prompt:
            join = np.append if self._tokenizer is None else str.__add__
            before = [p for p in self._prompts for _ in range(self._count)]
            results = list(map(join, before, results))
        return self.as_given(results)

    def as_given(self, values):
        """Returns values of rows as prompts were given: all, or of the one."""
        return values[0] if self._is_single else values


class Continuation:
    """Collects the tokens after a prompt until something ends them."""

    def __init__(self, prompt, max_tokens, stop_token_ids, stream):
        self.prompt = prompt
        self.log_probs = []
        self.is_ended = max_tokens == 0
        self._max_tokens = max_tokens
        self._stop_token_ids = stop_token_ids
        self._stream = stream  # a `TextStream`, or None to collect ids
        self._ids, self._pieces = [], []
        self._num_taken = 0

    def copy(self):
        """Returns a continuation that is independent of this one."""
        other = copy.copy(self)
        other._stream = copy.copy(self._stream)
        other._ids, other._pieces = [*self._ids], [*self._pieces]
        return other

    def add(self, token, log_prob=0.0):
        """Adds a token; ignores it after the end."""
        if self.is_ended:
            return
        token, stream = int(token), self._stream
        is_stop = token in self._stop_token_ids
        if not is_stop:
            self._ids.append(token)
            self.log_probs.append(log_prob)
            if stream:
                self._pieces.append(stream.add(token))
                is_stop = stream.is_stopped
        self.is_ended = is_stop or len(self._ids) == self._max_tokens
        if self.is_ended and stream:
            self._pieces.append(stream.finish())

    def take(self):
        """Returns what is certain and was not taken yet: text or int32 ids."""
        parts = self._ids if self._stream is None else self._pieces
        new, self._num_taken = parts[self._num_taken :], len(parts)
        if self._stream is None:
            return np.array(new, np.int32)
        return "".join(new)

    def tokens(self, tokenizer):
        """Returns the ids of prompt and continuation, int32 `(P,)`."""
        ids = self._ids
        if self._stream and self._stream.is_stopped:
            # A stop string may begin inside of a token.
            ids = tokenizer.encode("".join(self._pieces), begins_line=False)
        return np.append(self.prompt, ids).astype(np.int32)


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


def encode_texts(model, name, texts, begins_line=None):
    """Returns the ids of texts, int32 `(P,)`."""
    # `begins_line` are booleans, false for texts that continue a line.
    check_has_tokenizer(model, name)
    check_list(name, texts)
    rows = []
    for i, text in enumerate(texts):
        received = f"Received: {name}[{i}]={shown(text)}"
        if not isinstance(text, (str, bytes)):
            raise ValueError(f"`{name}` must be a list of strings. {received}")
        begins = begins_line is None or begins_line[i]
        try:
            ids = model.tokenizer.encode(text, begins_line=begins)
        except ValueError as error:
            raise ValueError(
                f"`{name}` must consist of symbols of the model's vocabulary. "
                f"{received}. {error}"
            ) from error
        rows.append(np.asarray(ids, np.int32))
    if name != "contexts":
        check_no_empty_text(name, texts, rows)
    return rows


def check_prompts(prompts, vocabulary_size):
    """Returns prompts as int32 arrays; raises `ValueError` for bad ones."""
    if not len(prompts):
        raise ValueError(
            "`prompts` must have at least one row. Received: no rows"
        )
    return [
        _check_prompt(f"prompts[{row}]", prompt, vocabulary_size)
        for row, prompt in enumerate(prompts)
    ]


def _check_prompt(name, prompt, vocabulary_size):
    try:
        ids = np.asarray(prompt)
    except (ValueError, TypeError):  # rows of different lengths
        ids = np.asarray(None)
    if ids.ndim != 1 or not ids.size:
        raise ValueError(
            f"`{name}` must be a sequence of at least one token id. Received: "
            f"shape {ids.shape}"
        )
    return check_token_ids(name, ids, vocabulary_size).astype("int32")


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
