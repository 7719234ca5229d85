"""`ByteTokenizer`: one id per byte."""

import numpy as np

from txl_keras.data.tokenizers.graph_text import split_bytes
from txl_keras.data.tokenizers.tokenizer import Tokenizer
from txl_keras.data.tokenizers.tokenizer import as_bytes
from txl_keras.data.tokenizers.tokenizer import check_ids


class ByteTokenizer(Tokenizer):
    """Encodes each byte as its value; `str` is converted to UTF-8.

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

    def encode(self, text, begins_line=True):
        return np.frombuffer(as_bytes(text), np.uint8)

    def encode_in_graph(self, text):
        return split_bytes(text)

    def decode_bytes(self, ids):
        return check_ids(ids, self.vocabulary_size).astype(np.uint8).tobytes()
