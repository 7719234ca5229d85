"""`CharacterTokenizer`: one id per symbol of a corpus."""

import collections

import numpy as np

from txl_keras.checks import check_one_of
from txl_keras.data.corpora.corpus import ENCODINGS
from txl_keras.data.tokenizers.token_ids import as_bytes
from txl_keras.data.tokenizers.token_ids import decode_utf8
from txl_keras.data.tokenizers.tokenizer import Tokenizer
from txl_keras.data.vocabulary import UnknownSymbolError
from txl_keras.data.vocabulary import Vocabulary

_NEWLINE = ord("\n")
# Symbols per block, which bounds the size of temporary arrays.
_BLOCK = 1 << 20


class CharacterTokenizer(Tokenizer):
    """Encodes each symbol as its index in a vocabulary of single symbols.

    Args:
        vocabulary: A `Vocabulary`, or a sequence of symbols.
        encoding: String, the unit of a symbol. `"utf-8"`: a character.
            `"latin-1"`: a byte, represented by the character with that code
            point; a non-ASCII character of a `str` is then several symbols.
        drop_newlines: Boolean. Leaves newlines out of the encoded text.

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

    def __init__(self, vocabulary, encoding="utf-8", drop_newlines=False):
        if not isinstance(vocabulary, Vocabulary):
            vocabulary = Vocabulary(vocabulary)
        self.vocabulary = vocabulary
        self.vocabulary_size = len(vocabulary)
        self.encoding = check_one_of("encoding", encoding, ENCODINGS)
        self.drop_newlines = drop_newlines

    @classmethod
    def from_counts(cls, counts, encoding="utf-8", drop_newlines=False):
        """Builds the vocabulary, the most frequent symbols first.

        Args:
            counts: Dict of symbol to its number of occurrences, see
                `count_symbols`.
            encoding, drop_newlines: As for the class.

        Returns:
            A `CharacterTokenizer`.
        """
        vocabulary = Vocabulary.from_text_counts(counts)
        return cls(vocabulary, encoding, drop_newlines)

    def encode(self, text, begins_line=True):
        ids = [np.zeros(0, self.vocabulary.dtype)]
        for start, code_points in _code_points(text, self.encoding):
            kept = code_points
            if self.drop_newlines:
                kept = code_points[code_points != _NEWLINE]
            try:
                ids.append(self.vocabulary.ids(kept))
            except UnknownSymbolError as error:
                first = np.flatnonzero(code_points == ord(error.symbol))[0]
                position = start + int(first)
                raise UnknownSymbolError(error.symbol, position) from None
        return np.concatenate(ids)

    def _text(self, token_id):
        return self.vocabulary.symbols[token_id]

    def get_config(self):
        return {
            "vocabulary": list(self.vocabulary.symbols),
            "encoding": self.encoding,
            "drop_newlines": self.drop_newlines,
        }


def count_symbols(text, encoding="utf-8", drop_newlines=False):
    """Counts how often each symbol occurs in a text.

    Args:
        text: `bytes` or `str`.
        encoding: As for `CharacterTokenizer`.
        drop_newlines: Boolean. Does not count newlines.

    Returns:
        `collections.Counter` of symbols.
    """
    counts = collections.Counter()
    for _, code_points in _code_points(text, encoding):
        numbers = np.bincount(code_points)
        for i in np.flatnonzero(numbers):
            counts[chr(i)] += int(numbers[i])
    if drop_newlines:
        del counts["\n"]
    return counts


def _code_points(text, encoding):
    """Yields blocks of text as their position and code points, `(n,)`."""
    if encoding == "latin-1":
        text = as_bytes(text)
    elif not isinstance(text, str):
        text = decode_utf8(as_bytes(text))
    for start in range(0, len(text), _BLOCK):
        block = text[start : start + _BLOCK]
        if isinstance(block, str):
            data = block.encode("utf-32-le", "surrogatepass")
            yield start, np.frombuffer(data, "<u4")
        else:
            yield start, np.frombuffer(block, np.uint8)
