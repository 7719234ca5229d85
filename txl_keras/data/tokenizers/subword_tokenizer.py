"""Helpers of `SentencePieceTokenizer` and `WordPieceTokenizer`."""

import collections
import importlib
import io
import math
import re

import numpy as np

from txl_keras.data.layouts import draw
from txl_keras.data.tokenizers.tokenizer import as_bytes
from txl_keras.data.tokenizers.tokenizer import decode_utf8

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


def import_extra(name):
    """Imports a module that Windows lacks; names the remedy if missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"Subword tokenizers need {name.split('.')[0]}, which cannot be "
            f"imported ({error}). Run `pip install sentencepiece "
            "tensorflow-text`; on Windows, which has no TensorFlow Text, use "
            "another tokenizer, such as bytes."
        ) from error


def split_lines(text, keep_ends):
    """Splits text into `bytes` at newlines only; other separators are kept."""
    data = as_bytes(text)
    decode_utf8(data)  # raises; TensorFlow would silently write U+FFFD
    return io.BytesIO(data).readlines() if keep_ends else data.split(b"\n")


def join_lines(tokens, line_end_id):
    """Joins the ids of a `tf.RaggedTensor` of lines, with separators."""
    ids = tokens.values.numpy()
    if line_end_id is None:
        return ids
    return np.insert(ids, tokens.row_splits.numpy()[1:-1], line_end_id)


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
