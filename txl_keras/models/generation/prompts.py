"""Prompts of text or token ids, and their continuations."""

import copy
import warnings

import numpy as np

from txl_keras.checks import check_integer
from txl_keras.checks import check_list
from txl_keras.checks import check_no_empty_text
from txl_keras.checks import check_token_ids
from txl_keras.checks import shown


class Continuation:
    """Collects the tokens after a prompt until something ends them."""

    def __init__(self, prompt, max_tokens, stop_token_ids, stream, known=b""):
        self.prompt = prompt
        # The last token of the prompt, if it is drawn again: see `known_bytes`.
        self.known = known if max_tokens else b""
        self.log_probs = []
        self.is_ended = max_tokens == 0
        self._max_tokens = max_tokens + bool(self.known)
        self._stop_token_ids = frozenset(map(int, stop_token_ids))
        self.stream = stream  # a `TextStream`, or None to collect ids
        self._ids, self._text = [], ""

    @property
    def read(self):
        """Returns the ids to read before the first token is drawn."""
        return self.prompt[:-1] if self.known else self.prompt

    def copy(self):
        """Returns a continuation that is independent of this one."""
        other = copy.copy(self)
        other.stream, other._ids = copy.copy(self.stream), [*self._ids]
        return other

    def add(self, token, log_prob=0.0):
        """Adds a token; returns the text or ids that are now certain."""
        num_ids, text, is_stop = len(self._ids), "", False
        if not self.is_ended:
            is_stop = int(token) in self._stop_token_ids
            if self.known and not self._ids:  # the prompt's own last token
                is_stop = is_stop and int(token) != int(self.prompt[-1])
            if not is_stop:
                self._ids.append(int(token))
                self.log_probs.append(log_prob)
                if self.stream:
                    text = self.stream.add(token)
                    is_stop = self.stream.is_stopped
            self.is_ended = is_stop or len(self._ids) == self._max_tokens
            if self.is_ended and self.stream:
                text += self.stream.finish()
        self._text += text
        return text if self.stream else np.array(self._ids[num_ids:], np.int32)

    def result(self):
        """Returns the text or ids after the prompt."""
        return self._text if self.stream else np.array(self._ids, np.int32)

    def tokens(self, tokenizer):
        """Returns the ids of prompt and continuation, int32 `(P,)`."""
        ids = self._ids
        if self.stream and self.stream.is_stopped:
            ids = self._ids_of_text(tokenizer)
        before = self.read if self._ids else self.prompt
        return np.append(before, ids).astype(np.int32)

    def _ids_of_text(self, tokenizer):
        """Returns the ids before a stop string, which may begin in a token."""
        known = len(self.known)
        for number in range(len(self._ids), 0, -1):
            ids = self._ids[:number]
            text = tokenizer.decode_bytes(ids)[known:].decode(errors="replace")
            if self._text.startswith(text):
                rest = self._text[len(text) :]
                break
        else:
            ids, rest = [], self.known + self._text.encode()
        return np.append(ids, tokenizer.encode(rest, begins_line=False))


def read_prompts(model, prompts, begins_line):
    """Returns prompts as a list, their ids, and whether there was just one."""
    is_single = isinstance(prompts, (str, bytes))
    if is_single:
        prompts = [prompts]
    check_list("prompts", prompts)
    if not len(prompts):
        raise ValueError(
            "`prompts` must have at least one row. Received: no rows"
        )
    are_text = [isinstance(prompt, str) for prompt in prompts]
    if any(are_text) or isinstance(prompts[0], bytes):
        if not all(are_text):
            i = are_text.index(False)
            raise ValueError(
                "`prompts` must be either all strings or all token ids. "
                f"Received: prompts[{i}]={shown(prompts[i])}"
            )
        rows = encode_texts(
            model, "prompts", prompts, [begins_line] * len(prompts)
        )
        _warn_of_unknown_words(model.tokenizer, prompts, rows)
        return prompts, rows, is_single
    first = prompts[0]
    is_single = not getattr(first, "ndim", hasattr(first, "__len__"))
    rows = [
        _check_prompt(f"prompts[{i}]", prompt, model.backbone.vocabulary_size)
        for i, prompt in enumerate([prompts] if is_single else prompts)
    ]
    return rows, rows, is_single


def known_bytes(tokenizer, ids):
    """Returns bytes that the first token must begin with; may be empty.

    A prompt may end inside of one of the model's tokens: `"import "` does,
    because the space belongs to the next word. So its last subword is drawn
    again, among the subwords that begin with it (token healing).
    """
    if not heals(tokenizer) or len(ids) < 2:
        return b""
    return tokenizer.decode_bytes(ids[-1:])


def line_end_id(tokenizer):
    """Returns the id to read before a prompt, or None."""
    # Alone at the start of a text, a token attends only to itself, which
    # training rarely shows. Most prompts are meant to begin a line.
    if not heals(tokenizer):
        return None
    ids = tokenizer.encode("\n", begins_line=False)
    is_one = len(ids) == 1 and tokenizer.decode_bytes(ids) == b"\n"
    return int(ids[0]) if is_one else None


def after_line_end(tokenizer, rows):
    """Returns prompts' ids, with a line end before them if it can be read."""
    line_end = line_end_id(tokenizer)
    if line_end is None:
        return rows
    return [
        ids
        if tokenizer.decode_bytes(ids[:1]).startswith(b"\n")
        else np.append(line_end, ids).astype(np.int32)
        for ids in rows
    ]


def heals(tokenizer):
    """Returns whether the last token of a prompt is drawn again."""
    # A lossy tokenizer may have left out the space at the end.
    return tokenizer.unit == "subword" and tokenizer.is_lossless


def check_has_tokenizer(model, name):
    """Raises `ValueError` unless a model has a tokenizer."""
    if model.tokenizer is None:
        raise ValueError(
            f"`tokenizer` must be set in a model that is to read text as "
            f"`{name}`. Build the model with `tokenizer`, or set "
            "`model.tokenizer`. Received: model.tokenizer=None"
        )


def encode_texts(model, name, texts, begins_line=None):
    """Returns the ids of texts, int32 `(P,)`."""
    # `begins_line` has booleans, false for texts that continue a line.
    check_has_tokenizer(model, name)
    check_list(name, texts)
    rows = []
    for i, text in enumerate(texts):
        if not isinstance(text, (str, bytes)):
            raise ValueError(
                f"`{name}` must be a list of strings. Received: "
                f"{name}[{i}]={shown(text)}"
            )
        begins = begins_line is None or begins_line[i]
        ids = model.tokenizer.encode(text, begins_line=begins)
        rows.append(np.asarray(ids, np.int32))
    if name != "contexts":
        check_no_empty_text(name, texts, rows)
    return rows


def num_new_tokens(rows, max_length, max_new_tokens):
    """Returns how many tokens may follow each of the prompts."""
    if max_length is None:
        most = 256 if max_new_tokens is None else max_new_tokens
        return [check_integer("max_new_tokens", most, 0)] * len(rows)
    if max_new_tokens is not None:
        raise ValueError(
            "`max_length` and `max_new_tokens` exclude each other. Received: "
            f"max_length={max_length}, max_new_tokens={max_new_tokens}"
        )
    # `max_length` counts the prompt, too.
    check_integer("max_length", max_length, max(map(len, rows)))
    return [max_length - len(row) for row in rows]


def _check_prompt(name, prompt, vocabulary_size):
    ids = np.asarray(check_token_ids(name, prompt, vocabulary_size))
    if ids.ndim != 1 or not ids.size:
        raise ValueError(
            f"`{name}` must be a sequence of at least one token id. Received: "
            f"shape {ids.shape}"
        )
    return ids.astype("int32")


def _warn_of_unknown_words(tokenizer, prompts, rows):
    unknown = tokenizer.unknown_id
    if unknown is None or not any(unknown in ids for ids in rows):
        return
    mark = tokenizer.decode([unknown]).strip()
    words = [
        word
        for word in dict.fromkeys(" ".join(prompts).split())
        if word != mark and unknown in tokenizer.encode(word)
    ]
    if words:
        warnings.warn(
            "Words of `prompts` that are not in the vocabulary, read as "
            f"{mark}: {shown(words)}",
            stacklevel=4,
        )
