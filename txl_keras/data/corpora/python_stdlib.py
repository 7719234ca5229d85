"""python_stdlib: the source code of the running Python's standard library.

Real text on every machine, with nothing to download. Which text it is depends
on the Python version: compare results of one version only.
"""

import os
import pathlib
import sysconfig

from txl_keras.data.corpora.corpus import Corpus
from txl_keras.data.corpora.splitting import name_hash
from txl_keras.data.corpora.splitting import split_groups

MIN_BYTES = 1_000_000
# Of the bytes, in each of valid and test: about 300 KB, which a laptop scores
# in half a minute.
_HELD_OUT_FRACTION = 0.025

# Tests are full of copied data, site-packages is not the standard library.
_SKIPPED_FOLDERS = {
    "__pycache__",
    "dist-packages",
    "idle_test",
    "site-packages",
    "test",
    "tests",
}
# Written when Python was built: the paths of one machine.
_SKIPPED_PREFIXES = ("config-", "_sysconfigdata")


def load(stdlib=None):
    """Reads the `.py` files of the standard library, without its tests.

    A package or a top-level module stays whole in one split, since files of
    one package repeat each other. A file that occurs twice is kept once.
    Within a split, files go by the hash of their path: each row of a batch
    then gets the same mixture of packages, where the order of paths would fill
    some rows with `encodings` alone.

    Args:
        stdlib: Optional string, the folder. Defaults to that of this Python.

    Returns:
        A `Corpus`, of about 11 MB.

    Raises:
        ValueError: If there is less than 1 MB of source.
    """
    stdlib = pathlib.Path(stdlib or sysconfig.get_path("stdlib"))
    documents = read_documents(stdlib)
    sizes = {}
    for path, text in documents.items():
        group = group_name(path)
        sizes[group] = sizes.get(group, 0) + len(text)
    total = sum(sizes.values())
    if total < MIN_BYTES or len(sizes) < 3:
        raise ValueError(
            "The corpus 'python_stdlib' needs a Python with its library as "
            f".py files, of at least {MIN_BYTES:,} bytes. Train on a text of "
            f"your own with --corpus=PATH. Received: {total:,} bytes in "
            f"{stdlib}"
        )
    splits = {
        split: _select(documents, set(groups))
        for split, groups in split_groups(sizes, _HELD_OUT_FRACTION).items()
    }
    return Corpus("python_stdlib", splits)


def read_documents(stdlib):
    """Returns a dict of relative path to `bytes`, without duplicates."""
    first_paths = {}
    for path in sorted(_source_files(stdlib)):
        text = (stdlib / path).read_bytes()
        if text and _is_utf8(text):
            first_paths.setdefault(text, path)
    return {path: text for text, path in first_paths.items()}


def group_name(path):
    """`json/decoder.py` to `json`, `ast.py` to `ast`."""
    return path.split("/")[0].removesuffix(".py")


def _source_files(stdlib):
    for folder, subfolders, files in os.walk(stdlib):
        subfolders[:] = [name for name in subfolders if not _is_skipped(name)]
        relative = pathlib.Path(folder).relative_to(stdlib)
        for name in files:
            if name.endswith(".py") and not _is_skipped(name):
                yield (relative / name).as_posix()


def _is_skipped(name):
    return name in _SKIPPED_FOLDERS or name.startswith(_SKIPPED_PREFIXES)


def _is_utf8(text):
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _select(documents, groups):
    paths = [path for path in documents if group_name(path) in groups]
    texts = [documents[path] for path in sorted(paths, key=name_hash)]
    return [text if text.endswith(b"\n") else text + b"\n" for text in texts]
