"""Tokenizers: text to integer ids and back.

- `ByteTokenizer`: the id is the byte. Needs no vocabulary, knows every text.
- `CharacterTokenizer`: the ids are those of the symbols a corpus consists of.

Both read `bytes`, as a `Corpus` holds them, and `str`, as people type it.

With `drop_newlines` the newline characters of a text are no tokens. This is the
protocol of the published enwik8 results, which then have 204 symbols and not
205. Bits per character are over the text without its newlines: compare them
with numbers of the same protocol, and give both where you can.
"""

import json
import os
import pathlib

import numpy as np

from txl_keras.data.vocabulary import NUM_CODE_POINTS
from txl_keras.data.vocabulary import UnknownSymbolError
from txl_keras.data.vocabulary import Vocabulary

_NEWLINE = ord("\n")
# Symbols handled at once, so that temporary arrays stay small.
_BLOCK = 1 << 20


class ByteTokenizer:
    """Ids are bytes; text typed as `str` is taken in UTF-8.

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

    def __init__(self, drop_newlines=False):
        self.drop_newlines = drop_newlines

    def encode(self, text):
        """Turns text into ids.

        Args:
            text: `bytes` or `str`.

        Returns:
            Array of shape `(n,)`, uint8.
        """
        data = text.encode("utf-8") if isinstance(text, str) else bytes(text)
        if self.drop_newlines:
            data = data.replace(b"\n", b"")
        return np.frombuffer(data, np.uint8)

    def decode_bytes(self, ids):
        """Turns ids into bytes, which may end amid a character.

        Feed them to `codecs.getincrementaldecoder("utf-8")` to show text while
        it is generated.

        Args:
            ids: Integer array or list of shape `(n,)`, or one integer.

        Returns:
            `bytes`.

        Raises:
            ValueError: If an id is not in `[0, 256)`.
        """
        return _check_ids(ids, self.vocabulary_size).astype(np.uint8).tobytes()

    def decode(self, ids):
        """Turns ids into a `str`; broken characters become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def get_config(self):
        return {"drop_newlines": self.drop_newlines}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


class CharacterTokenizer:
    """Ids are places in a vocabulary of single symbols.

    Args:
        vocabulary: A `Vocabulary`, or its sequence of symbols.
        encoding: String, what a symbol is. `"utf-8"`: a character.
            `"latin-1"`: a byte, written as the character of that number; text
            typed as `str` then is several symbols wherever it is not ASCII.
        drop_newlines: Boolean. Leaves newlines out of the encoded text.

    Raises:
        ValueError: If the encoding is neither of the two, or if the symbols
            are no vocabulary (see `Vocabulary`).

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

    def __init__(self, vocabulary, encoding="utf-8", drop_newlines=False):
        if not isinstance(vocabulary, Vocabulary):
            vocabulary = Vocabulary(vocabulary)
        if encoding not in ("utf-8", "latin-1"):
            raise ValueError(
                "`encoding` must be 'utf-8' or 'latin-1'. "
                f"Received: encoding={encoding!r}"
            )
        self.vocabulary = vocabulary
        self.encoding = encoding
        self.drop_newlines = drop_newlines

    @property
    def vocabulary_size(self):
        return len(self.vocabulary)

    def encode(self, text):
        """Turns text into ids.

        Args:
            text: `bytes` or `str`.

        Returns:
            Array of shape `(n,)` of the smallest of uint8, uint16 and int32
            that holds the vocabulary.

        Raises:
            ValueError: If a symbol is not in the vocabulary, with its position
                in the text.
        """
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

    def decode_bytes(self, ids):
        """Turns ids into bytes, which may end amid a character.

        Feed them to `codecs.getincrementaldecoder("utf-8")` to show text while
        it is generated.

        Args:
            ids: Integer array or list of shape `(n,)`, or one integer.

        Returns:
            `bytes`, in the encoding of the corpus.

        Raises:
            ValueError: If an id is not in `[0, vocabulary_size)`.
        """
        symbols = self.vocabulary.symbols
        ids = _check_ids(ids, len(symbols)).tolist()
        return "".join(symbols[i] for i in ids).encode(self.encoding)

    def decode(self, ids):
        """Turns ids into a `str`; broken characters become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def get_config(self):
        return {
            "vocabulary": list(self.vocabulary.symbols),
            "encoding": self.encoding,
            "drop_newlines": self.drop_newlines,
        }

    @classmethod
    def from_config(cls, config):
        return cls(**config)


def build_tokenizer(name, corpus, drop_newlines=False):
    """Builds the tokenizer of a corpus.

    The vocabulary of `"characters"` has every symbol of all three splits, as
    the published enwik8 and text8 results have: a test text never meets an
    unknown symbol.

    Args:
        name: String, `"bytes"` or `"characters"`.
        corpus: A `Corpus`.
        drop_newlines: Boolean. Leaves newlines out of the encoded text.

    Returns:
        A tokenizer.

    Raises:
        ValueError: If the name is neither of the two.

    Example:

    >>> from txl_keras.data.corpora import Corpus
    >>> corpus = Corpus("t", {"train": b"bb", "valid": b"a", "test": b"c"})
    >>> build_tokenizer("characters", corpus).vocabulary.symbols
    ('b', 'a', 'c')
    """
    if name == "bytes":
        return ByteTokenizer(drop_newlines)
    if name == "characters":
        vocabulary = _count_symbols(corpus, drop_newlines)
        return CharacterTokenizer(vocabulary, corpus.encoding, drop_newlines)
    raise ValueError(
        f"`name` must be 'bytes' or 'characters'. Received: name={name!r}"
    )


def save_tokenizer(tokenizer, path):
    """Writes a tokenizer to a JSON file.

    Args:
        tokenizer: A `ByteTokenizer` or `CharacterTokenizer`.
        path: String or `pathlib.Path`.
    """
    content = {
        "class_name": type(tokenizer).__name__,
        "config": tokenizer.get_config(),
    }
    text = json.dumps(content, ensure_ascii=False, indent=1) + "\n"
    path = pathlib.Path(path)
    # Renamed once complete: a stopped program leaves no half of a file.
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, path)


def load_tokenizer(path):
    """Reads a tokenizer from a file that `save_tokenizer` wrote.

    Args:
        path: String or `pathlib.Path`.

    Returns:
        A tokenizer.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no complete tokenizer file, or of another version.
    """
    try:
        content = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        class_name, config = content["class_name"], content["config"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is truncated or no tokenizer file: {error!r}"
        ) from error
    if class_name not in _TOKENIZERS:
        raise ValueError(
            f"{path} has an unknown tokenizer. Expected one of "
            f"{sorted(_TOKENIZERS)}. Received: {class_name!r}"
        )
    try:
        return _TOKENIZERS[class_name].from_config(config)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path} does not describe a {class_name}: {error}"
        ) from error


_TOKENIZERS = {
    "ByteTokenizer": ByteTokenizer,
    "CharacterTokenizer": CharacterTokenizer,
}


def _count_symbols(corpus, drop_newlines):
    counts = np.zeros(NUM_CODE_POINTS, np.int64)
    for data in corpus.splits.values():
        for _, code_points in _code_points(data, corpus.encoding):
            counts += np.bincount(code_points, minlength=NUM_CODE_POINTS)
    if drop_newlines:
        counts[_NEWLINE] = 0
    found = np.flatnonzero(counts)
    return Vocabulary.from_text_counts({chr(i): int(counts[i]) for i in found})


def _code_points(text, encoding):
    """Yields the position of a block of text and its code points `(n,)`."""
    if encoding == "latin-1" and isinstance(text, str):
        text = text.encode("utf-8")
    elif encoding == "utf-8" and not isinstance(text, str):
        text = bytes(text).decode("utf-8")
    for start in range(0, len(text), _BLOCK):
        block = text[start : start + _BLOCK]
        if isinstance(block, str):
            data = block.encode("utf-32-le", "surrogatepass")
            yield start, np.frombuffer(data, "<u4")
        else:
            yield start, np.frombuffer(block, np.uint8)


def _check_ids(ids, vocabulary_size):
    """Returns ids as an array of shape `(n,)`, or raises ValueError."""
    ids = np.atleast_1d(np.asarray(ids))
    if ids.size == 0:
        return ids.reshape(-1).astype(np.int32)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ValueError(
            "`ids` must be integers of shape (n,). "
            f"Received: shape {ids.shape}, dtype {ids.dtype}"
        )
    wrong = ids[(ids < 0) | (ids >= vocabulary_size)]
    if wrong.size:
        raise ValueError(
            f"`ids` must be in [0, {vocabulary_size}). Received: {wrong[0]}"
        )
    return ids
