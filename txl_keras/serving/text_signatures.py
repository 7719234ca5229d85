"""Signatures of a SavedModel that takes raw text.

Letters: `B` batch, `P` tokens of the longest text, `M` memory.
"""

import tensorflow as tf

from txl_keras.samplers.sampler import Sampler
from txl_keras.serving.graph_checks import check
from txl_keras.serving.graph_checks import check_not_empty
from txl_keras.serving.graph_writer import write_tokens
from txl_keras.serving.signatures import sampling_specs
from txl_keras.serving.signatures import with_names


class TextSignatures:
    """Holds the signatures that score and generate text; see `export_text`."""

    def __init__(self, served, tokenizer):
        self._served = served
        self._tokenizer = tokenizer

    def endpoints(self):
        """Returns a dictionary from names to functions and input specs."""
        prompt = [
            tf.TensorSpec((None,), tf.string, "prompt"),
            tf.TensorSpec((), tf.int32, "length"),
            *sampling_specs(),
        ]
        return {
            "score_text": (
                self.score_text,
                [tf.TensorSpec((None,), tf.string, "text")],
            ),
            "generate_text": (
                with_names(self.generate_text, prompt),
                prompt,
            ),
        }

    def score_text(self, text):
        """Computes the negative log-likelihood of texts and their tokens."""
        ids, lengths = self._tokenizer.encode(text)
        with tf.control_dependencies([check_not_empty("text", lengths)]):
            token_nll = self._token_nll(ids, lengths)
        return {
            "nll": tf.reduce_sum(token_nll, axis=1),
            "token_nll": token_nll,
            "ids": ids,
            "lengths": lengths,
        }

    def _token_nll(self, ids, lengths):
        """Computes losses `(B, P)`; 0 for the first token and for padding."""
        served = self._served
        size = served.max_segment_length
        positions = served.positions(size)
        num_targets = tf.shape(ids)[1] - 1

        def read(number, memory, parts):
            start = number * size
            stop = tf.minimum(start + size, num_targets)
            hidden, *entries = served.read(
                ids[:, start:stop], memory, positions
            )
            nll = served.model.softmax(hidden, ids[:, start + 1 : stop + 1])
            num_real = tf.clip_by_value(lengths - 1 - start, 0, stop - start)
            memory = served.backbone.append(memory, entries, num_real)
            return number + 1, memory, parts.write(number, tf.transpose(nll))

        num_segments = (num_targets + size - 1) // size
        parts = tf.TensorArray(
            tf.float32,
            size=num_segments,
            element_shape=(None, None),
            infer_shape=False,
        )
        *_, parts = tf.while_loop(
            lambda number, *_: number < num_segments,
            read,
            (tf.constant(0), self._initial_ring(tf.shape(ids)[0]), parts),
        )
        nll = tf.cond(
            num_segments > 0,
            lambda: tf.transpose(parts.concat()),
            lambda: tf.zeros((tf.shape(ids)[0], 0)),
        )
        # The first token has no context and no loss.
        nll = tf.pad(nll, [[0, 0], [1, 0]])
        return tf.where(tf.sequence_mask(lengths, tf.shape(ids)[1]), nll, 0.0)

    def generate_text(self, prompt, length, seed, *sampling):
        """Generates text after prompts, which do not affect each other."""
        ids, lengths = self._tokenizer.encode(prompt)
        checks = [
            check(tf.size(lengths) >= 1, "`prompt` must have at least one row"),
            check_not_empty("prompt", lengths),
            self._served.check_length(length),
        ]
        with tf.control_dependencies(checks):
            written, _ = write_tokens(
                self._served,
                ids,
                lengths,
                self._initial_ring(tf.shape(ids)[0]),
                tf.identity(length),
                Sampler(*sampling),
                seed,
            )
        return {"text": self._tokenizer.decode(written), "ids": written}

    def _initial_ring(self, batch_size):
        return self._served.ring_from_tensors(*self._served.empty(batch_size))
