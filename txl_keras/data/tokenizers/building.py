"""Builds the tokenizer of a corpus."""

import collections
import functools
import inspect
import itertools
import random
import zlib
from collections.abc import Callable

from txl_keras.checks import check_integer
from txl_keras.checks import check_one_of
from txl_keras.data.corpora.corpus import Corpus
from txl_keras.data.corpora.id_files import MAX_ID
from txl_keras.data.parallel import map_blocks
from txl_keras.data.tokenizers.character_tokenizer import ByteTokenizer
from txl_keras.data.tokenizers.character_tokenizer import CharacterTokenizer
from txl_keras.data.tokenizers.id_tokenizer import IdTokenizer
from txl_keras.data.tokenizers.library_tokenizers import HuggingFaceTokenizer
from txl_keras.data.tokenizers.sentence_piece_tokenizer import (
    SentencePieceTokenizer,
)
from txl_keras.data.tokenizers.sentence_piece_tokenizer import sentences_of
from txl_keras.data.tokenizers.tokenizer import Tokenizer
from txl_keras.data.tokenizers.word_tokenizer import WordTokenizer

MAX_STRINGS = 1 << 22  # counted at once: about 600 MB
# Approximate size of the sample to train subwords, by default.
SAMPLE_BYTES = 50_000_000
# Ids above this need a vocabulary size. Otherwise an id with a typing error
# could create an embedding that exceeds any memory.
_MAX_FOUND_ID = (1 << 24) - 1


def build_tokenizer(
    name: str, corpus: Corpus, section_map: Callable | None = None, **options
) -> Tokenizer:
    """Builds the tokenizer of a corpus, on all cores.

    The vocabulary of `"characters"` contains every symbol of all three splits,
    as in the published enwik8 and text8 results. The vocabulary of `"ids"` has
    all ids up to the largest in the three splits. Other vocabularies are built
    from the train split alone; subwords from a sample of about 50 MB of lines.

    Args:
        name: String, `"bytes"`, `"characters"`, `"words"`, `"sentencepiece"`,
            `"hugging_face"` or `"ids"`.
        corpus: A `Corpus`.
        section_map: Optional function that reads the text, see `prepare`.
        **options: Options of this tokenizer, see its class and its `train`;
            options that are None are ignored. `vocabulary` is a sequence of
            words, which are then not counted, or for subwords the path of a
            model or of a tokenizer.json (required by `"hugging_face"`). For
            `"words"`, `min_count` leaves out rarer words, `vocabulary_size`
            limits their number including marks, and an empty string as
            `unknown`, `line_start` or `line_end` disables this mark. For
            `"sentencepiece"`, `sample_bytes` is the size of the sample.

    Example:

    >>> from txl_keras.data import Corpus
    >>> corpus = Corpus("t", {"train": b"bb", "valid": b"a", "test": b"c"})
    >>> build_tokenizer("characters", corpus).vocabulary.symbols
    ('b', 'a', 'c')
    """
    build = BUILDERS[check_one_of("tokenizer", name, BUILDERS)]
    options = {key: v for key, v in options.items() if v is not None}
    known = {
        x: [*inspect.signature(b).parameters][2:] for x, b in BUILDERS.items()
    }
    extra = {*options} - {*known[name]}
    if "vocabulary" in options:  # it is used unchanged
        extra |= {"vocabulary_size", "min_count"} & options.keys()
    if extra:
        others = [x for x in known if x != name and extra <= {*known[x]}]
        raise ValueError(
            f"The tokenizer {name!r} must be built without {sorted(extra)}, "
            f"which are options of {others or 'no tokenizer'}: its options are "
            f"{known[name]}, and if a `vocabulary` is given, its size and "
            "`min_count` are left out. Received: "
            + ", ".join(f"{key}={options[key]!r:.40}" for key in sorted(extra))
        )
    check_kind(corpus, name == "ids")
    return build(corpus, section_map, **options)


def check_kind(corpus, takes_ids):
    """Checks that corpus and tokenizer both have text, or both token ids."""
    has_ids = corpus.encoding == "ids"
    if takes_ids != has_ids:
        needed = "must be" if has_ids else "must not be"
        kind = "token ids (.npy or .npz)" if has_ids else "text"
        raise ValueError(
            f"`tokenizer` {needed} ids for a corpus of {kind}. "
            f"Received: corpus={corpus.name}"
        )


def _build_bytes(corpus, section_map):
    return ByteTokenizer()


def _build_characters(corpus, section_map, drop_newlines=False):
    counts = _add_up(str, corpus, corpus.splits, section_map)
    if drop_newlines:
        counts.pop("\n", None)
    symbols = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))
    return CharacterTokenizer(symbols, corpus.encoding, drop_newlines)


def _build_words(
    corpus,
    section_map,
    vocabulary=None,
    vocabulary_size=None,
    min_count=1,
    unknown="<unk>",
    line_start=None,
    line_end="<eos>",
):
    marks = [mark or None for mark in (unknown, line_start, line_end)]
    if vocabulary is None:
        _check_train(corpus)
        counts = _add_up(str.split, corpus, ("train",), section_map)
        vocabulary = _frequent(counts, min_count, vocabulary_size, *marks)
    return WordTokenizer(vocabulary, *marks)


def _frequent(counts, min_count, size, unknown, line_start, line_end):
    """Returns marks, then words by frequency and first occurrence."""
    # `unknown` is a mark unless it is among the words, as in WikiText-103.
    check_integer("min_count", min_count, 1)
    special = dict.fromkeys(m for m in (line_end, line_start) if m)
    words = [
        word
        for word, count in counts.most_common()
        if count >= min_count and word not in special
    ]
    if not words:
        raise ValueError(
            "`min_count` must leave at least one word. "
            f"Received: min_count={min_count}, {len(counts)} words"
        )
    room = len(words)
    if size is not None:
        check_integer("vocabulary_size", size, len(special) + 2)
        room = size - len(special)
    if unknown is not None and unknown not in words[:room]:
        special[unknown] = None
        room -= size is not None
    return [*special, *words[:room]]


def _build_sentence_piece(
    corpus,
    section_map,
    vocabulary=None,
    vocabulary_size=None,
    sample_bytes=None,
):
    if vocabulary is not None:
        return SentencePieceTokenizer.from_file(vocabulary)
    _check_train(corpus)
    size = corpus.text("train").num_text_bytes or sum(
        block.num_bytes for block in corpus.blocks("train")
    )
    draw = functools.partial(_sample, (sample_bytes or SAMPLE_BYTES) / size)
    texts = _map(draw, corpus, ("train",), section_map)
    return SentencePieceTokenizer.train(texts, vocabulary_size)


def _build_hugging_face(corpus, section_map, vocabulary=None):
    if vocabulary is None:
        raise ValueError(
            "`vocabulary` must be a tokenizer.json for hugging_face; "
            "sentencepiece learns subwords. Received: vocabulary=None"
        )
    return HuggingFaceTokenizer.from_file(vocabulary)


def _build_ids(corpus, section_map, vocabulary_size=None):
    if vocabulary_size is not None:
        return IdTokenizer(vocabulary_size)
    found = _map(_largest_id, corpus, corpus.splits, section_map, threads=True)
    largest = max(found, default=0)
    if largest > _MAX_FOUND_ID:
        raise ValueError(
            f"`vocabulary_size` must be given for ids above {_MAX_FOUND_ID:,}, "
            f"up to {MAX_ID + 1:,}. Received: {corpus.name} has {largest:,}"
        )
    return IdTokenizer(largest + 1)


BUILDERS = {
    "bytes": _build_bytes,
    "characters": _build_characters,
    "words": _build_words,
    "sentencepiece": _build_sentence_piece,
    "hugging_face": _build_hugging_face,
    "ids": _build_ids,
}


def _check_train(corpus):
    if "train" not in corpus.splits:
        raise ValueError(
            "`corpus` must have a train split to build a vocabulary from: "
            "load it without whole=True, or give `vocabulary`. "
            f"Received: corpus={corpus.name}, with {list(corpus.splits)}"
        )


def _map(function, corpus, splits, section_map, threads=False):
    """Yields `function(blocks)` for each block, or for each section."""
    if section_map is not None:
        texts = map(corpus.text, splits)
        sections = [x for text in texts for x in text.sections()]
        function = functools.partial(_of_section, function)
        yield from section_map(function, sections)
        return
    for split in splits:
        yield from map_blocks(
            lambda block: function([block]), corpus, split, "Reading", threads
        )


def _of_section(function, section):
    return function(section.blocks())


def _count(split, encoding, blocks):
    counts = collections.Counter()
    for block in blocks:
        for piece in block.pieces:
            counts.update(split(piece.decode(encoding)))
    return counts


def _add_up(split, corpus, splits, section_map):
    """Adds up counts of strings, in the order of their first occurrence."""
    total = collections.Counter()
    # Words are in UTF-8.
    encoding = corpus.encoding if split is str else "utf-8"
    count = functools.partial(_count, split, encoding)
    for counts in _map(count, corpus, splits, section_map):
        total.update(counts)
        if len(total) > MAX_STRINGS:
            frequent = dict(total.most_common(MAX_STRINGS // 2))
            total = collections.Counter(frequent)
    return total


def _sample(share, blocks):
    """Draws a share of the sentences of blocks, the same on every machine."""
    kept = []
    # By piece, because blocks depend on sections.
    for piece in itertools.chain.from_iterable(x.pieces for x in blocks):
        drawn = random.Random(zlib.crc32(piece)).random
        kept += [s for s in sentences_of(piece) if drawn() < share]
    return "\n".join(kept)


def _largest_id(blocks):
    ids = (ids for block in blocks for ids in block.pieces)
    return max((int(part.max(initial=0)) for part in ids), default=0)
