"""Beam search.

Letters: `B` prompts, `K` beams of each, `M` memory, `V` vocabulary.
"""

import numpy as np
import tensorflow as tf

from txl_keras.models.generation.token_reader import TokenReader
from txl_keras.models.generation.token_reader import WindowReader


class BeamSearch:
    """Finds likely continuations of prompts, K beams at a time."""

    # Every beam is a row with its own memory, which is copied where a beam
    # splits. See `BeamSampler` for the score.

    def __init__(self, model, num_beams, memory_length):
        self._model = model
        self._num_beams = num_beams
        self._memory_length = memory_length
        self._window = _Window(model, memory_length)
        self._memory = None

    def __call__(self, prompts, continuations):
        """Yields, once, the best continuation of each of B prompts."""
        count = self._num_beams
        texts = [prompt for prompt in prompts for _ in range(count)]
        beams = [c.copy() for c in continuations for _ in range(count)]
        reader = self._begin(texts)
        # The beams of a prompt are still alike, so all but one are ruled out.
        scores = np.full((len(prompts), count), -np.inf, "float32")
        scores[:, 0] = 0
        while True:
            ended = np.reshape([beam.is_ended for beam in beams], scores.shape)
            # More tokens never raise a sum, so an ended text that is the best
            # now remains the best.
            if ended[:, 0].all():
                yield beams[::count]
                return
            parents, tokens, scores = (
                part.numpy()
                for part in self._rank(reader.log_probs(texts), scores, ended)
            )
            if tokens.min() < 0:
                raise FloatingPointError(
                    f"The text after prompt {tokens.min(axis=1).argmin()} "
                    "cannot be continued, because the model returned NaN. "
                    "Check that its weights are finite."
                )
            first = np.arange(len(prompts))[:, None] * count
            rows = (first + parents).ravel()
            if (rows != np.arange(len(rows))).any():
                reader.reorder(tf.constant(rows, tf.int32))
            texts = [
                np.append(texts[row], token)
                for row, token in zip(rows, tokens.ravel(), strict=True)
            ]
            beams = [beams[row].copy() for row in rows]
            for beam, token in zip(beams, tokens.ravel(), strict=True):
                beam.add(token)

    def _begin(self, texts):
        """Returns a reader that has read the texts but their last tokens."""
        if not self._model.backbone.remembers:
            return self._window
        if self._memory is None or self._memory.num_rows != len(texts):
            self._memory = _Memory(self._model, len(texts), self._memory_length)
        self._memory.begin(texts)
        return self._memory

    @tf.function(reduce_retracing=True, autograph=False)
    def _rank(self, log_probs, scores, ended):
        """Returns parents, tokens and scores `(B, K)` of the next beams."""
        count = self._num_beams
        vocabulary_size = log_probs.shape[1]
        log_probs = tf.reshape(log_probs, (-1, count, vocabulary_size))
        are_numbers = tf.reduce_all(log_probs < float("inf"), axis=-1)
        # An ended text has one continuation, itself; its token is ignored.
        itself = tf.one_hot(0, vocabulary_size, 0.0, -float("inf"))
        log_probs = tf.where(ended[..., None], itself, log_probs)
        sums = tf.reshape(
            scores[..., None] + log_probs, (-1, count * vocabulary_size)
        )
        scores, places = tf.math.top_k(sums, count)
        tokens = places % vocabulary_size
        is_right = tf.reduce_all(are_numbers, axis=1, keepdims=True)
        tokens = tf.where(is_right, tokens, -1)  # -1 for NaN
        return places // vocabulary_size, tokens, scores


class _Memory(TokenReader):
    """Reads the last token of each text; memory holds the others."""

    def __init__(self, model, num_rows, memory_length):
        super().__init__(model, num_rows, memory_length)
        self._read = self._reader.compile(self._read_token)
        self.reorder = tf.function(
            self._reader.reorder_rows, jit_compile=True, autograph=False
        )

    def log_probs(self, texts):
        """Returns log-probabilities `(B K, V)` of the next tokens."""
        return self._read_and_remember(tf.constant([t[-1] for t in texts]))

    @tf.function(autograph=False)
    def _read_and_remember(self, token):
        log_probs, entries = self._read(token)
        self._remember(entries)
        return log_probs

    def _read_token(self, token):
        hidden, entries = self._reader.read(token[:, None])
        return self._model.softmax.log_probs(hidden[:, 0]), entries


class _Window(WindowReader):
    """Reads the last M tokens of each text."""

    def reorder(self, rows):
        """Does nothing, since the texts are all that is read."""
