"""Splits a text into train, valid and test, by group or by position."""

import collections
import hashlib
import itertools

from txl_keras.data.corpora import files

HELD_OUT_FRACTION = 0.05  # of the bytes, in each of valid and test


def split_groups(sizes, fraction=HELD_OUT_FRACTION):
    """Assigns whole groups of documents to splits, by hashes of their names."""
    # Documents that resemble each other, such as the modules of a package,
    # share a group, so that no test text is nearly the same as a training text.
    # Only groups of at most half the size of a held-out split are held out, so
    # that it is a mixture, or the two smallest groups if there are no others.
    total = sum(sizes.values())
    ordered = sorted(sizes, key=name_hash)
    candidates = [n for n in ordered if sizes[n] <= fraction * total / 2]
    if len(candidates) < 2:
        candidates = sorted(ordered, key=sizes.get)[:2]
    target = min(fraction * total, sum(map(sizes.get, candidates)) / 2)
    test = _take(candidates[:-1], sizes, target)  # leaves one for valid
    valid = _take(candidates[len(test) :], sizes, target)
    held_out = {*test, *valid}
    train = [name for name in ordered if name not in held_out]
    return {"train": train, "valid": valid, "test": test}


def _take(names, sizes, target):
    """Returns the first of `names` that together reach `target` bytes."""
    taken = itertools.accumulate(map(sizes.get, names), initial=0)
    return [
        name for name, size in zip(names, taken, strict=False) if size < target
    ]


def held_out_places(size):
    """Returns where valid and test of a text begin, before it is cut."""
    return [int(size * (1 - part * HELD_OUT_FRACTION)) for part in (2, 1)]


def split_file(path, delimiter=None):
    """Returns where train, valid and test of a text file end, in bytes."""
    # Each cut is at the next line end, or at the next character if a line end
    # is more than half a split away; with a `delimiter`, only directly after
    # it.
    size = files.text_size(path)
    places = held_out_places(size)
    first = _cut(path, places[0], places[1], size, delimiter)
    second = _cut(path, max(first, places[1]), size, size, delimiter)
    return [first, second, size]


def cuts(path, start, stop, size, delimiter=None):
    """Returns where pieces of `[start, stop)` begin, except `start` itself."""
    found = [start]
    for place in range(start + size, stop - size // 2, size):
        end = min(place + size, stop)
        found.append(max(found[-1], _cut(path, place, end, stop, delimiter)))
    return sorted({*found} - {start, stop})


def _cut(path, place, end, size, delimiter):
    """Returns the first byte from `place` on where a split may begin."""
    if delimiter is None:
        found = _find(path, place, (place + end) // 2, b"\n")
        return _next_character(path, place) if found is None else found
    found = _find(path, place, None, delimiter)
    return size if found is None else found


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
    # Bytes 10xxxxxx continue a character.
    following = b"".join(files.read_bytes(path, start, start + 4))
    continued = itertools.takewhile(lambda byte: byte & 0xC0 == 0x80, following)
    return start + len(list(continued))


def drop_duplicates(sizes, read):
    """Keeps the first of several files with the same content."""
    # Otherwise a text could be both in train and in test.
    same_size = collections.Counter(sizes.values())
    kept, seen = {}, set()
    for name, size in sizes.items():
        if same_size[size] > 1:
            digest = files.digest_of(read(name))
            if digest in seen:
                continue
            seen.add(digest)
        kept[name] = size
    return kept


def name_hash(name):
    """Returns a sort key that gives a pseudo-random, reproducible order."""
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
