"""Tokenizers as TensorFlow graphs, for SavedModels that take raw text.

Byte, character and word tokenizers use only TensorFlow operations. Subword
tokenizers use operations of TensorFlow Text, which must be imported before the
SavedModel is loaded.

Letters: `B` batch, `P` and `T` tokens of the longest row.
"""

import bisect

import numpy as np
import tensorflow as tf

from txl_keras.checks import checked
from txl_keras.data import Tokenizer
from txl_keras.data.tokenizers.graph_text import constant
from txl_keras.models.generation.prompts import heals
from txl_keras.models.generation.prompts import line_end_id

# TensorFlow has strings only on the CPU. An accelerator would only add copies.
_CPU = "CPU:0"


def can_be_in_graph(tokenizer):
    """Returns whether a SavedModel can contain a tokenizer."""
    in_graph = getattr(type(tokenizer), "encode_in_graph", None)
    return in_graph not in (None, Tokenizer.encode_in_graph)


class GraphTokenizer(tf.Module):
    """Encodes and decodes text in a graph, like a `Tokenizer` in Python."""

    def __init__(self, tokenizer):
        super().__init__()
        if not can_be_in_graph(tokenizer):
            raise ValueError(
                "`tokenizer` must define `encode_in_graph` to be part of a "
                "SavedModel that takes text, as tokenizers of bytes, "
                "characters, words and SentencePiece do. With others, "
                "export the model without `tokenizer`, and pass ids to the "
                f"SavedModel. Received: {type(tokenizer).__name__}"
            )
        self._tokenizer = tokenizer
        # The bytes of every id; a text is their concatenation.
        texts = [*map(tokenizer.decode_bytes, range(tokenizer.vocabulary_size))]
        with tf.device(_CPU):
            self._texts = constant(texts)
        self._line_end = line_end_id(tokenizer)
        if heals(tokenizer):
            self._begins_line = tf.constant(
                [text.startswith(b"\n") for text in texts]
            )
            # Tokens that begin with another are next to each other in order.
            order = sorted(range(len(texts)), key=texts.__getitem__)
            self._place = tf.constant(np.argsort(order), tf.int32)
            in_order = [texts[i] for i in order]
            first = [bisect.bisect_left(in_order, text) for text in texts]
            end = [
                bisect.bisect_right(in_order, text, key=lambda x: x[:size])
                for text, size in zip(texts, map(len, texts), strict=True)
            ]
            self._first, self._end = tf.constant(first), tf.constant(end)

    # AutoGraph would try to convert the import of TensorFlow Text.
    @tf.function(
        input_signature=[tf.TensorSpec((None,), tf.string, "text")],
        autograph=False,
    )
    def encode(self, text):
        """Converts texts `(B,)`, each the start of a line, into token ids."""
        # Returns ids, int32 `(B, P)` padded with 0, and lengths, int32 `(B,)`.
        with tf.device(_CPU):
            ids = self._tokenizer.encode_in_graph(text)
            lengths = tf.cast(ids.row_lengths(), tf.int32)
            return ids.to_tensor(0), lengths

    def encode_input(self, name, text):
        """Encodes an input, in which every text must have a token."""
        ids, lengths = self.encode(text)
        return ids, checked(
            lengths,
            tf.reduce_all(lengths >= 1),
            f"`{name}` must have at least one token in every row. Received "
            "the lengths:",
            lengths,
        )

    def after_line_end(self, ids, lengths):
        """Puts a line end before prompts, as the function of this name does."""
        if self._line_end is None:
            return ids, lengths
        with_line_end = tf.pad(
            ids, [[0, 0], [1, 0]], constant_values=self._line_end
        )
        # An empty batch has no first id, either.
        ids = tf.pad(ids, [[0, 0], [0, 1]])
        is_after = tf.gather(self._begins_line, ids[:, 0])
        ids = tf.where(is_after[:, None], ids, with_line_end)
        return ids, lengths + tf.cast(~is_after, tf.int32)

    def take_back(self, ids, lengths):
        """Takes back the last tokens of prompts: see `known_bytes`.

        Returns the remaining `lengths` `(B,)`, which tokens may be next
        `(B, V)`, and how many of their bytes are known `(B,)`; or None twice.
        """
        if not heals(self._tokenizer):
            return lengths, None, None
        is_healed = lengths > 1
        last = tf.gather(ids, lengths - 1, batch_dims=1)
        first, end = (
            tf.gather(x, last)[:, None] for x in (self._first, self._end)
        )
        allowed = (self._place >= first) & (self._place < end)
        with tf.device(_CPU):
            known = tf.strings.length(tf.gather(self._texts, last))
        return (
            lengths - tf.cast(is_healed, tf.int32),
            allowed | ~is_healed[:, None],
            tf.where(is_healed, known, 0),
        )

    @tf.function(
        input_signature=[tf.TensorSpec((None, None), tf.int32, "ids")],
        autograph=False,
    )
    def decode(self, ids):
        """Converts ids `(B, T)` into bytes, maybe ending within a character."""
        with tf.device(_CPU):
            return tf.strings.reduce_join(tf.gather(self._texts, ids), axis=1)
