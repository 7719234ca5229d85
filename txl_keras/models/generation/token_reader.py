"""Readers of prompts, and of one token per row after them.

Letters: `B` rows, `T` segment, `M` memory, `V` vocabulary.
"""

import functools

import numpy as np
import tensorflow as tf

from txl_keras.checks import check_list
from txl_keras.checks import check_token_ids
from txl_keras.layers.compute.dropout import fold_in
from txl_keras.models.segment_reader import SegmentReader
from txl_keras.models.segment_reader import padded_segment

# Prompts are read in segments of this many tokens. The segment boundaries
# determine how far back each token attends.
PROMPT_SEGMENT = 128
# AutoGraph would spend seconds converting every function called from here, and
# none needs it.
_function = functools.partial(tf.function, autograph=False)


def token_reader(model, num_rows, memory_length, sampler=None):
    """Returns a reader of one token per row for a model."""
    # A call takes tokens `(B,)` and returns the log-probabilities `(B, V)` of
    # the next ones; with a sampler it also takes `seeds`, `position` and
    # `seen`, and returns the next tokens `(B,)`.
    remembers = model.backbone.remembers
    reader = TokenReader if remembers else WindowReader
    return reader(model, num_rows, memory_length, sampler)


class TokenReader:
    """Reads one token per row with memory, in compiled functions."""

    def __init__(self, model, num_rows, memory_length, sampler=None):
        self.num_rows = num_rows
        self._model = model
        self._sampler = sampler
        self._reader = SegmentReader(
            model.backbone, num_rows, PROMPT_SEGMENT, memory_length
        )
        self._read = self._reader.compile(self._read_token)
        self._remember = _function(self._reader.remember, jit_compile=True)
        self.reorder = _function(self._reader.reorder_rows, jit_compile=True)
        # Traced once, for segments of any length.
        self._read_segment = _function(
            self._read_and_remember_segment,
            input_signature=[
                tf.TensorSpec((num_rows, None), tf.int32),
                tf.TensorSpec((num_rows,), tf.int32),
            ],
        )

    def begin(self, prompts):
        """Reads the prompts without their last tokens."""
        self._reader.begin()
        texts = [prompt[:-1] for prompt in prompts]
        longest = max(map(len, texts))
        for start in range(0, longest, PROMPT_SEGMENT):
            length = min(PROMPT_SEGMENT, longest - start)
            self._read_segment(
                *padded_segment(texts, start, self.num_rows, length)
            )

    def _read_and_remember_segment(self, ids, lengths):
        _, entries = self._reader.read(ids)
        self._reader.remember(entries, lengths)

    @_function
    def __call__(self, token, *draw):
        result, entries = self._read(token, *draw)
        self._remember(entries)
        return result

    def _read_token(self, token, *draw):
        hidden, entries = self._reader.read(token[:, None])
        hidden, softmax = hidden[:, 0], self._model.softmax
        if self._sampler is None:
            return softmax.log_probs(hidden), entries
        seeds, position, seen = draw
        seeds = fold_in(seeds, position)
        return softmax.sample(hidden, self._sampler, seeds, seen), entries


class WindowReader:
    """Reads the last tokens of each text again, for models without memory."""

    def __init__(self, model, num_rows, memory_length, sampler=None):
        self.num_rows = num_rows
        self.length = max(1, memory_length)
        self._model = model
        self._sampler = sampler
        self._texts = []

    def begin(self, prompts):
        """Takes the prompts without their last tokens."""
        self._texts = [[*prompt[:-1]] for prompt in prompts]

    def reorder(self, rows):
        """Replaces the text of each row by that of another."""
        self._texts = [[*self._texts[row]] for row in rows.numpy()]

    def __call__(self, token, *draw):
        for text, new in zip(self._texts, token.numpy(), strict=True):
            text.append(new)
        windows = (tf.constant([t[-self.length :]]) for t in self._texts)
        log_probs = tf.concat([*map(self.predict, windows)], axis=0)
        if self._sampler is None:
            return log_probs
        seeds, position, seen = draw
        return self._sampler(log_probs, fold_in(seeds, position), seen)

    @tf.function(reduce_retracing=True, autograph=False)
    def predict(self, ids):
        """Returns log-probabilities `(B, V)` of the tokens after `(B, T)`."""
        return self._model.log_probs(ids)[0][:, -1]


def check_prompts(prompts, vocabulary_size):
    """Returns prompts as int32 arrays; raises `ValueError` for bad ones."""
    check_list("prompts", prompts)
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
