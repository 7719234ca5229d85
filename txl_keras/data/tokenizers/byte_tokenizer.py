"""`ByteTokenizer`: one id per byte."""

import numpy as np
import tensorflow as tf

from txl_keras.data.tokenizers.graph_text import split_bytes
from txl_keras.data.tokenizers.tokenizer import Tokenizer
from txl_keras.data.tokenizers.tokenizer import as_bytes
from txl_keras.data.tokenizers.tokenizer import check_ids


class ByteTokenizer(Tokenizer):
    """Encodes each byte as its value; `str` is converted to UTF-8.

    Args:
        drop_newlines: Boolean. Leaves newlines out of the encoded text.

    Example:

    >>> tokenizer = ByteTokenizer()
    >>> tokenizer.encode("né").tolist()
    [110, 195, 169]
    >>> tokenizer.decode([110, 195, 169])
    'né'
    """

    vocabulary_size = 256
    unit = "byte"
    is_lossless = True

    def __init__(self, drop_newlines: bool = False):
        self.drop_newlines = drop_newlines

    def encode(self, text, begins_line=True):
        data = as_bytes(text)
        if self.drop_newlines:
            data = data.replace(b"\n", b"")
        return np.frombuffer(data, np.uint8)

    def encode_in_graph(self, text):
        ids = split_bytes(text)
        if not self.drop_newlines:
            return ids
        return tf.ragged.boolean_mask(ids, ids != ord("\n"))

    def decode_bytes(self, ids):
        return check_ids(ids, self.vocabulary_size).astype(np.uint8).tobytes()
