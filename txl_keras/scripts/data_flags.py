"""Flags of text and tokenizers, and what they make."""

import os
import sys

import tensorflow as tf
from absl import flags

from txl_keras.checkpoints.vocabularies import load_vocabulary
from txl_keras.data import corpora
from txl_keras.data.corpora import CORPORA
from txl_keras.data.corpora import corpus_path
from txl_keras.data.corpora.files import write_text
from txl_keras.data.preparation import prepare
from txl_keras.data.preparation import prepare_tokenizer
from txl_keras.data.preparation import token_folder
from txl_keras.data.tokenizers import build_tokenizer
from txl_keras.data.tokenizers.building import OPTIONS

FLAGS = flags.FLAGS

# Where text lies, which may change when a run goes on.
CORPUS_FLAGS = (
    "corpus", "data_dir", "manual_dir", "document_separator", "text_key",
)  # fmt: skip
# What makes a token of it, which may not.
TOKENIZER_FLAGS = (
    "tokenizer", "drop_newlines", "vocabulary_size", "min_count", "lower_case",
    "unknown", "line_start", "line_end",
)  # fmt: skip


def define_corpus_flags(required=True):
    """Defines the flags of `CORPUS_FLAGS`.

    Args:
        required: Boolean. Whether a corpus must be given.
    """
    flags.DEFINE_string(
        "corpus", None,
        f"{', '.join(CORPORA)}, tfds:NAME, or a text file, folder or pattern.",
        required=required,
    )  # fmt: skip
    flags.DEFINE_string(
        "data_dir", None,
        "Folder for what is fetched and for ids. Default: "
        "TFDS_DATA_DIR, or ~/tensorflow_datasets.",
    )  # fmt: skip
    flags.DEFINE_string(
        "manual_dir", None,
        "Folder with published files already there. Default: data_dir.",
    )  # fmt: skip
    flags.DEFINE_string(
        "document_separator", None,
        r"What lies between the documents of a file; \n is a new line.",
    )  # fmt: skip
    flags.DEFINE_string(
        "text_key", None, "Name of the text in JSON lines and tfds: examples."
    )


def define_tokenizer_flags():
    """Defines the flags of `TOKENIZER_FLAGS`, and `--vocabulary`."""
    flags.DEFINE_enum(
        "tokenizer", "bytes", list(OPTIONS),
        "What a token is. bytes: any text. sentencepiece: the best for prose, "
        "with --vocabulary_size=8000, say.",
    )  # fmt: skip
    flags.DEFINE_bool(
        "drop_newlines", None,
        "Leave newlines out, as the original's enwik8 protocol does. Its bpc "
        "is then one of the text without them.",
    )  # fmt: skip
    flags.DEFINE_string(
        "vocabulary", None,
        "File of words or of a subword model. Default: made from train.",
    )  # fmt: skip
    flags.DEFINE_integer(
        "vocabulary_size", None, "How many words, or subwords, to keep."
    )
    flags.DEFINE_integer("min_count", None, "Rarer words are unknown.")
    flags.DEFINE_bool("lower_case", None, "Read text in lower case.")
    flags.DEFINE_string(
        "unknown", None, "For unknown words, or empty. Default: <unk>."
    )
    flags.DEFINE_string("line_start", None, "Before a line. Default: none.")
    flags.DEFINE_string(
        "line_end", None, "After a line, or empty. Default: <eos>."
    )


def corpus_options(defaults=None):
    """Where the text lies, for this script and for ones called elsewhere.

    Args:
        defaults: Optional dict, what an earlier call returned, for flags that
            are not given. A stranger may have written it: what is taken from
            it is printed.

    Returns:
        Dict of the arguments of `load_corpus`, paths absolute.

    Raises:
        ValueError: If a flag is empty, or no text was ever prepared in the
            `data_dir` of `defaults`, so that something would be written there.
    """
    options = {}
    for name in CORPUS_FLAGS:
        options[name] = FLAGS[name].value
        if options[name] == "":  # a shell's variable that is not set
            raise ValueError(f"`{name}` must not be empty. Received: --{name}=")
    if defaults:
        _fill_in(options, defaults)
    if options["corpus"] is not None:
        options["corpus"] = corpus_path(options["corpus"])
    for name in ("data_dir", "manual_dir"):
        if options[name] is not None and "://" not in options[name]:
            options[name] = os.path.abspath(os.path.expanduser(options[name]))
    return options


def _fill_in(options, defaults):
    """Takes what is not given from a configuration, and says so."""
    taken = {
        name: defaults[name]
        for name, value in options.items()
        if value is None and defaults.get(name) is not None
    }
    folder = taken.get("data_dir")
    if folder and not tf.io.gfile.isdir(token_folder(folder)):
        raise ValueError(
            "`data_dir` must be given, as config.json names a folder in which "
            "no text was prepared: nothing is written to it unless --data_dir "
            f"names it, too. Received: data_dir={folder} in config.json"
        )
    if taken:
        named = " ".join(f"--{name}={value}" for name, value in taken.items())
        print(f"From config.json: {named}", file=sys.stderr, flush=True)
    options |= taken


def load_corpus(options, whole=False):
    """Loads the corpus of `corpus_options`, in splits or whole."""
    separator = options["document_separator"]
    if separator is not None:
        separator = separator.replace(r"\n", "\n").replace(r"\t", "\t")
    return corpora.load_corpus(
        options["corpus"],
        options["data_dir"],
        options["manual_dir"],
        separator,
        options["text_key"],
        whole,
    )


def prepare_text(tokenizer=None):
    """Prepares the text that the flags name, by the tokenizer they name.

    Args:
        tokenizer: Optional tokenizer to take instead.

    Returns:
        The corpus, the tokenizer, and a dict of split to `PreparedSplit`.
    """
    options = corpus_options()
    folder = token_folder(options["data_dir"])
    check_outside_text("data_dir", folder)
    corpus = load_corpus(options)
    tokenizer = tokenizer or make_tokenizer(corpus, folder)
    return corpus, tokenizer, prepare(corpus, tokenizer, folder)


def check_outside_text(name, folder):
    """Raises ValueError for a folder in that of the text, to be written to.

    Args:
        name: String, the flag of the folder.
        folder: String.
    """
    text = corpus_options()["corpus"]
    if not (os.path.isabs(text) and os.path.isdir(text)):
        return
    text = os.path.realpath(text)
    folder = os.path.realpath(os.path.expanduser(folder))
    if os.path.commonpath([text, folder]) == text:
        raise ValueError(
            f"`{name}` must not be in the folder of the text, or what is "
            "written there would be read as text. Received: "
            f"{name}={folder}, corpus={text}"
        )


def check_writable(name, path):
    """Makes the folder of a file to write, before any work is lost.

    Args:
        name: String, the flag that names it.
        path: String.

    Raises:
        ValueError: If the file could not be written.
    """
    path = os.path.expanduser(path)
    try:
        tf.io.gfile.makedirs(os.path.dirname(path) or ".")
        write_text("", f"{path}.new")
        tf.io.gfile.remove(f"{path}.new")
    except tf.errors.OpError as error:
        raise ValueError(
            f"`{name}` must be a place that can be written to. Received: "
            f"--{name}={FLAGS[name].value} ({error.message})"
        ) from error


def make_tokenizer(corpus, folder):
    """Makes the tokenizer that the flags name, or finds it.

    Args:
        corpus: `Corpus`.
        folder: String, where it is kept: see `prepare_tokenizer`.

    Returns:
        The tokenizer.
    """
    options = {name: FLAGS[name].value for name in TOKENIZER_FLAGS}
    name = options.pop("tokenizer")
    vocabulary = FLAGS.vocabulary
    if vocabulary is not None:
        vocabulary = os.path.expanduser(vocabulary)
        exists = tf.io.gfile.exists(vocabulary)
        if not exists or tf.io.gfile.isdir(vocabulary):
            raise FileNotFoundError(
                "`vocabulary` must be a file. Received: "
                f"--vocabulary={FLAGS.vocabulary}"
            )
    if vocabulary and name != "words":
        # Nothing to be kept: the file may change under the same name.
        try:
            return build_tokenizer(
                name, corpus, vocabulary=vocabulary, **options
            )
        except ValueError as error:
            raise ValueError(
                f"`vocabulary` {FLAGS.vocabulary}: {error}"
            ) from error
    vocabulary = vocabulary and load_vocabulary(vocabulary)
    return prepare_tokenizer(
        name, corpus, folder, vocabulary=vocabulary, **options
    )
