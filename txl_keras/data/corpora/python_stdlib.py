"""python_stdlib: the source code of the running Python's standard library.

This is real text that is available on every machine without a download. It
depends on the Python version: compare only results of the same version.
"""

import collections
import contextlib
import os
import pathlib
import sysconfig

from txl_keras.data.corpora.corpus import Corpus
from txl_keras.data.corpora.splitting import name_hash
from txl_keras.data.corpora.splitting import split_groups

# Fraction of all bytes in each of valid and test: about 300 KB, which a laptop
# scores in half a minute.
_HELD_OUT_FRACTION = 0.025

# Tests contain much copied data; site-packages is not the standard library.
_SKIPPED_FOLDERS = {
    "__pycache__",
    "dist-packages",
    "idle_test",
    "site-packages",
    "test",
    "tests",
}
# Generated when Python was built; contain paths of the build machine.
_SKIPPED_PREFIXES = ("config-", "_sysconfigdata")


def load(stdlib=None):
    """Loads the standard library's `.py` files without tests, about 11 MB."""
    # Each package or top-level module is in one split only, because files of
    # one package resemble each other. Files are ordered by the hash of their
    # path, so that every batch row gets a similar mixture of packages. Sorted
    # by path, some rows would contain only `encodings`.
    stdlib = pathlib.Path(stdlib or sysconfig.get_path("stdlib"))
    documents = read_documents(stdlib)
    sizes = collections.Counter()
    for path, text in documents.items():
        sizes[group_name(path)] += len(text)
    splits = {}
    for split, groups in split_groups(sizes, _HELD_OUT_FRACTION).items():
        paths = [path for path in documents if group_name(path) in groups]
        texts = [documents[path] for path in sorted(paths, key=name_hash)]
        splits[split] = [text.removesuffix(b"\n") + b"\n" for text in texts]
    return Corpus("python_stdlib", splits)


def read_documents(stdlib):
    """Returns a dict of relative path to `bytes`, without duplicates."""
    paths = []
    for folder, subfolders, names in os.walk(stdlib):
        subfolders[:] = [name for name in subfolders if not _is_skipped(name)]
        modules = {n for n in names if n.endswith(".py") and not _is_skipped(n)}
        place = pathlib.Path(folder).relative_to(stdlib)
        paths += [(place / name).as_posix() for name in modules]
    first_paths = {}
    for path in sorted(paths):
        text = (stdlib / path).read_bytes()
        with contextlib.suppress(UnicodeDecodeError):
            if text.decode("utf-8"):
                first_paths.setdefault(text, path)
    return {path: text for text, path in first_paths.items()}


def group_name(path):
    """Returns the package or module of a path: `json/decoder.py` to `json`."""
    return path.split("/")[0].removesuffix(".py")


def _is_skipped(name):
    return name in _SKIPPED_FOLDERS or name.startswith(_SKIPPED_PREFIXES)
