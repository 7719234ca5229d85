"""Tokenizers: text to integer ids and back.

- `ByteTokenizer`: the id is the byte. Needs no vocabulary, knows every text.
- `CharacterTokenizer`: the ids are those of the symbols a corpus consists of.
- `WordTokenizer`: the ids are those of words between spaces, as in the
  published results on WikiText-103 and One Billion Word.

All read `bytes`, as a `Corpus` holds them, and `str`, as people type it.

With `drop_newlines` the newline characters of a text are no tokens. This is the
protocol of the published enwik8 results, which then have 204 symbols and not
205. Bits per character are over the text without its newlines: compare them
with numbers of the same protocol, and give both where you can.
"""

import collections
import json
import os
import pathlib
import re

import numpy as np

from txl_keras.checks import check_integer
from txl_keras.data.vocabulary import NUM_CODE_POINTS
from txl_keras.data.vocabulary import UnknownSymbolError
from txl_keras.data.vocabulary import Vocabulary
from txl_keras.data.vocabulary import WordVocabulary

_NEWLINE = ord("\n")
_SPACE = re.compile(rb"\s")
# Symbols or bytes handled at once, so that temporary values stay small.
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


class WordTokenizer:
    """Ids are places in a vocabulary of words; spaces part the words.

    With the defaults a text becomes what the original code makes of
    WikiText-103: every newline is the word `<eos>`, empty lines have one too.
    A last line without a newline is an unfinished one and gets no `<eos>`, so
    that a prompt may end amid a line.

    For One Billion Word `unknown` is `"<UNK>"`, and `line_start` and `line_end`
    both are `"<S>"`.

    Args:
        vocabulary: A `WordVocabulary`, or its sequence of words: for a
            published model, the list it was trained with.
        unknown: Optional string. The word that stands for all words that the
            vocabulary lacks, if the vocabulary has this one.
        line_start: Optional string, the word that begins every line.
        line_end: Optional string, the word that stands for a newline. With
            None newlines are spaces.
        lower_case: Boolean. Reads text in lower case, as for Penn Treebank.

    Raises:
        ValueError: If the words are no vocabulary (see `WordVocabulary`), or
            if `line_start` or `line_end` is none of its words.

    Example:

    >>> tokenizer = WordTokenizer(["<eos>", "<unk>", "the", "cat"])
    >>> tokenizer.encode("the cat\\n\\nthe mat").tolist()
    [2, 3, 0, 0, 2, 1]
    >>> tokenizer.decode([2, 3, 0, 0, 2, 1])
    'the cat\\n\\nthe <unk>'
    """

    def __init__(
        self,
        vocabulary,
        unknown="<unk>",
        line_start=None,
        line_end="<eos>",
        lower_case=False,
    ):
        if not isinstance(vocabulary, WordVocabulary):
            vocabulary = WordVocabulary(vocabulary)
        for name, mark in ("line_start", line_start), ("line_end", line_end):
            if mark is None:
                continue
            if mark not in vocabulary or mark.split() != [mark]:
                raise ValueError(
                    f"`{name}` must be None or a word of the vocabulary, "
                    f"without spaces. Received: {name}={mark!r}"
                )
        self.vocabulary = vocabulary
        self.unknown = unknown
        self.line_start = line_start
        self.line_end = line_end
        self.lower_case = lower_case

    @classmethod
    def from_texts(
        cls,
        texts,
        min_count=1,
        max_size=None,
        unknown="<unk>",
        line_start=None,
        line_end="<eos>",
        lower_case=False,
    ):
        """Builds the vocabulary from texts, the most frequent words first.

        Words that are equally frequent are in the order of their first
        appearance. `line_end` and `line_start` come before all words, and so
        does `unknown` where the texts do not have it, as WikiText-103 does.

        A published model needs the very list it was trained with: older
        versions of Python, which published lists come from, put equally
        frequent words in no fixed order.

        Args:
            texts: Iterable of `bytes` or `str`: the train split for
                WikiText-103, all three for Penn Treebank.
            min_count: Integer. Leaves out words that are rarer.
            max_size: Optional integer. How many words to keep, besides those
                that come before all.
            unknown: As for the class.
            line_start: As for the class.
            line_end: As for the class.
            lower_case: As for the class.

        Returns:
            A `WordTokenizer`.

        Raises:
            ValueError: If `min_count` or `max_size` is not positive.

        Example:

        >>> tokenizer = WordTokenizer.from_texts(["b a a\\n"])
        >>> tokenizer.vocabulary.symbols
        ('<eos>', '<unk>', 'a', 'b')
        """
        check_integer("min_count", min_count, 1)
        if max_size is not None:
            check_integer("max_size", max_size, 1)
        counts = collections.Counter()
        for text in texts:
            for words in _words(text, line_start, line_end, lower_case):
                counts.update(words)
        special = [mark for mark in (line_end, line_start) if mark is not None]
        words = [
            word
            for word, count in counts.most_common()
            if count >= min_count and word not in special
        ][:max_size]
        if unknown is not None and unknown not in words:
            special.append(unknown)
        # line_end and line_start may be the same word.
        vocabulary = WordVocabulary(dict.fromkeys([*special, *words]))
        return cls(vocabulary, unknown, line_start, line_end, lower_case)

    @property
    def vocabulary_size(self):
        return len(self.vocabulary)

    def encode(self, text):
        """Turns text into ids.

        Args:
            text: `bytes` in UTF-8, or `str`.

        Returns:
            Array of shape `(n,)` of the smallest of uint8, uint16 and int32
            that holds the vocabulary.

        Raises:
            ValueError: If a word is not in the vocabulary and neither is
                `unknown`, with its position: how many words of the text,
                starts and ends of lines among them, come before it.
        """
        ids = [np.zeros(0, self.vocabulary.dtype)]
        position = 0
        for words in _words(
            text, self.line_start, self.line_end, self.lower_case
        ):
            try:
                ids.append(self.vocabulary.ids(words, self.unknown))
            except UnknownSymbolError as error:
                position += error.position
                raise UnknownSymbolError(error.symbol, position) from None
            position += len(words)
        return np.concatenate(ids)

    def decode_bytes(self, ids):
        """Turns ids into bytes, of which those of several calls fit together.

        Every word brings the space before it, so that text can be shown while
        it is generated, after a prompt too. Lines thus begin with a space, as
        they do in the files of WikiText-103.

        Args:
            ids: Integer array or list of shape `(n,)`, or one integer.

        Returns:
            `bytes`, in UTF-8.

        Raises:
            ValueError: If an id is not in `[0, vocabulary_size)`.
        """
        symbols = self.vocabulary.symbols
        marks = {self.line_start: "", self.line_end: "\n"}
        words = (symbols[i] for i in _check_ids(ids, len(symbols)).tolist())
        return "".join(marks.get(w, f" {w}") for w in words).encode("utf-8")

    def decode(self, ids):
        """Turns ids into a `str`, without the space that begins a line."""
        text = self.decode_bytes(ids).decode("utf-8")
        return text.replace("\n ", "\n").removeprefix(" ")

    def get_config(self):
        return {
            "vocabulary": list(self.vocabulary.symbols),
            "unknown": self.unknown,
            "line_start": self.line_start,
            "line_end": self.line_end,
            "lower_case": self.lower_case,
        }

    @classmethod
    def from_config(cls, config):
        return cls(**config)


def build_tokenizer(
    name, corpus, drop_newlines=False, vocabulary=None, **word_options
):
    """Builds the tokenizer of a corpus.

    The vocabulary of `"characters"` has every symbol of all three splits, as
    the published enwik8 and text8 results have: a test text never meets an
    unknown symbol. That of `"words"` has the words of the train split alone,
    as for WikiText-103.

    Args:
        name: String, `"bytes"`, `"characters"` or `"words"`.
        corpus: A `Corpus`.
        drop_newlines: Boolean. Leaves newlines out of the encoded text; not
            of `"words"`, where a newline is a word.
        vocabulary: Optional sequence of words, of `"words"`; by default they
            are counted.
        **word_options: Of `"words"`: those of `WordTokenizer`, or of
            `WordTokenizer.from_texts` where there is no `vocabulary`.

    Returns:
        A tokenizer.

    Raises:
        ValueError: If the name is none of the three, or if an argument is not
            one of this tokenizer.

    Example:

    >>> from txl_keras.data.corpora import Corpus
    >>> corpus = Corpus("t", {"train": b"bb", "valid": b"a", "test": b"c"})
    >>> build_tokenizer("characters", corpus).vocabulary.symbols
    ('b', 'a', 'c')
    """
    if name not in ("bytes", "characters", "words"):
        raise ValueError(
            "`name` must be 'bytes', 'characters' or 'words'. "
            f"Received: name={name!r}"
        )
    given = {
        "drop_newlines": drop_newlines or None,
        "vocabulary": vocabulary,
        **word_options,
    }
    foreign = {
        key
        for key, value in given.items()
        if value is not None and (key == "drop_newlines") == (name == "words")
    }
    if foreign:
        raise ValueError(
            f"The tokenizer {name!r} must be built without "
            f"{sorted(foreign)}, which it has no use for. Received: "
            + ", ".join(f"{key}={given[key]!r:.40}" for key in sorted(foreign))
        )
    if name == "bytes":
        return ByteTokenizer(drop_newlines)
    if name == "characters":
        symbols = _count_symbols(corpus, drop_newlines)
        return CharacterTokenizer(symbols, corpus.encoding, drop_newlines)
    if vocabulary is not None:
        counted = sorted({"min_count", "max_size"} & {*word_options})
        if counted:
            raise ValueError(
                f"{counted} must be left out where a `vocabulary` is given: "
                "it has the words that it has."
            )
        return WordTokenizer(vocabulary, **word_options)
    return WordTokenizer.from_texts([corpus.splits["train"]], **word_options)


def save_tokenizer(tokenizer, path):
    """Writes a tokenizer to a JSON file.

    Args:
        tokenizer: A `ByteTokenizer`, `CharacterTokenizer` or `WordTokenizer`.
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
    "WordTokenizer": WordTokenizer,
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


def _words(text, line_start, line_end, lower_case):
    """Yields the words of one block of text after the other, in lists."""
    data = text.encode("utf-8") if isinstance(text, str) else bytes(text)
    line_break = f" {line_end or ''} {line_start or ''} "
    # After the newline that ends a text no line starts.
    length = len(data) - data.endswith(b"\n")
    if line_start and data:
        yield [line_start]
    start = 0
    while start < length:
        space = _SPACE.search(data, start + _BLOCK, length)
        end = space.end() if space else length
        block = data[start:end].decode("utf-8")
        if lower_case:
            block = block.lower()
        yield block.replace("\n", line_break).split()
        start = end
    if line_end and length < len(data):
        yield [line_end]


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
