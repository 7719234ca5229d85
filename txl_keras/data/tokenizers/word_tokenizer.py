"""`WordTokenizer`: one id per whitespace-separated word."""

import collections
from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Self

import tensorflow as tf

from txl_keras.checks import check_integer
from txl_keras.data.tokenizers.graph_text import check_known
from txl_keras.data.tokenizers.graph_text import find_words
from txl_keras.data.tokenizers.graph_text import split_words
from txl_keras.data.tokenizers.graph_text import valid_text
from txl_keras.data.tokenizers.tokenizer import Tokenizer
from txl_keras.data.tokenizers.tokenizer import as_string
from txl_keras.data.vocabulary import Vocabulary


class WordTokenizer(Tokenizer):
    """Encodes whitespace-separated words as indices in a vocabulary of words.

    The defaults give the encoding of WikiText-103 in the original code: every
    newline is the word `<eos>`. A last line without a newline gets none, so
    that a prompt may end in the middle of a line.

    For One Billion Word, `unknown` is `"<UNK>"`, and `line_start` and
    `line_end` both are `"<S>"`.

    Args:
        vocabulary: A `Vocabulary`, or a sequence of words: for a published
            model, the list it was trained with.
        unknown: Optional string. The word that replaces all words that are not
            in the vocabulary, if `unknown` itself is in the vocabulary.
        line_start: Optional string, the word inserted at the start of every
            line.
        line_end: Optional string, the word that replaces each newline. With
            None newlines are spaces.

    Example:

    >>> tokenizer = WordTokenizer(["<eos>", "<unk>", "the", "cat"])
    >>> tokenizer.encode("the cat\\n\\nthe mat").tolist()
    [2, 3, 0, 0, 2, 1]
    >>> tokenizer.decode([2, 3, 0, 0, 2, 1])
    'the cat\\n\\nthe <unk>'
    """

    unit = "word"
    _has_prefix = True

    def __init__(
        self,
        vocabulary: Vocabulary | Sequence[str],
        unknown: str | None = "<unk>",
        line_start: str | None = None,
        line_end: str | None = "<eos>",
    ):
        vocabulary = Vocabulary(vocabulary)
        self.vocabulary = vocabulary
        self.vocabulary_size = len(vocabulary)
        self.unknown = unknown
        self.line_start = line_start
        self.line_end = line_end
        for name in ("unknown", "line_start", "line_end"):
            mark = getattr(self, name)
            is_known = mark in vocabulary or name == "unknown"
            if mark is not None and (
                str(mark).split() != [mark] or not is_known
            ):
                raise ValueError(
                    f"`{name}` must be None or a word without spaces, and for "
                    "the ends of lines one of the vocabulary. "
                    f"Received: {name}={mark!r}"
                )
        self.unknown_id = vocabulary.id_of(unknown)
        if line_start is None:  # else a newline is two tokens
            self.newline_id = vocabulary.id_of(line_end)

    @classmethod
    def from_counts(
        cls,
        counts: Mapping[str, int],
        min_count: int = 1,
        vocabulary_size: int | None = None,
        unknown: str = "<unk>",
        line_start: str | None = None,
        line_end: str = "<eos>",
    ) -> Self:
        """Builds the vocabulary, the most frequent words first.

        Words of equal frequency keep their order in `counts`, that of their
        first occurrence. `line_end` and `line_start` come before all words, and
        so does `unknown` if it is not among the counted words, as it is in
        WikiText-103. A published model needs the exact list of words it was
        trained with.

        Args:
            counts: Dict of word to its number of occurrences, see
                `count_words`.
            min_count: Integer. Leaves out rarer words.
            vocabulary_size: Optional integer. The maximum number of words,
                including `line_end`, `line_start` and `unknown`.
            unknown, line_start, line_end: As for the class.

        Example:

        >>> tokenizer = WordTokenizer.from_counts(count_words("b a a\\n"))
        >>> tokenizer.vocabulary.symbols
        ('<eos>', '<unk>', 'a', 'b')
        """
        check_integer("min_count", min_count, 1)
        special = dict.fromkeys(m for m in (line_end, line_start) if m)
        words = [
            word
            for word, count in collections.Counter(counts).most_common()
            if count >= min_count and word not in special
        ]
        if not words:
            raise ValueError(
                "`min_count` must leave at least one word. "
                f"Received: min_count={min_count}, {len(counts)} words"
            )
        room = len(words)
        if vocabulary_size is not None:
            check_integer("vocabulary_size", vocabulary_size, len(special) + 2)
            room = vocabulary_size - len(special)
        if unknown is not None and unknown not in words[:room]:
            special[unknown] = None
            room -= vocabulary_size is not None
        vocabulary = Vocabulary([*special, *words[:room]])
        return cls(vocabulary, unknown, line_start, line_end)

    def encode(self, text, begins_line=True):
        words = _words(text, self.line_start, self.line_end, begins_line)
        return self.vocabulary.ids(words, self.unknown)

    def encode_in_graph(self, text):
        text = valid_text(text)
        # No line starts after a newline at the end of a text.
        body = tf.strings.regex_replace(text, r"\n\z", "")
        line_start, line_end = self.line_start or "", self.line_end or ""
        start = tf.where(text == "", "", f"{line_start} ")
        end = tf.where(body == text, "", f" {line_end}")
        line_break = f" {line_end} {line_start} ".replace("\\", "\\\\")
        body = tf.strings.regex_replace(body, "\n", line_break)
        words = split_words(start + body + end)
        ids, is_known = find_words(self.vocabulary, words.values)
        if self.unknown_id is not None:
            ids = tf.where(is_known, ids, self.unknown_id)
            is_known = tf.ones_like(is_known)
        return check_known(ids, is_known, words)

    def _text(self, token_id):
        word = self.vocabulary.symbols[token_id]
        marks = {self.line_start: "", self.line_end: "\n"}
        return marks.get(word, f" {word}").encode()


def count_words(text: str | bytes) -> Counter:
    """Counts how often each word occurs in a text.

    Args:
        text: `bytes` in UTF-8, or `str`.

    Returns:
        `collections.Counter`, words in the order of their first occurrence.
    """
    return collections.Counter(_words(text, None, None))


def _words(text, line_start, line_end, begins_line=True):
    """Returns the words and marks of a text as a list."""
    text = as_string(text)
    start = [line_start] if line_start and text and begins_line else []
    # No line starts after the newline that ends a text.
    body = text.removesuffix("\n")
    end = [line_end] if line_end and body != text else []
    line_break = f" {line_end or ''} {line_start or ''} "
    return [*start, *body.replace("\n", line_break).split(), *end]
