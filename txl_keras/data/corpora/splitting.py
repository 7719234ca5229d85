"""Splits a text into train, valid and test, by name, group or position."""

import hashlib
import itertools
import math
import os
import re

from txl_keras import gfile
from txl_keras.data.corpora import files
from txl_keras.data.corpora.corpus import SPLITS

HELD_OUT_FRACTION = 0.05  # of the bytes, for each of valid and test
_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("valid", "validation", "val", "dev"), "valid"),
    **dict.fromkeys(("test", "testing"), "test"),
}
# Names of other files, such as code, do not count.
_DATA = (
    "", ".txt", ".tokens", ".raw", ".jsonl", ".ndjson", ".npy", ".npz", ".tsv",
    ".csv", ".md", ".html", ".xml", ".json", ".tex",
)  # fmt: skip


def split_by_name(folder, names):
    """Returns a dict of split to names, or None if no name means a split."""
    # docs/data.md has the rules. `names` are paths in the folder.
    found = {
        name: splits_in(name)
        for name in names
        if os.path.splitext(name.lower().removesuffix(".gz"))[1] in _DATA
    }
    named = {name for name, splits in found.items() if splits}
    splits = set().union(*found.values())
    if not named or len(splits) == 1 and len(named) == len(found):
        return None
    if splits != {*SPLITS} or any(len(found[name]) > 1 for name in named):
        others = listed({*names} - named)
        raise ValueError(
            f"{folder} must have files or folders for all of train, valid and "
            "test, or for none of them, by the words in their names: rename or "
            "remove others, or pass a pattern of the files to read, such as "
            f"{os.path.join(folder, 'train*')}, whose last files are held out. "
            f"Received: {listed(named)} beside {others}"
        )
    return {
        split: [name for name in found if split in found[name]]
        for split in SPLITS
    }


def splits_in(path):
    """Returns the splits that whole words in a path name."""
    words = re.split(r"[\W_]+", re.sub("(?<=[a-z])(?=[A-Z])", "_", path))
    return {_WORDS[x] for x in map(str.lower, words) if x in _WORDS}


def listed(names):
    """Formats the first of some names for a message."""
    names = sorted(names)
    more = [f"{len(names) - 3} more"] if len(names) > 3 else []
    *first, last = [*names[:3], *more] or ["none"]
    return f"{', '.join(first)} and {last}" if first else last


def split_groups(sizes, fraction=HELD_OUT_FRACTION):
    """Assigns whole groups of documents to splits, by hashes of their names."""
    # Documents that resemble each other, such as the modules of a package,
    # share a group, so that no test text is nearly the same as a training text.
    # A held-out split should be a mixture, so its groups have at most half its
    # size. If these do not suffice, two larger ones are added, and if they do
    # not reach half of it, of any size.
    size = fraction * sum(sizes.values())
    ordered = sorted(sizes, key=name_hash)
    candidates = [n for n in ordered if sizes[n] <= size / 2]
    small = sum(map(sizes.get, candidates))
    if small < size:
        limit = 2 * size if small >= size / 2 else math.inf
        larger = [n for n in ordered if size / 2 < sizes[n] <= limit]
        larger.sort(key=sizes.get)
        candidates += larger[:-1][:2]  # leaves one for train
        candidates.sort(key=name_hash)
    if len(candidates) < 2:
        candidates = sorted(ordered, key=sizes.get)[:2]
    target = min(size, sum(map(sizes.get, candidates)) / 2)
    test = _take(candidates[:-1], sizes, target)  # leaves one for valid
    valid = _take(candidates[len(test) :], sizes, target)
    held_out = {*test, *valid}
    train = [name for name in ordered if name not in held_out]
    return {"train": train, "valid": valid, "test": test}


def fits(sizes):
    """Returns whether valid and test are no tiny and no large part."""
    least = HELD_OUT_FRACTION / 2 * sum(sizes.values())
    return all(least <= sizes[x] <= 4 * least for x in ("valid", "test"))


def _take(names, sizes, target):
    """Returns the first of `names` that together reach `target` bytes."""
    taken = itertools.accumulate(map(sizes.get, names), initial=0)
    return [
        name for name, size in zip(names, taken, strict=False) if size < target
    ]


def name_hash(name):
    """Returns a sort key that gives a pseudo-random, reproducible order."""
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()


def held_out_places(size):
    """Returns where valid and test of a text begin, before it is cut."""
    return [int(size * (1 - part * HELD_OUT_FRACTION)) for part in (2, 1)]


def split_file(path, delimiter=None):
    """Returns where train, valid and test of a text file end, in bytes."""
    # Each cut is after the next line end, or at the next character if a line is
    # longer than half a split. With a `delimiter`, it is directly after one.
    if path.lower().endswith(".gz"):
        size = sum(map(len, files.read_bytes(path)))
    else:
        size = gfile.stat(path).length
    ends = [0]
    for place in held_out_places(size):
        start = max(ends[-1], place)
        if delimiter:
            end = _find(path, start, None, delimiter) or size
        else:
            stop = start + int(size * HELD_OUT_FRACTION / 2)
            end = _find(path, start, stop, b"\n")
            end = _next_character(path, start) if end is None else end
        ends.append(end)
    return [*ends[1:], size]


def _find(path, start, stop, delimiter):
    """Returns the end of the first delimiter from `start` on, or None."""
    rest, end = b"", start
    for chunk in files.read_bytes(path, start, stop):
        rest = rest[max(0, len(rest) - len(delimiter) + 1) :] + chunk
        end += len(chunk)
        if delimiter in rest:
            return end - len(rest) + rest.find(delimiter) + len(delimiter)
    return None


def _next_character(path, start):
    following = b"".join(files.read_bytes(path, start, start + 4))
    # Bytes 10xxxxxx continue a character.
    rest = following.lstrip(bytes(range(0x80, 0xC0)))
    return start + len(following) - len(rest)
