"""Corpora: text in three splits, found by name or by path.

- `python_stdlib`: the standard library's own source code, no download.
- `enwik8`, `text8`: from a file in `data_dir`.
- anything else is the path of a text file or a folder of the user's own.
"""

import pathlib

from txl_keras.data.corpora import enwik8
from txl_keras.data.corpora import python_stdlib
from txl_keras.data.corpora import text8
from txl_keras.data.corpora import text_files
from txl_keras.data.corpora.corpus import Corpus

__all__ = ["CORPORA", "Corpus", "load_corpus"]

# A new corpus is a file in this folder and a line here.
CORPORA = {
    "python_stdlib": lambda data_dir: python_stdlib.load(),
    "enwik8": enwik8.load,
    "text8": text8.load,
}


def load_corpus(name, data_dir=None):
    """Loads a corpus by its name, or text of your own by its path.

    Args:
        name: String. `"python_stdlib"`, `"enwik8"`, `"text8"`, or the path of
            a text file or folder. A known name wins over a path: write
            `./enwik8` for a folder of that name.
        data_dir: Optional string. The folder with the files of `enwik8` and
            `text8`.

    Returns:
        A `Corpus`.

    Raises:
        FileNotFoundError: If the name is neither known nor a path, or if
            `data_dir` does not have the file.
        ValueError: If `data_dir` is missing, or if the text is damaged, empty,
            too small or not in UTF-8.

    Example:

    >>> corpus = load_corpus("python_stdlib")
    >>> sorted(corpus.splits)
    ['test', 'train', 'valid']
    """
    if name in CORPORA:
        return CORPORA[name](data_dir)
    path = pathlib.Path(name or "").expanduser()
    if not name or not path.exists():
        raise FileNotFoundError(
            f"`name` must be one of {', '.join(CORPORA)}, or the path of a "
            "text file or folder; no such path was found. "
            f"Received: name={str(name)!r}"
        )
    return text_files.load(path)
