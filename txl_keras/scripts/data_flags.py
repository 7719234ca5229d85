"""Flags for text and tokenizers, and functions that load them."""

import os
import pathlib
import sys
from typing import NamedTuple

import tensorflow as tf

from txl_keras.checkpoints.vocabularies import load_vocabulary
from txl_keras.data.corpora import files
from txl_keras.data.corpora import loading as corpora
from txl_keras.data.preparation import prepare
from txl_keras.data.preparation import prepare_tokenizer
from txl_keras.data.preparation import token_folder
from txl_keras.data.tokenizers import building
from txl_keras.scripts import options
from txl_keras.scripts.options import FLAGS


class Corpus(options.Options, corpora=", ".join(corpora.CORPORA)):
    r"""Holds options that locate the text; they may change when a run resumes.

    Data options:
    corpus: Text to read: {corpora}, tfds:NAME, or the path of a text file, a
        folder or a file pattern; .npy or .npz files with --tokenizer=ids.
        Default for commands that read a finished run: the text of the run.
    data_dir: Folder for downloaded texts and prepared token ids. Default:
        TFDS_DATA_DIR, or ~/tensorflow_datasets.
    manual_dir: Folder that already holds the published files of a corpus.
        Default: data_dir.
    document_separator: Text that separates the documents of a file; \n is a
        newline. Default: a file is one document.
    text_key: Name of the text field in JSON lines and in tfds: examples.
        Default: text.
    """

    corpus: str = None
    data_dir: str = None
    manual_dir: str = None
    document_separator: str = None
    text_key: str = None


class Tokenizer(options.Options, free=("vocabulary",)):
    """Holds options that define the tokens.

    Tokenizer options:
    tokenizer: Kind of tokens. Default: sentencepiece, whose subwords are
        learned from the train split; bytes for enwik8 and text8; ids for .npy
        and .npz files of token ids.
    drop_newlines: Remove newlines from the text before it is split into
        characters, as the original code does for enwik8. Scores then refer to
        the text without newlines. Default: no.
    vocabulary_size: Size of the vocabulary. words: most words to keep (default:
        all). sentencepiece: subwords to learn (default: depends on the size of
        the text). ids: largest id plus one (default: found in the corpus).
    min_count: Least count in the train split of a word in the vocabulary; rarer
        words become unknown. Default: keep all words.
    unknown: Token for unknown words; empty for none. Default: <unk>.
    line_start: Token that is put before each line. Default: none.
    line_end: Token that stands for the end of each line; empty for none.
        Default: <eos>.
    vocabulary: File with the words of the vocabulary, or a subword model, such
        as a tokenizer.json of Hugging Face for --tokenizer=hugging_face.
        Default: the vocabulary is built from the train split.
    """

    tokenizer: options.one_of(building.BUILDERS) = None
    drop_newlines: bool = None
    vocabulary_size: int = None
    min_count: int = None
    unknown: str = None
    line_start: str = None
    line_end: str = None
    vocabulary: options.path = None


def corpus_options(defaults=None, names=None):
    """Returns the arguments of `load_corpus`, with absolute paths."""
    # A flag that is not given takes its value from `defaults`: the result of an
    # earlier call, such as the one in a run's config.json. These values are
    # printed, because another person may have written the file. A flag that is
    # not in `names` always takes its value from `defaults`.
    found, taken = dict.fromkeys(Corpus.names()), {}
    for name in found:
        if names is None or name in names:
            found[name] = FLAGS[name].value
            # Empty if a shell variable is unset, for example.
            expected = f"`{name}` must not be empty."
            options.refuse(found[name] == "", expected)
        default = (defaults or {}).get(name)
        if found[name] is None and default is not None:
            found[name] = taken[name] = default
    # Published texts have documents of their own.
    if "document_separator" in taken and not corpora.is_own(
        found["corpus"] or ""
    ):
        found["document_separator"] = None
        del taken["document_separator"]
    folder = taken.get("data_dir")
    if folder and not tf.io.gfile.isdir(token_folder(folder)):
        raise ValueError(
            "`data_dir` must be given: no text was prepared in the folder that "
            "config.json names, and this command only writes to a folder that "
            f"--data_dir names. Received: data_dir={folder} in config.json"
        )
    if taken:
        named = " ".join(f"--{name}={value}" for name, value in taken.items())
        print(f"From config.json: {named}", file=sys.stderr, flush=True)
    options.refuse(
        found["corpus"] is None,
        "`corpus` must be given, because the model was not trained here and "
        "has no text.",
    )
    found["corpus"] = corpora.corpus_path(found["corpus"])
    for name in ("data_dir", "manual_dir"):
        if found[name] is not None:
            found[name] = files.absolute_path(found[name])
    return found


def check_run_text(split, expected, corpus, run, remedy="Bring it back"):
    """Checks that a `PreparedSplit` still has the fingerprint `expected`."""
    received = split.fingerprint()
    if received != expected:
        raise ValueError(
            f"The {split.metadata['split']} split of {corpus.name} is not what "
            f"it was when the run {run} began: the text was changed (for "
            "python_stdlib: Python was updated), or the run had another text. "
            f"{remedy}. Expected: {expected}. Received: {received}"
        )


def load_corpus(options, whole=False):
    """Loads the corpus of `corpus_options`, in splits or as one text."""
    separator = options["document_separator"]
    if separator is not None:
        for escaped, character in ((r"\n", "\n"), (r"\r", "\r"), (r"\t", "\t")):
            separator = separator.replace(escaped, character)
    options = {**options, "document_separator": separator, "whole": whole}
    return corpora.load_corpus(options.pop("corpus"), **options)


class Text(NamedTuple):
    """Holds the text that the flags describe."""

    corpus: object
    tokenizer: object
    splits: dict  # `PreparedSplit`s by name


def prepare_text(tokenizer=None, section_map=None, sample_bytes=None):
    """Returns the `Text` of the flags, by default with their tokenizer."""
    options = corpus_options()
    folder = token_folder(options["data_dir"])
    check_outside_text("data_dir", folder)
    corpus = load_corpus(options)
    if corpus.description:
        print(f"{corpus.name}: {corpus.description}", flush=True)
    tokenizer = tokenizer or make_tokenizer(
        corpus, folder, section_map, sample_bytes
    )
    splits = prepare(corpus, tokenizer, folder, section_map=section_map)
    _check_tokens(corpus, splits)
    return Text(corpus, tokenizer, splits)


def prepare_split(options, tokenizer, split, whole=False):
    """Returns the corpus of `corpus_options` and one `PreparedSplit` of it."""
    corpus = load_corpus(options, whole)
    folder = token_folder(options["data_dir"])
    splits = prepare(corpus, tokenizer, folder, [split])
    _check_tokens(corpus, splits)
    return corpus, splits[split]


def _check_tokens(corpus, splits):
    for name, split in splits.items():
        if len(split.tokens) < 2:
            raise ValueError(
                f"{corpus.name} must have at least 2 tokens in {name}: the "
                "first has no score. Put more text in it. Received: "
                f"{len(split.tokens)}"
            )


def check_outside_text(name, folder):
    """Checks that the output folder of flag `name` is outside of the text."""
    text = corpus_options()["corpus"]
    if not (files.is_remote(text) or os.path.isabs(text)):
        return  # the name of a corpus
    output, source = (
        pathlib.PurePath(x if files.is_remote(x) else os.path.realpath(x))
        for x in map(files.absolute_path, (folder, text))
    )
    # Patterns match the files of one folder, without its subfolders.
    is_inside = "*" in text and output == source.parent
    options.refuse(
        is_inside or tf.io.gfile.isdir(text) and output.is_relative_to(source),
        f"`{name}` must not be in the folder of the text --corpus, because the "
        f"files written to {folder} would be read as text.",
    )


def check_writable(name, path):
    """Makes the folder of the file of flag `name` and checks it is writable."""
    options.refuse(
        tf.io.gfile.isdir(path),
        f"`{name}` must be a file, and {path} is a folder.",
    )
    folder = os.path.dirname(path) or "."
    files.check_can_write(name, folder)
    tf.io.gfile.makedirs(folder)


def make_tokenizer(corpus, folder, section_map=None, sample_bytes=None):
    """Builds the tokenizer that the flags name, or reads it from `folder`."""
    given = Tokenizer.values()
    path = given["vocabulary"]
    # Published scores of a latin-1 text are scores of its bytes.
    names = {"ids": "ids", "latin-1": "bytes", "utf-8": "sentencepiece"}
    name = given.pop("tokenizer") or names[corpus.encoding]
    if sample_bytes and name == "sentencepiece":
        given["sample_bytes"] = sample_bytes
    if path is not None:
        options.refuse(
            FLAGS.tokenizer is None,
            "`tokenizer` must be given with `vocabulary`: it is the kind of "
            "tokens in the file, such as words.",
        )
        try:
            if name == "words":
                given["vocabulary"] = load_vocabulary(path)
            return building.build_tokenizer(name, corpus, **given)
        except (OSError, ValueError) as error:
            raise ValueError(f"`vocabulary` {path}: {error}") from error
    return prepare_tokenizer(name, corpus, folder, section_map, **given)
