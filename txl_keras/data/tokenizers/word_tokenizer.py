"""`WordTokenizer`: one id per whitespace-separated word."""

from collections.abc import Sequence

from txl_keras.backend import tf
from txl_keras.data.tokenizers import graph_text
from txl_keras.data.tokenizers.tokenizer import Tokenizer
from txl_keras.data.tokenizers.tokenizer import as_string
from txl_keras.data.vocabulary import Vocabulary


class WordTokenizer(Tokenizer):
    """Encodes whitespace-separated words as indices in a vocabulary of words.

    The defaults give the encoding of WikiText-103 in the original code: every
    newline is the word `<eos>`. A last line without a newline has no `<eos>`,
    so that a prompt may end in the middle of a line.

    For One Billion Word, `unknown` is `"<UNK>"`, and both `line_start` and
    `line_end` are `"<S>"`.

    Args:
        vocabulary: A `Vocabulary`, or a sequence of words; for a published
            model, the list that the model was trained with.
        unknown: Optional string. The word that replaces all words that are not
            in the vocabulary, if `unknown` itself is in the vocabulary.
        line_start: Optional string, the word to insert at the start of every
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
        for name in ("line_start", "line_end"):
            mark = getattr(self, name)
            if mark is None:
                continue
            if mark not in vocabulary or mark.split() != [mark]:
                raise ValueError(
                    f"`{name}` must be None or a word of the vocabulary, "
                    f"without spaces. Received: {name}={mark!r}"
                )
        self.unknown_id = vocabulary.id_of(unknown)

    def encode(self, text, begins_line=True):
        text = as_string(text)
        start = [self.line_start] * bool(self.line_start and text)
        # No line starts after the newline that ends a text.
        body = text.removesuffix("\n")
        end = [self.line_end] * bool(self.line_end and body != text)
        line_break = f" {self.line_end or ''} {self.line_start or ''} "
        words = body.replace("\n", line_break).split()
        words = [*(start if begins_line else ()), *words, *end]
        return self.vocabulary.ids(words, self.unknown)

    def encode_in_graph(self, text):
        text = graph_text.valid_text(text)
        # No line starts after a newline at the end of a text.
        body = tf.strings.regex_replace(text, r"\n\z", "")
        line_start, line_end = self.line_start or "", self.line_end or ""
        start = tf.where(text == "", "", f"{line_start} ")
        end = tf.where(body == text, "", f" {line_end}")
        line_break = f" {line_end} {line_start} ".replace("\\", "\\\\")
        body = tf.strings.regex_replace(body, "\n", line_break)
        words = graph_text.split_words(start + body + end)
        ids, is_known = graph_text.find_words(self.vocabulary, words.values)
        if self.unknown_id is not None:
            ids = tf.where(is_known, ids, self.unknown_id)
            is_known = tf.ones_like(is_known)
        return graph_text.check_known(ids, is_known, words)

    def _text(self, token_id):
        word = self.vocabulary.symbols[token_id]
        marks = {self.line_start: "", self.line_end: "\n"}
        return marks.get(word, f" {word}").encode()
