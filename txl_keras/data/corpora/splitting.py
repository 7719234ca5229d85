"""Ways to split a text in train, valid and test: by group, or by position."""

import collections
import hashlib
import itertools

from txl_keras.data.corpora.files import read_bytes
from txl_keras.data.corpora.files import text_size

HELD_OUT_FRACTION = 0.05  # of the bytes, in each of valid and test


def split_groups(sizes, fraction=HELD_OUT_FRACTION):
    """Assigns whole groups of documents to splits.

    Documents that resemble each other, such as the modules of a package, share
    a group, so a text is never tested on what it was nearly trained on. Groups
    go by the hash of their name, so the result depends on nothing else. Test
    takes groups until it has `fraction` of all bytes, then valid, and train
    gets the rest. Only groups of at most half that size are held out, or the
    two smallest where there are no others: a held-out split is a mixture, not
    one large document.

    Args:
        sizes: Dict of group name to number of bytes, at least three groups.
        fraction: Float. Bytes in each of test and valid, over all bytes.

    Returns:
        Dict of `"train"`, `"valid"` and `"test"` to a list of group names,
        each with at least one.

    Raises:
        ValueError: If there are fewer than three groups.

    Example:

    >>> splits = split_groups({"a": 5, "b": 6, "c": 70, "d": 80})
    >>> splits["valid"] + splits["test"], splits["train"]
    (['b', 'a'], ['d', 'c'])
    """
    if len(sizes) < 3:
        raise ValueError(
            "`sizes` must have at least 3 groups, one for each split. "
            f"Received: {len(sizes)}"
        )
    total = sum(sizes.values())
    ordered = sorted(sizes, key=name_hash)
    candidates = [n for n in ordered if sizes[n] <= fraction * total / 2]
    if len(candidates) < 2:
        candidates = sorted(ordered, key=sizes.get)[:2]
    target = min(fraction * total, sum(map(sizes.get, candidates)) / 2)
    test = _take(candidates[:-1], sizes, target)  # the last is left for valid
    valid = _take(candidates[len(test) :], sizes, target)
    held_out = {*test, *valid}
    train = [name for name in ordered if name not in held_out]
    return {"train": train, "valid": valid, "test": test}


def _take(names, sizes, target):
    """The first of `names` that together reach `target` bytes."""
    taken, size = [], 0
    for name in names:
        if size >= target:
            break
        taken.append(name)
        size += sizes[name]
    return taken


def split_file(path, delimiter=None, fraction=HELD_OUT_FRACTION):
    """Cuts a text file in three: train first, then valid, then test.

    A cut is at the first new line after its place, or at the next character
    if that would move the cut by more than half a split.

    Args:
        path: String, a text in UTF-8; `.gz` is unpacked.
        delimiter: Optional `bytes`. Cuts only right after these.
        fraction: Float. Bytes in each of valid and test, over all bytes.

    Returns:
        Dict of `"train"`, `"valid"` and `"test"` to the pair of the first
        byte and the one after the last. A split may be empty if the text is
        tiny.
    """
    size = text_size(path)
    places = [int(size * (1 - part * fraction)) for part in (2, 1)]
    first = _cut(path, places[0], places[1], size, delimiter)
    second = max(first, places[1])
    second = _cut(path, second, size, size, delimiter)
    return {
        "train": (0, first),
        "valid": (first, second),
        "test": (second, size),
    }


def _cut(path, place, end, size, delimiter):
    """The first byte from `place` on where the part up to `end` may begin."""
    if delimiter is None:
        found = _find(path, place, (place + end) // 2, b"\n")
        return _next_character(path, place) if found is None else found
    found = _find(path, place, None, delimiter)
    return size if found is None else found


def _find(path, start, stop, delimiter):
    """Where the first delimiter from `start` on ends, or None."""
    rest, offset = b"", start
    for chunk in read_bytes(path, start, stop):
        rest += chunk
        found = rest.find(delimiter)
        if found >= 0:
            return offset + found + len(delimiter)
        kept = rest[max(0, len(rest) - len(delimiter) + 1) :]
        offset += len(rest) - len(kept)
        rest = kept
    return None


def _next_character(path, start):
    # Bytes 10xxxxxx continue a character.
    following = b"".join(read_bytes(path, start, start + 4))
    continued = itertools.takewhile(lambda byte: byte & 0xC0 == 0x80, following)
    return start + len(list(continued))


def drop_duplicates(files, read):
    """Keeps the first of files with the same content.

    A text that is both in train and in test would be no test.

    Args:
        files: Dict of name to size in bytes.
        read: Function of a name that returns its content in chunks.

    Returns:
        Dict, the same or a smaller one.
    """
    same_size = collections.Counter(files.values())
    kept, seen = {}, set()
    for name, size in files.items():
        if same_size[size] > 1:
            digest = hashlib.sha256()
            for chunk in read(name):
                digest.update(chunk)
            if digest.digest() in seen:
                continue
            seen.add(digest.digest())
        kept[name] = size
    return kept


def name_hash(name):
    """An order of names that is the same everywhere and looks random."""
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
