"""Beam search.

Letters: `B` prompts, `K` beams of each, `M` memory, `V` vocabulary.
"""

import numpy as np
import tensorflow as tf

from txl_keras.models.generation.generator import generation_memory_length
from txl_keras.models.generation.token_reader import token_reader


class BeamSearch:
    """Finds likely continuations of prompts, K beams at a time."""

    # Every beam is a row with its own memory, which is copied where a beam
    # splits. See `BeamSampler` for the score.

    def __init__(self, model, num_beams, memory_length, num_prompts):
        self._num_beams = num_beams
        memory_length = generation_memory_length(model.backbone, memory_length)
        num_rows = num_prompts * num_beams
        self._reader = token_reader(model, num_rows, memory_length)

    def __call__(self, prompts, continuations):
        """Yields, once, the best continuation of each of B prompts."""
        count = self._num_beams
        texts = [prompt for prompt in prompts for _ in range(count)]
        beams = [c.copy() for c in continuations for _ in range(count)]
        self._reader.begin(texts)
        tokens = np.array([text[-1] for text in texts])
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
            log_probs = self._reader(tf.constant(tokens.ravel()))
            parents, tokens, scores = (
                part.numpy() for part in self._rank(log_probs, scores, ended)
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
                self._reader.reorder(tf.constant(rows, tf.int32))
            beams = [beams[row].copy() for row in rows]
            for beam, token in zip(beams, tokens.ravel(), strict=True):
                beam.add(token)

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
