"""Tokenizers with one id per byte, or per symbol of a corpus."""

from collections.abc import Sequence

import numpy as np

from txl_keras.backend import tf
from txl_keras.checks import check_one_of
from txl_keras.data.corpora.corpus import ENCODINGS
from txl_keras.data.tokenizers.graph_text import check_known
from txl_keras.data.tokenizers.graph_text import find
from txl_keras.data.tokenizers.graph_text import split_bytes
from txl_keras.data.tokenizers.graph_text import valid_text
from txl_keras.data.tokenizers.tokenizer import Tokenizer
from txl_keras.data.tokenizers.tokenizer import as_bytes
from txl_keras.data.tokenizers.tokenizer import as_string
from txl_keras.data.tokenizers.tokenizer import check_ids
from txl_keras.data.vocabulary import NUM_CODE_POINTS
from txl_keras.data.vocabulary import UnknownSymbolError
from txl_keras.data.vocabulary import Vocabulary

_NEWLINE = ord("\n")


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


class CharacterTokenizer(Tokenizer):
    """Encodes each symbol as its index in a vocabulary of single symbols.

    Args:
        vocabulary: A `Vocabulary`, or a sequence, of single characters.
        encoding: String, the unit of a symbol. `"utf-8"`: a character.
            `"latin-1"`: a byte, represented by the character with its code
            point. A non-ASCII character of a `str` is then several symbols.
        drop_newlines: Boolean. True: leaves newlines out of the encoded text.

    Example:

    >>> tokenizer = CharacterTokenizer("né", encoding="utf-8")
    >>> tokenizer.encode("née").tolist()
    Traceback (most recent call last):
    ...
    txl_keras.data.vocabulary.UnknownSymbolError: The symbol 'e' (U+0065) at \
position 2 is not in the vocabulary.
    >>> tokenizer.encode("né").tolist(), tokenizer.decode([1, 0])
    ([0, 1], 'én')
    """

    unit = "character"
    is_lossless = True

    def __init__(
        self,
        vocabulary: Vocabulary | Sequence[str],
        encoding: str = "utf-8",
        drop_newlines: bool = False,
    ):
        self.vocabulary = Vocabulary(list(vocabulary))
        self.vocabulary_size = len(self.vocabulary)
        self.encoding = check_one_of("encoding", encoding, ENCODINGS[:2])
        self.drop_newlines = drop_newlines
        # Indexed by code point, so that one look-up converts a whole text.
        self._ids = np.full(NUM_CODE_POINTS, -1, np.int32)
        for i, symbol in enumerate(self.vocabulary):
            if len(symbol) != 1 or (encoding == "latin-1" and symbol > "\xff"):
                raise ValueError(
                    "`vocabulary` must be strings of one character that can "
                    f"be encoded in {encoding}. Received: {symbol!r}"
                )
            self._ids[ord(symbol)] = i

    def encode(self, text, begins_line=True):
        if self.encoding == "latin-1":
            code_points = np.frombuffer(as_bytes(text), np.uint8)
        else:
            code_points = as_string(text).encode("utf-32-le")
            code_points = np.frombuffer(code_points, "<u4")
        if self.drop_newlines:
            code_points = code_points[code_points != _NEWLINE]
        ids = self._ids[code_points]
        if ids.min(initial=0) < 0:
            position = int(np.argmax(ids < 0))
            raise UnknownSymbolError(chr(code_points[position]), position)
        return ids.astype(self.vocabulary.dtype)

    def encode_in_graph(self, text):
        if self.encoding == "latin-1":
            symbols = split_bytes(text)
        else:
            symbols = tf.strings.unicode_decode(valid_text(text), "UTF-8")
        if self.drop_newlines:
            symbols = tf.ragged.boolean_mask(symbols, symbols != _NEWLINE)
        ids, is_known = find(list(map(ord, self.vocabulary)), symbols.values)
        return check_known(ids, is_known, symbols)

    def _text(self, token_id):
        return self.vocabulary.symbols[token_id].encode(self.encoding)
