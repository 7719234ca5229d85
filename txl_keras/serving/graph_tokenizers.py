"""Tokenizers as TensorFlow graphs, for SavedModels that take raw text.

Byte, character and word tokenizers use only operations of TensorFlow. Subword
tokenizers use operations of TensorFlow Text, which must be imported before such
a SavedModel is loaded.

Letters: `B` batch, `P` and `T` tokens of the longest row.
"""

import tensorflow as tf

from txl_keras.checks import checked
from txl_keras.data import Tokenizer
from txl_keras.data.tokenizers.graph_text import constant

# TensorFlow has strings only on the CPU. An accelerator would only add copies.
_CPU = "CPU:0"


class GraphTokenizer(tf.Module):
    """Encodes and decodes text in a graph, as a `Tokenizer` does in Python."""

    def __init__(self, tokenizer):
        super().__init__()
        in_graph = getattr(type(tokenizer), "encode_in_graph", None)
        if in_graph in (None, Tokenizer.encode_in_graph):
            raise ValueError(
                "`tokenizer` must define `encode_in_graph` to be part of a "
                "SavedModel that takes text, as tokenizers of bytes, "
                "characters, words and SentencePiece do. With another one "
                "export the model without `tokenizer`, and pass ids to the "
                f"SavedModel. Received: {type(tokenizer).__name__}"
            )
        self._tokenizer = tokenizer
        # The bytes of every id; a text is their concatenation.
        ids = range(tokenizer.vocabulary_size)
        with tf.device(_CPU):
            self._texts = constant([tokenizer.decode_bytes(i) for i in ids])

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

    @tf.function(
        input_signature=[tf.TensorSpec((None, None), tf.int32, "ids")],
        autograph=False,
    )
    def decode(self, ids):
        """Converts ids `(B, T)` into bytes, maybe ending within a character."""
        with tf.device(_CPU):
            return tf.strings.reduce_join(tf.gather(self._texts, ids), axis=1)
