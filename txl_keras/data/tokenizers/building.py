"""Builds, saves and loads the tokenizer of a corpus."""

import collections
import contextlib
import functools
import itertools
import json
import os
import sqlite3
import sys
from collections.abc import Callable

import tensorflow as tf

from txl_keras.checks import check_one_of
from txl_keras.checks import shown
from txl_keras.data.corpora.corpus import Corpus
from txl_keras.data.corpora.files import write_text
from txl_keras.data.corpora.id_files import MAX_ID
from txl_keras.data.parallel import map_blocks
from txl_keras.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_keras.data.tokenizers.character_tokenizer import CharacterTokenizer
from txl_keras.data.tokenizers.character_tokenizer import count_symbols
from txl_keras.data.tokenizers.id_tokenizer import IdTokenizer
from txl_keras.data.tokenizers.library_tokenizers import HuggingFaceTokenizer
from txl_keras.data.tokenizers.sentence_piece_tokenizer import (
    SentencePieceTokenizer,
)
from txl_keras.data.tokenizers.subword_tokenizer import MAX_CHARACTERS
from txl_keras.data.tokenizers.subword_tokenizer import draw_sentences
from txl_keras.data.tokenizers.subword_tokenizer import sentences_of
from txl_keras.data.tokenizers.tokenizer import Tokenizer
from txl_keras.data.tokenizers.word_piece_tokenizer import WordPieceTokenizer
from txl_keras.data.tokenizers.word_tokenizer import WordTokenizer
from txl_keras.data.tokenizers.word_tokenizer import count_words
from txl_keras.json_files import check_fields
from txl_keras.json_files import read_json
from txl_keras.types import PathLike

# Largest tokenizer file: about five million words.
_MAX_BYTES = 64 << 20
# Ids above this need a vocabulary size: one of a typing error would make an
# embedding that no memory holds.
_MAX_FOUND_ID = (1 << 24) - 1
MAX_STRINGS = 1 << 21  # counted in memory: about 300 MB
_ADD = (
    "INSERT INTO words VALUES (?, ?) "
    "ON CONFLICT (word) DO UPDATE SET count = count + excluded.count"
)
# A word keeps the `rowid` of its first occurrence.
_CHOOSE = (
    "SELECT word, count FROM (SELECT rowid AS place, * FROM words "
    "WHERE count >= ? ORDER BY count DESC, place LIMIT ?) ORDER BY place"
)
# Options of each tokenizer.
OPTIONS = {
    "bytes": ("drop_newlines",),
    "characters": ("drop_newlines",),
    "words": (
        "vocabulary", "vocabulary_size", "min_count", "unknown", "line_start",
        "line_end", "lower_case",
    ),
    "sentencepiece": (
        "vocabulary", "vocabulary_size", "line_end", "model_type",
        "character_coverage",
    ),
    "wordpiece": ("vocabulary", "unknown", "line_end", "lower_case"),
    "hugging_face": ("vocabulary",),
    "ids": ("vocabulary_size",),
}  # fmt: skip
# Those that a vocabulary is built with.
_COUNTED = {"vocabulary_size", "min_count", "model_type", "character_coverage"}


def build_tokenizer(
    name: str, corpus: Corpus, section_map: Callable | None = None, **options
) -> Tokenizer:
    """Builds the tokenizer of a corpus, on all cores.

    The vocabulary of `"characters"` contains every symbol of all three splits,
    as in the published enwik8 and text8 results, so that no test text has an
    unknown symbol. Other vocabularies are built from the train split alone, as
    for WikiText-103. The vocabulary of `"ids"` has the ids up to the largest
    of all three splits.

    Args:
        name: String, `"bytes"`, `"characters"`, `"words"`, `"sentencepiece"`,
            `"wordpiece"`, `"hugging_face"` or `"ids"`.
        corpus: A `Corpus`.
        section_map: Optional function that reads the text, see `prepare`.
        **options: Options of this tokenizer, see its class, its `from_counts`
            and its `train`; options that are None are ignored. `vocabulary` is
            a sequence of words to use instead of counting them, or for subwords
            the path of a model or vocabulary file, which `"wordpiece"` and
            `"hugging_face"` need.
            For `"words"`, an empty string as `unknown`, `line_start` or
            `line_end` disables this mark.

    Returns:
        A tokenizer.

    Example:

    >>> from txl_keras.data import Corpus
    >>> corpus = Corpus("t", {"train": b"bb", "valid": b"a", "test": b"c"})
    >>> build_tokenizer("characters", corpus).vocabulary.symbols
    ('b', 'a', 'c')
    """
    check_one_of("tokenizer", name, OPTIONS)
    options = {key: v for key, v in options.items() if v is not None}
    known = {*OPTIONS[name]}
    if "vocabulary" in options:  # which is used as it is
        known -= _COUNTED
    extra = sorted(options.keys() - known)
    if extra:
        raise ValueError(
            f"The tokenizer {name!r} must be built without {extra}: its "
            f"options are {OPTIONS[name]}, and where a `vocabulary` is given, "
            f"{sorted(_COUNTED)} are left out. Received: "
            + ", ".join(f"{key}={options[key]!r:.40}" for key in extra)
        )
    check_kind(corpus, name == "ids")
    return _BUILDERS[name](corpus, section_map, **options)


def check_kind(corpus, takes_ids):
    """Checks that a tokenizer takes what a corpus has: text, or token ids."""
    has_ids = corpus.encoding == "ids"
    if takes_ids != has_ids:
        needed = "must be" if has_ids else "must not be"
        kind = "token ids (.npy or .npz)" if has_ids else "text"
        raise ValueError(
            f"`tokenizer` {needed} ids for a corpus of {kind}. "
            f"Received: corpus={corpus.name}"
        )


def _build_characters(corpus, section_map, drop_newlines=False):
    options = {"encoding": corpus.encoding, "drop_newlines": drop_newlines}
    count = functools.partial(_count, count_symbols, **options)
    counts = add_up(_map(count, corpus, corpus.splits, section_map))
    return CharacterTokenizer.from_counts(counts, **options)


def _build_words(corpus, section_map, vocabulary=None, **options):
    options = {key: None if v == "" else v for key, v in options.items()}
    if vocabulary is not None:
        return WordTokenizer(vocabulary, **options)
    _check_train(corpus)
    num_kept = options.get("vocabulary_size")
    if num_kept is not None:
        num_kept += 2  # `line_end` and `line_start` may be among the words
    count = functools.partial(
        _count, count_words, lower_case=options.get("lower_case", False)
    )
    counts = _map(count, corpus, ("train",), section_map)
    counts = add_up(counts, options.get("min_count", 1), num_kept)
    return WordTokenizer.from_counts(counts, **options)


def add_up(counters, min_count=1, num_kept=None):
    """Adds up `Counter`s of strings, in the order of their first occurrence."""
    # More than `MAX_STRINGS` are counted on disk. Only then, rare ones and all
    # but the `num_kept` most frequent ones are left out.
    total, is_on_disk = collections.Counter(), False
    # Without a name, a temporary file.
    with contextlib.closing(sqlite3.connect("")) as database:
        database.execute("CREATE TABLE words (word TEXT UNIQUE, count INTEGER)")
        for counts in counters:
            total.update(counts)
            if len(total) > MAX_STRINGS:
                database.executemany(_ADD, total.items())
                total.clear()
                is_on_disk = True
        if not is_on_disk:
            return total
        database.executemany(_ADD, total.items())
        limit = -1 if num_kept is None else num_kept
        chosen = database.execute(_CHOOSE, (min_count, limit))
        return collections.Counter(dict(chosen))


def _count(function, blocks, **options):
    counts = collections.Counter()
    for block in blocks:
        counts.update(function(block.text, **options))
    return counts


def _map(function, corpus, splits, section_map, threads=False):
    """Yields `function(blocks)` of each block, or of each section."""
    if section_map is not None:
        texts = map(corpus.text, splits)
        sections = [x for text in texts for x in text.sections()]
        function = functools.partial(_of_section, function)
        yield from section_map(function, sections)
        return
    for split in splits:
        yield from map_blocks(
            lambda block: function([block]), corpus, split, "Counting", threads
        )


def _of_section(function, section):
    return function(section.blocks())


def _build_sentence_piece(corpus, section_map, vocabulary=None, **options):
    if vocabulary is not None:
        return SentencePieceTokenizer.from_file(vocabulary, **options)
    if options.get("line_end") is not None:
        raise ValueError(
            "`line_end` must be left out for sentencepiece without a "
            "`vocabulary`: the model that is trained here encodes newlines. "
            f"Received: line_end={shown(options['line_end'])}"
        )
    _check_train(corpus)
    if section_map is None:
        texts = map_blocks(
            lambda block: block.text, corpus, "train", "Reading", threads=True
        )
        options["max_characters"] = MAX_CHARACTERS
    else:
        texts = _sample_with(section_map, corpus)
        options["max_characters"] = sys.maxsize  # they are a sample already
    return SentencePieceTokenizer.train(texts, **options)


def _load(kind, file, corpus, section_map, vocabulary=None, **options):
    if vocabulary is None:
        raise ValueError(
            f"`vocabulary` must be {file}; sentencepiece learns subwords. "
            "Received: vocabulary=None"
        )
    return kind.from_file(vocabulary, **options)


def _check_train(corpus):
    if "train" not in corpus.splits:
        raise ValueError(
            "`corpus` must have a train split to build a vocabulary from: "
            "load it without whole=True, or give `vocabulary`. "
            f"Received: corpus={corpus.name}, with {list(corpus.splits)}"
        )


def _sample_with(section_map, corpus):
    """Yields the sample that `sample_sentences` draws, from all workers."""
    sections = corpus.text("train").sections()
    sizes = list(section_map(_size_of, sections))
    firsts = itertools.accumulate((size[0] for size in sizes), initial=0)
    draw = functools.partial(_drawn_text, sum(size[1] for size in sizes))
    items = [*zip(sections, firsts, strict=False)]
    yield from section_map(draw, items)


def _size_of(section):
    """Returns the numbers of sentences and of their characters."""
    number = characters = 0
    for block in section.blocks():
        sentences = sentences_of(block.text)
        number += len(sentences)
        characters += sum(map(len, sentences))
    return number, characters


def _drawn_text(total, numbered_section):
    section, first = numbered_section
    kept = []
    for block in section.blocks():
        sentences = sentences_of(block.text)
        drawn = draw_sentences(sentences, first, MAX_CHARACTERS, total)
        kept += [sentence for _, sentence in drawn]
        first += len(sentences)
    return "\n".join(kept)


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


def _largest_id(blocks):
    ids = (ids for block in blocks for ids in block.pieces)
    return max((int(part.max(initial=0)) for part in ids), default=0)


_BUILDERS = {
    "bytes": lambda corpus, section_map, **options: ByteTokenizer(**options),
    "characters": _build_characters,
    "words": _build_words,
    "sentencepiece": _build_sentence_piece,
    "wordpiece": functools.partial(
        _load,
        WordPieceTokenizer,
        "the file of an existing vocabulary for wordpiece, such as the "
        "vocab.txt of BERT",
    ),
    "hugging_face": functools.partial(
        _load, HuggingFaceTokenizer, "a tokenizer.json for hugging_face"
    ),
    "ids": _build_ids,
}


def save_tokenizer(tokenizer: Tokenizer, path: PathLike) -> None:
    """Writes a tokenizer to a JSON file.

    Args:
        tokenizer: A tokenizer.
        path: String or `pathlib.Path`, local or `gs://`.
    """
    content = serialize_tokenizer(tokenizer)
    text = json.dumps(content, ensure_ascii=False, indent=1) + "\n"
    write_text(text, os.fspath(path))


def load_tokenizer(path: PathLike) -> Tokenizer:
    """Loads a tokenizer from a file that `save_tokenizer` wrote.

    Args:
        path: String or `pathlib.Path`, local or `gs://`.

    Returns:
        A tokenizer.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is not a complete tokenizer file, or has another
            version.
    """
    path = os.fspath(path)
    return deserialize_tokenizer(read_json(path, max_bytes=_MAX_BYTES), path)


def serialize_tokenizer(tokenizer):
    """Returns the class and the config of a tokenizer, for JSON."""
    return {
        "class_name": type(tokenizer).__name__,
        "config": tokenizer.get_config(),
    }


def deserialize_tokenizer(content, source):
    """Creates a tokenizer of this package; `source` names it in errors."""
    kinds = {"class_name": "a string", "config": "an object"}
    check_fields(content, kinds, source)
    class_name = content["class_name"]
    if class_name not in _TOKENIZERS:
        raise ValueError(
            f"{source} has an unknown tokenizer: `class_name` must be one of "
            f"{sorted(_TOKENIZERS)}. Received: {shown(class_name)}"
        )
    try:
        return _TOKENIZERS[class_name].from_config(content["config"])
    except (KeyError, TypeError, ValueError, tf.errors.OpError) as error:
        reason = f"{type(error).__name__}: {error}"[:300]
        raise ValueError(
            f"{source}: `config` does not describe a {class_name}: {reason}"
        ) from error


_TOKENIZERS = {
    tokenizer.__name__: tokenizer
    for tokenizer in (
        ByteTokenizer,
        CharacterTokenizer,
        IdTokenizer,
        WordTokenizer,
        SentencePieceTokenizer,
        WordPieceTokenizer,
        HuggingFaceTokenizer,
    )
}
