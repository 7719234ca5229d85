"""Readers of prompts, and of one token per row after them.

Letters: `B` rows, `T` segment, `M` memory, `V` vocabulary.
"""

import numpy as np
import tensorflow as tf

from txl_keras.checks import check_list
from txl_keras.checks import check_token_ids
from txl_keras.models.segment_reader import SegmentReader

# Prompts are read in segments of this many tokens. The segment boundaries
# determine how far back each token attends.
PROMPT_SEGMENT = 128


class TokenReader:
    """Base of compiled steps that read one token per row with memory."""

    def __init__(self, model, num_rows, memory_length):
        self.num_rows = num_rows
        self._model = model
        self._reader = SegmentReader(
            model.backbone, num_rows, PROMPT_SEGMENT, memory_length
        )
        # AutoGraph would spend seconds converting every function called from
        # here, and none needs it.
        self._remember = tf.function(
            self._reader.remember, jit_compile=True, autograph=False
        )
        # Traced once, for segments of any length.
        self._read_segment = tf.function(
            self._read_and_remember_segment,
            input_signature=[
                tf.TensorSpec((num_rows, None), tf.int32),
                tf.TensorSpec((num_rows,), tf.int32),
            ],
            autograph=False,
        )

    def begin(self, prompts):
        """Reads the prompts without their last tokens."""
        self._reader.begin()
        lengths = np.array([len(prompt) - 1 for prompt in prompts])
        for start in range(0, lengths.max(), PROMPT_SEGMENT):
            end = min(start + PROMPT_SEGMENT, lengths.max())
            ids = np.zeros((len(prompts), end - start), "int32")
            real = np.clip(lengths - start, 0, end - start).astype("int32")
            for row, prompt, length in zip(ids, prompts, real, strict=True):
                row[:length] = prompt[start : start + length]
            self._read_segment(tf.constant(ids), tf.constant(real))

    def _read_and_remember_segment(self, ids, lengths):
        _, entries = self._reader.read(ids)
        self._reader.remember(entries, lengths)


class WindowReader:
    """Reads the last tokens of each text again, for models without memory."""

    def __init__(self, model, memory_length):
        self.length = max(1, memory_length)
        self._model = model

    def log_probs(self, texts):
        """Returns log-probabilities `(B, V)` of the tokens after B texts."""
        last = [np.asarray(text[-self.length :])[None] for text in texts]
        return tf.concat([self.predict(window) for window in last], axis=0)

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
