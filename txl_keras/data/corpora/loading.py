"""`load_corpus`, which loads any corpus by its name or path."""

import os

from txl_keras import gfile
from txl_keras.data.corpora import published
from txl_keras.data.corpora import python_stdlib
from txl_keras.data.corpora import text_files
from txl_keras.data.corpora.corpus import Corpus
from txl_keras.data.corpora.files import absolute_path
from txl_keras.data.corpora.files import is_remote

CORPORA = ("python_stdlib", *published.PUBLISHED)
TFDS_PREFIX = "tfds:"


def load_corpus(
    name: str,
    data_dir: str | None = None,
    manual_dir: str | None = None,
    document_separator: str | None = None,
    text_key: str | None = None,
    whole: bool = False,
) -> Corpus:
    """Loads a corpus by its name, or your own text by its path.

    Args:
        name: String. One of `CORPORA`, `"tfds:NAME"`, or the path of a file or
            folder or a pattern such as `books/*.txt`, local or `gs://`. Names
            of corpora take precedence over paths: write `./enwik8` for a folder
            of that name.
        data_dir: Optional string. The folder for downloaded and prepared data.
            Default: the folder of TensorFlow Datasets.
        manual_dir: Optional string. The folder of published files that are
            already present. Default: `data_dir`.
        document_separator: Optional string between the documents of your own
            text.
        text_key: Optional string. The key of the text in JSON lines and in
            `tfds:` examples. Default: `"text"`.
        whole: Boolean. True: loads your own text as one split, `"all"`.

    Returns:
        A `Corpus`.

    Raises:
        FileNotFoundError: If the name is neither a known corpus nor a path.
        OSError: If data is neither found nor can be downloaded.
        ValueError: If the text is damaged, empty or too small, or `whole` or
            `document_separator` is used with a published corpus.

    Example:

    >>> corpus = load_corpus("python_stdlib")
    >>> sorted(corpus.splits)
    ['test', 'train', 'valid']
    """
    name = os.fspath(name)
    if (whole or document_separator is not None) and not is_own(name):
        raise ValueError(
            "The split `all` and `document_separator` need the path of your "
            "own text: published corpora have splits and documents. Received: "
            f"corpus={name!r}"
        )
    if name == "python_stdlib":
        return python_stdlib.load()
    if name in CORPORA:
        return published.load(name, data_dir, manual_dir)
    if name.startswith(TFDS_PREFIX) and name != TFDS_PREFIX:
        # Imported here, because TensorFlow Datasets may not be installed.
        from txl_keras.data.corpora import tfds_text

        return tfds_text.load(
            name.removeprefix(TFDS_PREFIX), data_dir, manual_dir, text_key
        )
    path = name and corpus_path(name)
    try:
        return text_files.load(
            path, document_separator, text_key or "text", whole
        )
    except gfile.errors() as error:
        is_missing = isinstance(error, FileNotFoundError)
        raise (FileNotFoundError if is_missing else OSError)(
            f"`corpus` must be one of {', '.join(CORPORA)}, tfds:NAME, or the "
            "path of a text file or folder that can be read, without broken "
            f"links. Received: corpus={name!r} ({error})"
        ) from error


def is_own(name):
    """Returns whether a text is your own, and not published."""
    return name not in CORPORA and not name.startswith(TFDS_PREFIX)


def corpus_path(name):
    """Returns the absolute path of your own text, or a corpus's name."""
    if not is_own(name) or is_remote(name):
        return name
    return absolute_path(name)
