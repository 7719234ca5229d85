"""Readers of prompts, and of one token per row after them."""

import functools

import keras
import numpy as np
from keras import ops

from txl_keras.backend import ON_TENSORFLOW
from txl_keras.backend import tf
from txl_keras.compilation import compile_for_any_rows
from txl_keras.compilation import compile_function
from txl_keras.models.segment_reader import SegmentReader

# Prompts are read in segments of this many tokens. The segment boundaries
# determine how far back each token attends.
PROMPT_SEGMENT = 128
# Prompts of up to this many tokens are read one token at a time, which takes
# less time than building a graph that reads segments.
_SHORT_PROMPT = 16


class TokenReader:
    """Reads one token per row with memory, in compiled functions.

    A call returns `answer(hidden)` for hidden states `(B, D)`; by default the
    log-probabilities `(B, V)` of the next tokens. The number of rows may be
    another in each text. An engine is a subclass that computes them in another
    way, for `num_rows` rows: see docs/extending.md.
    """

    options = None  # an engine's `Options`: flags of `txl generate`

    def __init__(self, model, num_rows, memory_length, answer=None):
        self.num_rows = num_rows
        self._answer = answer or model.softmax.log_probs
        self._longest_short = -1
        backbone = model.backbone
        # With other memory, reading single tokens would give another result.
        if not backbone.has_attention or (
            backbone.cold_start == "masked" and backbone.has_finite_reach
        ):
            # An LSTM remembers one state, which any number of tokens reach.
            limit = memory_length if backbone.has_attention else _SHORT_PROMPT
            self._longest_short = min(_SHORT_PROMPT, limit)
        self.then = functools.lru_cache(maxsize=4)(self._then)
        self._cache = SegmentReader(
            model.backbone, num_rows, PROMPT_SEGMENT, memory_length
        )
        if not ON_TENSORFLOW:
            self._step = self._cache.compile(self._read_and_remember)
            return
        self._read_token = self._cache.compile(self._read_token)
        self._remember = tf.function(
            self._remember, jit_compile=True, autograph=False
        )
        self._step = compile_for_any_rows(self._read_and_remember)

    def begin(self, prompts, memory=None):
        """Reads the prompts without their last tokens, after a `Memory`."""
        self._cache.begin(memory, len(prompts))
        texts = [prompt[:-1] for prompt in prompts]
        longest = max(map(len, texts))
        # An engine computes the step in another way.
        is_short = type(self) is TokenReader and longest <= self._longest_short
        if memory is not None or not is_short:
            self._cache.read_texts(None, texts)
            return
        # All rows end at the same step, so short ones begin later.
        starts = longest - np.array([*map(len, texts)])
        for step, tokens in enumerate(keras.utils.pad_sequences(texts).T):
            self._begin_rows(starts == step)
            self._step(ops.convert_to_tensor(tokens, "int32"))
        self._begin_rows(starts == longest)

    def _begin_rows(self, begins):
        if begins.any() and not begins.all():
            self._cache.reset_rows(ops.convert_to_tensor(begins))

    def reorder(self, rows):
        """Replaces the memory of each row by the memory of another row."""
        self._cache.reorder_rows(ops.convert_to_tensor(rows, "int32"))

    def __call__(self, token):
        return self._step(token)

    def _then(self, function):
        """Returns a call of this reader, and of a function after it."""

        def step(token, *args):
            return function(self(token), *args)

        # One graph calls both. An engine may call what no graph can.
        is_graph = ON_TENSORFLOW and type(self) is TokenReader
        return compile_for_any_rows(step) if is_graph else step

    def _read_and_remember(self, token):
        result, entries = self._read_token(token)
        self._remember(entries)
        return result

    def _remember(self, entries):
        self._cache.remember(entries)

    def _read_token(self, token):
        hidden, entries = self._cache.read(token[:, None])
        return self._answer(hidden[:, 0]), entries


class WindowReader:
    """Reads the last tokens of each text again, for models without memory."""

    def __init__(self, model, num_rows, memory_length, answer=None):
        self.length = max(1, memory_length)
        self._backbone = model.backbone
        answer = answer or model.softmax.log_probs
        self._answer = compile_function(answer, model.weights)
        self._last = compile_function(
            self._last_hidden, model.weights, reduce_retracing=True
        )
        self._texts = []

    def begin(self, prompts, memory=None):
        """Takes the prompts without their last tokens."""
        self._texts = [[*prompt[:-1]] for prompt in prompts]

    def reorder(self, rows):
        """Replaces the text of each row by the text of another row."""
        self._texts = [[*self._texts[row]] for row in rows]

    def then(self, function):
        """Returns a call of this reader, and of a function after it."""
        return lambda token, *args: function(self(token), *args)

    def __call__(self, token):
        tokens = ops.convert_to_numpy(token)
        for text, new in zip(self._texts, tokens, strict=True):
            text.append(new)
        windows = (np.array([t[-self.length :]]) for t in self._texts)
        windows = map(ops.convert_to_tensor, windows)
        hidden = ops.concatenate([*map(self._last, windows)], axis=0)
        return self._answer(hidden)

    def _last_hidden(self, ids):
        return self._backbone(ids)[0][:, -1]
