"""The base of `SentencePieceTokenizer` and `WordPieceTokenizer`."""

import collections
import math
import re

import numpy as np
import tensorflow as tf

from txl_keras.data.layouts import draw
from txl_keras.data.tokenizers.graph_text import valid_text
from txl_keras.data.tokenizers.tokenizer import Tokenizer
from txl_keras.data.tokenizers.tokenizer import as_bytes
from txl_keras.data.tokenizers.tokenizer import decode_utf8
from txl_keras.data.vocabulary import smallest_dtype

# sentencepiece skips sentences that contain one of these characters.
_CHARACTER = "[^\n\0\u2047\u2585]"
# It also skips long sentences and aborts at words of 65536 characters, so
# sentences are cut, before a space if possible.
_SENTENCE = re.compile(rf"{_CHARACTER}{{1,1000}}(?!\S)|{_CHARACTER}{{1,1000}}")
# The default number of pieces, by the root of the number of characters.
_PIECES_PER_ROOT = 1.2
_FEWEST_PIECES, _MOST_PIECES = 500, 8000
# Of a longer text, a sample of about this size is used: training takes about
# 15 bytes of memory per character.
MAX_CHARACTERS = 50_000_000
_SEED = 7


class SubwordTokenizer(Tokenizer):
    """Encodes each line on its own with TensorFlow Text, also in graphs."""

    unit = "subword"
    releases_gil = True
    line_end = None
    _keeps_newlines = False  # if they are not `line_end`

    def encode(self, text, begins_line=True):
        data = as_bytes(text)
        decode_utf8(data)  # raises; TensorFlow would silently write U+FFFD
        ids = self._encode(tf.constant([data]), begins_line).values.numpy()
        return ids.astype(smallest_dtype(self.vocabulary_size))

    def encode_in_graph(self, text):
        return self._encode(valid_text(text), True)

    def _encode(self, text, begins_line):
        # An empty text has one line, too.
        lines = tf.strings.split(text, sep="\n")
        limits = tf.gather(lines.row_limits(), lines.value_rowids())
        is_ended = tf.range(1, tf.size(limits, tf.int64) + 1) != limits
        strings = lines.values
        if self.line_end is None and self._keeps_newlines:
            strings += tf.where(is_ended, "\n", "")
        tokens = self._encode_lines(strings, begins_line)
        if self.line_end is not None:
            ends = tf.cast(is_ended, tf.int64)
            values = tf.fill([tf.reduce_sum(ends)], self.newline_id)
            ends = tf.RaggedTensor.from_row_lengths(values, ends)
            tokens = tf.concat([tokens, ends], axis=1)
        return lines.with_values(tokens).merge_dims(1, 2)

    def _encode_lines(self, lines, begins_line):
        """Encodes strings `(n,)` as ragged int32 `(n, None)`."""
        raise NotImplementedError


def default_size(sentences, character_coverage):
    """Returns a number of pieces that suits the size of the texts."""
    counts = collections.Counter()
    for sentence in sentences:
        counts.update(sentence)
    total = counts.total()
    size = int(_PIECES_PER_ROOT * math.sqrt(total))
    size = min(max(size, _FEWEST_PIECES), _MOST_PIECES)
    # Each of these needs a piece: in Chinese there are thousands.
    covered = np.cumsum(sorted(counts.values(), reverse=True))
    return size + 1 + int(np.searchsorted(covered, character_coverage * total))


def sentences_of(text):
    """Returns what sentencepiece is trained on: lines, long ones in parts."""
    return _SENTENCE.findall(decode_utf8(as_bytes(text)))


def sample_sentences(texts, max_characters):
    """Draws sentences of about `max_characters` from texts, in order."""
    # Whether a sentence is drawn depends on its number and on the characters of
    # all, so machines that have a part of the texts each draw the same.
    # sentencepiece's own sample differs in every run.
    kept, number, total, num_kept = [], 0, 0, 0
    for text in texts:
        sentences = sentences_of(text)
        total += sum(map(len, sentences))
        drawn = draw_sentences(sentences, number, max_characters, total)
        number += len(sentences)
        kept += drawn
        num_kept += sum(len(sentence) for _, sentence in drawn)
        if num_kept > max_characters + max_characters // 4:
            kept = _below(kept, max_characters, total)
            num_kept = sum(len(sentence) for _, sentence in kept)
    return [sentence for _, sentence in _below(kept, max_characters, total)]


def draw_sentences(sentences, first, max_characters, total):
    """Draws a share `max_characters / total` of sentences, with random keys."""
    # The first of them has the number `first` among all.
    keys = draw(_SEED, np.arange(first, first + len(sentences))).tolist()
    pairs = zip(keys, sentences, strict=True)
    return _below(pairs, max_characters, total)


def _below(pairs, size, total):
    """Keeps the sentences whose keys are in the lowest share `size / total`."""
    limit = (size << 64) // max(total, 1)
    return [pair for pair in pairs if pair[0] <= limit]
