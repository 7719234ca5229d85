"""`WordPieceTokenizer`: one id per word or part of a word, as in BERT."""

import re

import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.data.corpora.files import decode_text
from txl_keras.data.tokenizers.sentence_piece_model import NORMAL
from txl_keras.data.tokenizers.sentence_piece_model import SPACE
from txl_keras.data.tokenizers.subword_tokenizer import MAX_CHARACTERS
from txl_keras.data.tokenizers.subword_tokenizer import import_extra
from txl_keras.data.tokenizers.subword_tokenizer import join_lines
from txl_keras.data.tokenizers.subword_tokenizer import split_lines
from txl_keras.data.tokenizers.subword_tokenizer import train_pieces
from txl_keras.data.tokenizers.tokenizer import Tokenizer
from txl_keras.data.vocabulary import WordVocabulary
from txl_keras.json_files import MAX_VOCABULARY_BYTES
from txl_keras.json_files import open_checked


class WordPieceTokenizer(Tokenizer):
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
        vocabulary: A `WordVocabulary`, or a sequence of words: for a published
            model, the lines of its `vocab.txt`.
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

    unit = "subword"
    releases_gil = True
    _has_prefix = True

    def __init__(
        self,
        vocabulary,
        unknown="[UNK]",
        suffix_indicator="##",
        lower_case=False,
        line_end="[EOS]",
    ):
        if not isinstance(vocabulary, WordVocabulary):
            vocabulary = WordVocabulary(vocabulary)
        if unknown not in vocabulary:
            raise ValueError(
                "`unknown` must be a word of the vocabulary. "
                f"Received: unknown={unknown!r}"
            )
        if line_end is not None and line_end not in vocabulary:
            raise ValueError(
                "`line_end` must be None or a word of the vocabulary. "
                f"Received: line_end={line_end!r}"
            )
        symbols = vocabulary.symbols
        self.vocabulary = vocabulary
        self.vocabulary_size = len(vocabulary)
        self.unknown = unknown
        self.suffix_indicator = suffix_indicator
        self.lower_case = lower_case
        self.line_end = line_end
        self.unknown_id = symbols.index(unknown)
        self.newline_id = None if line_end is None else symbols.index(line_end)
        text = import_extra("tensorflow_text")
        try:
            self._tf_text = text.FastBertTokenizer(
                list(symbols),
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
    def from_file(cls, path, **options):
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

    @classmethod
    def train(
        cls,
        texts,
        vocabulary_size,
        unknown="[UNK]",
        suffix_indicator="##",
        lower_case=False,
        line_end="[EOS]",
        character_coverage=0.9995,
        max_characters=MAX_CHARACTERS,
    ):
        """Learns a vocabulary, deterministically.

        The words are `line_end` and `unknown`, then every character, as a word
        and as part of a word, then the results of byte pair encoding, the most
        frequent pairs first.

        Args:
            texts, max_characters: As for `SentencePieceTokenizer.train`.
            vocabulary_size: Integer.
            unknown, suffix_indicator, lower_case, line_end: As for the class.
            character_coverage: Float. The share of the text covered by
                characters in the vocabulary; words with other characters are
                `unknown`.

        Returns:
            A `WordPieceTokenizer`.

        Raises:
            ImportError: If sentencepiece is not installed.
        """
        check_integer("vocabulary_size", vocabulary_size, 1)
        # The trainer of TensorFlow Text took 100 s for 5 MB of Wikipedia, this
        # one takes 1 s.
        model = train_pieces(
            _spaced_words(texts, lower_case),
            vocabulary_size,
            max_characters,
            model_type="bpe",
            character_coverage=character_coverage,
            hard_vocab_limit=False,
        )
        pieces = [x.piece.decode() for x in model.pieces if x.type == NORMAL]
        special = [mark for mark in (line_end, unknown) if mark is not None]
        words = _vocabulary_words(pieces, special, suffix_indicator)
        num_needed = len(special) + 2 * len(_characters(pieces))
        if not num_needed <= vocabulary_size <= len(words):
            raise ValueError(
                f"`vocabulary_size` must be at least {num_needed}, for the "
                f"characters of the texts, and at most {len(words)}, the "
                f"words found. Received: vocabulary_size={vocabulary_size}"
            )
        return cls(
            words[:vocabulary_size],
            unknown,
            suffix_indicator,
            lower_case,
            line_end,
        )

    def encode(self, text, begins_line=True):
        lines = split_lines(text, keep_ends=False)
        tokens = self._tf_text.tokenize(tf.constant(lines, tf.string))
        ids = join_lines(tokens, self.newline_id)
        return ids.astype(self.vocabulary.dtype)

    def _text(self, token_id):
        symbol = self.vocabulary.symbols[token_id]
        if symbol == self.line_end:
            return "\n"
        if symbol.startswith(self.suffix_indicator):
            return symbol.removeprefix(self.suffix_indicator)
        return f" {symbol}"

    def as_tf_text(self):
        """Returns the TensorFlow Text tokenizer, which ignores `line_end`."""
        return self._tf_text

    def get_config(self):
        return {
            "vocabulary": list(self.vocabulary.symbols),
            "unknown": self.unknown,
            "suffix_indicator": self.suffix_indicator,
            "lower_case": self.lower_case,
            "line_end": self.line_end,
        }


def _spaced_words(texts, lower_case):
    """Yields blocks of text with spaces between the tokenizer's words."""
    normalizer = import_extra("tensorflow_text").FastBertNormalizer(
        lower_case_nfd_strip_accents=lower_case
    )
    splitter = import_extra(
        "tensorflow_text.python.ops.bert_tokenizer"
    ).BasicTokenizer()
    for text in texts:
        lines = tf.constant(split_lines(text, keep_ends=False), tf.string)
        words = splitter.tokenize(normalizer.normalize(lines))
        spaced = tf.strings.reduce_join(words, axis=-1, separator=" ")
        yield b"\n".join(spaced.numpy())


def _characters(pieces):
    return sorted(set("".join(pieces)) - {SPACE})


def _vocabulary_words(pieces, special, suffix_indicator):
    """Returns the words of all pieces, the most important ones first."""
    characters = _characters(pieces)
    suffixes = [suffix_indicator + character for character in characters]
    words = [
        piece.removeprefix(SPACE)
        if piece.startswith(SPACE)
        else suffix_indicator + piece
        for piece in pieces
        if piece != SPACE
    ]
    return list(dict.fromkeys([*special, *characters, *suffixes, *words]))
