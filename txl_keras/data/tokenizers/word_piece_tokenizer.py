"""`WordPieceTokenizer`: one id per word or part of a word, as in BERT."""

import re
from collections.abc import Sequence
from typing import Self

import tensorflow as tf

from txl_keras.checks import import_extra
from txl_keras.data.corpora.files import decode_text
from txl_keras.data.tokenizers.subword_tokenizer import SubwordTokenizer
from txl_keras.data.vocabulary import Vocabulary
from txl_keras.json_files import MAX_VOCABULARY_BYTES
from txl_keras.json_files import open_checked
from txl_keras.types import PathLike


class WordPieceTokenizer(SubwordTokenizer):
    """Encodes text as words and parts of words, as in BERT.

    Words are separated at spaces, punctuation marks and Chinese characters. A
    word that is not in the vocabulary is divided greedily: the longest prefix
    that is in the vocabulary is one token, then the longest prefix of the rest,
    and so on. A word that cannot be divided in this way, or that has more than
    100 bytes, is `unknown`.

    Encoding loses the spacing: "don't  go" becomes "don ' t go". It also loses
    control characters and, with `lower_case`, capitals and accents. For bits
    per byte of the original text use `SentencePieceTokenizer`.

    TensorFlow Text encodes without holding the GIL: encode blocks of text in
    threads, and not in forked processes, where TensorFlow does not work.

    Args:
        vocabulary: A `Vocabulary`, or a sequence of words: the lines of the
            `vocab.txt` of a published model.
        unknown: String. The word of the vocabulary that replaces all words that
            cannot be encoded.
        suffix_indicator: String, the prefix of parts of words other than the
            first.
        lower_case: Boolean. Converts text to lower case and removes accents, as
            for the uncased BERT.
        line_end: Optional string, the word that replaces each newline, such as
            `"[SEP]"` with the vocabulary of BERT. With None newlines are
            spaces.

    Raises:
        ImportError: If TensorFlow Text is not installed.

    Example:

    >>> words = ["[EOS]", "[UNK]", "the", "un", "##known", "."]
    >>> tokenizer = WordPieceTokenizer(words)
    >>> tokenizer.encode("the unknown.\\nthe cat").tolist()
    [2, 3, 4, 5, 0, 2, 1]
    >>> tokenizer.decode([2, 3, 4, 5, 0, 2, 1])
    'the unknown .\\nthe [UNK]'
    """

    _has_prefix = True

    def __init__(
        self,
        vocabulary: Vocabulary | Sequence[str],
        unknown: str = "[UNK]",
        suffix_indicator: str = "##",
        lower_case: bool = False,
        line_end: str | None = "[EOS]",
    ):
        vocabulary = Vocabulary(vocabulary)
        for name, mark in (("unknown", unknown), ("line_end", line_end)):
            is_none = mark is None and name == "line_end"
            if not is_none and mark not in vocabulary:
                raise ValueError(
                    f"`{name}` must be a word of the vocabulary. "
                    f"Received: {name}={mark!r}"
                )
        self.vocabulary = vocabulary
        self.vocabulary_size = len(vocabulary)
        self.unknown = unknown
        self.suffix_indicator = suffix_indicator
        self.lower_case = lower_case
        self.line_end = line_end
        self.unknown_id = vocabulary.id_of(unknown)
        self.newline_id = vocabulary.id_of(line_end)
        text = import_extra("tensorflow_text")
        try:
            self._tf_text = text.FastBertTokenizer(
                list(vocabulary),
                suffix_indicator=suffix_indicator,
                token_out_type=tf.int32,
                unknown_token=unknown,
                lower_case_nfd_strip_accents=lower_case,
            )
        except RuntimeError as error:
            raise ValueError(
                "`vocabulary` and `suffix_indicator` must be valid for "
                "TensorFlow Text. "
                f"Received: suffix_indicator={suffix_indicator!r} ({error})"
            ) from error

    @classmethod
    def from_file(cls, path: PathLike, **options) -> Self:
        """Loads a vocabulary file, such as the `vocab.txt` of BERT.

        Args:
            path: String or `pathlib.Path`. The file has one word per line.
            **options: As for the class.

        Returns:
            A `WordPieceTokenizer`.

        Raises:
            FileNotFoundError: If there is no such file.
        """
        with open_checked(path, MAX_VOCABULARY_BYTES) as file:
            text = decode_text(file.read(), path)
        lines = re.split("\r\n|\r|\n", text)
        return cls(lines if lines[-1] else lines[:-1], **options)

    def _encode_lines(self, lines, begins_line):
        return self._tf_text.tokenize(lines)

    def _text(self, token_id):
        symbol = self.vocabulary.symbols[token_id]
        if symbol == self.line_end:
            return b"\n"
        if symbol.startswith(self.suffix_indicator):
            return symbol.removeprefix(self.suffix_indicator).encode()
        return f" {symbol}".encode()
