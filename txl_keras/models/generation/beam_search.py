"""Beam search.

Letters: `B` prompts, `K` beams of each, `V` vocabulary.
"""

import numpy as np
import tensorflow as tf

from txl_keras.models.generation.generator import Generator


class BeamSearch(Generator):
    """Continues prompts with likely texts, K beams at a time."""

    # Every beam is a row with its own memory, which is copied where a beam
    # splits. See `BeamSampler` for the score. Nothing is drawn.

    _answer = None  # its readers return log-probabilities, as engines do

    def __call__(self, rows, seed=0, memory=None):
        """Yields once: the best text or ids that were found for each row."""
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
                if not (scores < np.inf).all():
                    raise FloatingPointError(
                        "The text cannot be continued, because the model "
                        "returned NaN. Check that its weights are finite."
                    )
                parents = (first + parents).ravel()
                if (parents != np.arange(len(beams))).any():
                    reader.reorder(parents)
                beams = [beams[parent].copy() for parent in parents]
                for beam, token in zip(beams, tokens.ravel(), strict=True):
                    beam.add(token)
        rows[:] = beams[::count]
        yield [row.result() for row in rows]

    @tf.function(reduce_retracing=True, autograph=False)
    def _rank(self, log_probs, scores, ended):
        """Returns parents, tokens and scores `(B, K)` of the next beams."""
        count = self._sampler.num_beams
        vocabulary_size = log_probs.shape[1]
        log_probs = tf.reshape(log_probs, (-1, count, vocabulary_size))
        # An ended text has one continuation, itself; its token is ignored.
        itself = tf.one_hot(0, vocabulary_size, 0.0, -float("inf"))
        log_probs = tf.where(ended[..., None], itself, log_probs)
        sums = tf.reshape(
            scores[..., None] + log_probs, (-1, count * vocabulary_size)
        )
        # NaN comes first.
        sums = tf.where(sums < float("inf"), sums, float("inf"))
        scores, places = tf.math.top_k(sums, count)
        return places // vocabulary_size, places % vocabulary_size, scores
