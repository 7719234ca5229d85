"""Splits that files of a text have in their names, such as `my_train.txt`."""

import collections
import os
import re

from txl_keras.data.corpora.corpus import SPLITS

_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("valid", "validation", "val", "dev"), "valid"),
    **dict.fromkeys(("test", "testing"), "test"),
}
# What is data beside files that named splits are recognized in; and what may be
# a text, rather than code, where it is most of a folder.
_TABLES = (".tsv", ".csv")
_PROSE = ("", *_TABLES, ".md", ".rst", ".html", ".xml", ".json", ".tex")


def named_splits(folder, sizes, text_suffixes):
    """Returns a dict of split to paths, or None if no name means a split."""
    # docs/data.md has the rules. `sizes` are bytes by relative path;
    # `text_suffixes` are those of data, as is that with the most bytes.
    shared = os.path.commonpath([os.path.dirname(name) for name in sizes])
    paths = {name: name[len(shared) :].lstrip("/") for name in sizes}
    tops = {name: path.split("/")[0] for name, path in paths.items()}
    exact = {
        name: _splits_of(top.lower().split(".")) for name, top in tops.items()
    }
    if set().union(*exact.values()) == set(SPLITS):
        return _assign(folder, exact)
    kinds = collections.Counter()
    for name, size in sizes.items():
        kinds[_suffix(name)] += size
    main = max(kinds, key=kinds.get)
    data = {
        name: splits_in(path)
        for name, path in paths.items()
        if _suffix(name) in (main, *text_suffixes, *_TABLES)
    }
    named = [name for name, splits in data.items() if splits]
    others = [name for name in data if name not in named]
    splits = set().union(*data.values())
    if not others:
        # Files of a single split are divided as those without a name.
        return _assign(folder, data) if len(splits) > 1 else None
    at_top = set().union(*(splits_in(tops[name]) for name in named))
    are_most = 2 * _total(sizes, named) >= _total(sizes, data)
    is_meant = len(splits) > 1 and (
        len(at_top) > 1 or are_most or splits == set(SPLITS)
    )
    is_held_out = any(exact[name] & {"valid", "test"} for name in named)
    is_text = main in (*text_suffixes, *_PROSE)
    folders = [exact[name] for name, path in paths.items() if "/" in path]
    if is_text and (is_meant or is_held_out) or len(set().union(*folders)) > 1:
        raise _error(folder, f"{listed(named)} beside {listed(others)}")
    return None


def splits_in(path):
    """Returns the splits that whole words of a path name."""
    words = re.sub("(?<=[a-z])(?=[A-Z])", "_", path)
    return _splits_of(re.split(r"[\W_]+", words.lower()))


def _splits_of(words):
    return {_WORDS[word] for word in words if word in _WORDS}


def _suffix(name):
    return os.path.splitext(name.lower().removesuffix(".gz"))[1]


def _total(sizes, names):
    return sum(sizes[name] for name in names)


def _assign(folder, found):
    """Returns a dict of split to names, from the splits in each name."""
    several = [name for name, splits in found.items() if len(splits) > 1]
    if several:
        raise _error(folder, f"names of several splits in {listed(several)}")
    assigned = {
        split: [name for name, splits in found.items() if split in splits]
        for split in SPLITS
    }
    if not all(assigned.values()):
        named = [name for name, splits in found.items() if splits]
        raise _error(folder, f"only {listed(named)}")
    return assigned


def _error(folder, received):
    return ValueError(
        f"{folder} must have files or folders for all of train, valid and "
        "test, or for none, by the words in their names: rename or remove "
        "others, or pass a pattern of the files to read, such as "
        f"{os.path.join(folder, 'train*')}, whose last files are held out. "
        f"Received: {received}"
    )


def listed(names):
    """Returns the first of some names as words."""
    names = sorted(names)
    more = [f"{len(names) - 3} more"] if len(names) > 3 else []
    *first, last = [*names[:3], *more] or ["none"]
    return f"{', '.join(first)} and {last}" if first else last
