"""Helpers of `SentencePieceTokenizer` and `WordPieceTokenizer`."""

import collections
import importlib
import io
import math
import re

import numpy as np

from txl_keras.checks import check_integer
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


def train_model(texts, vocabulary_size, max_characters, **options):
    """Trains a lossless SentencePiece model on texts, deterministically."""
    # With a `vocabulary_size` of None the size of the texts determines it.
    if vocabulary_size is not None:
        check_integer("vocabulary_size", vocabulary_size, 1)
    check_integer("max_characters", max_characters, 1)
    sentencepiece = import_extra("sentencepiece")
    sentences = sample_sentences(texts, max_characters)
    if not sentences:
        raise ValueError("`texts` must contain text. Received: none")
    if vocabulary_size is None:
        coverage = options["character_coverage"]
        vocabulary_size = _default_size(sentences, coverage)
        options["hard_vocab_limit"] = False  # a short text has fewer
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_consumed(sentences),
            model_writer=model,
            vocab_size=vocabulary_size,
            # Normalization would be lossy.
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            byte_fallback=True,
            # Without them each space of an indentation would be a token.
            allow_whitespace_only_pieces=True,
            user_defined_symbols=["\n"],
            # Unused special tokens would waste embedding rows.
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            # Fixed, because float sums depend on the number of threads.
            num_threads=16,
            minloglevel=2,
            **options,
        )
    except RuntimeError as error:
        # Parses sentencepiece's "... 10 vs 273 ..." or "... a value <= 275."
        limit = re.search(r"(vs|<=) (\d+)", str(error))
        if limit is None:
            raise
        bound = {"vs": "least", "<=": "most"}[limit[1]]
        raise ValueError(
            f"`vocabulary_size` must be at {bound} {limit[2]} for these texts. "
            f"Received: vocabulary_size={vocabulary_size}"
        ) from error
    return model.getvalue()


def _default_size(sentences, character_coverage):
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
    kept, keys = [], np.zeros(0, np.uint64)
    number = total = num_kept = 0
    for text in texts:
        sentences = sentences_of(text)
        total += _num_characters(sentences)
        drawn, found = draw_sentences(sentences, number, max_characters, total)
        number += len(sentences)
        kept += drawn
        keys = np.append(keys, found)
        num_kept += _num_characters(drawn)
        if num_kept > max_characters + max_characters // 4:
            kept, keys = _below(kept, keys, max_characters, total)
            num_kept = _num_characters(kept)
    return _below(kept, keys, max_characters, total)[0]


def _num_characters(sentences):
    return sum(map(len, sentences))


def draw_sentences(sentences, first, max_characters, total):
    """Draws a share `max_characters / total` of sentences, with random keys."""
    # The first of them has the number `first` among all.
    keys = draw(_SEED, np.arange(first, first + len(sentences)))
    return _below(sentences, keys, max_characters, total)


def _below(sentences, keys, size, total):
    """Keeps the sentences whose keys are in the lowest share `size / total`."""
    limit = np.uint64(min((1 << 64) - 1, (size << 64) // max(total, 1)))
    chosen = np.flatnonzero(keys <= limit)
    return [sentences[i] for i in chosen], keys[chosen]


def _consumed(items):
    """Yields the items of a list in order and frees each of them."""
    items.reverse()
    while items:
        yield items.pop()
