"""Beam search.

Letters: `B` prompts, `K` beams of each, `D` hidden size, `V` vocabulary.
"""

import numpy as np
import tensorflow as tf

from txl_keras.models.generation.generator import Generator


class BeamSearch(Generator):
    """Continues prompts with likely texts, K beams at a time."""

    # Every beam is a row with its own memory, which is copied where a beam
    # splits. See `BeamSampler` for the score. Nothing is drawn, so neither a
    # seed nor the log-probabilities of what was drawn are needed.

    def __call__(self, rows, seed=0, memory=None, with_log_probs=False):
        """Yields once, when each `Continuation` is the best one found."""
        count = self._sampler.num_beams
        beams = [row.copy() for row in rows for _ in range(count)]
        prompts = [beam.prompt for beam in beams]
        tokens = np.array([prompt[-1] for prompt in prompts])
        # The beams of a prompt are still alike, so all but one are ruled out.
        scores = np.full((len(rows), count), -np.inf, "float32")
        scores[:, 0] = 0
        first = np.arange(len(rows))[:, None] * count
        if memory is not None:
            memory = tf.nest.map_structure(
                lambda state: tf.repeat(state, count, axis=0), memory
            )
        with self._reading(prompts, memory) as reader:
            while True:
                ended = np.reshape([b.is_ended for b in beams], scores.shape)
                # More tokens never raise a sum, so an ended text that is the
                # best now remains the best.
                if ended[:, 0].all():
                    break
                log_probs = reader(tf.constant(tokens.ravel()))
                parents, tokens, scores = (
                    part.numpy()
                    for part in self._rank(log_probs, scores, ended)
                )
                if tokens.min() < 0:
                    raise FloatingPointError(
                        f"The text after prompt {tokens.min(axis=1).argmin()} "
                        "cannot be continued, because the model returned NaN. "
                        "Check that its weights are finite."
                    )
                parents = (first + parents).ravel()
                if (parents != np.arange(len(beams))).any():
                    reader.reorder(tf.constant(parents, tf.int32))
                beams = [beams[parent].copy() for parent in parents]
                for beam, token in zip(beams, tokens.ravel(), strict=True):
                    beam.add(token)
        rows[:] = beams[::count]
        yield

    def _answer(self, hidden):
        return self._model.softmax.log_probs(hidden)

    @tf.function(reduce_retracing=True, autograph=False)
    def _rank(self, log_probs, scores, ended):
        """Returns parents, tokens and scores `(B, K)` of the next beams."""
        count = self._sampler.num_beams
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
