"""Ways to split a text in train, valid and test: by group, or by position."""

import hashlib

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


def split_text(data, fraction=HELD_OUT_FRACTION):
    """Cuts a UTF-8 text in three: train first, then valid, then test.

    A cut is at the first new line after its place, or at the next character
    if that would move the cut by more than half a split.

    Args:
        data: `bytes`.
        fraction: Float. Bytes in each of valid and test, over all bytes.

    Returns:
        Dict of `"train"`, `"valid"` and `"test"` to `bytes`. A split may be
        empty if the text is tiny.

    Example:

    >>> split_text(b"a line and another\\nx\\ny")["test"]
    b'y'
    """
    places = [int(len(data) * (1 - part * fraction)) for part in (2, 1, 0)]
    first = _cut(data, places[0], places[1])
    second = _cut(data, max(first, places[1]), places[2])
    return {
        "train": data[:first],
        "valid": data[first:second],
        "test": data[second:],
    }


def _cut(data, start, stop):
    newline = data.find(b"\n", start, start + (stop - start) // 2)
    if newline >= 0:
        return newline + 1
    # Bytes 10xxxxxx continue a character.
    while start < len(data) and data[start] & 0xC0 == 0x80:
        start += 1
    return start


def drop_duplicates(documents):
    """Keeps the first of documents with the same text.

    A text that is both in train and in test would be no test.

    Args:
        documents: Dict of name to `bytes`.

    Returns:
        Dict, the same or a smaller one.
    """
    first_names = {}
    for name, text in documents.items():
        first_names.setdefault(text, name)
    return {name: text for text, name in first_names.items()}


def join_documents(documents):
    """Joins documents as they are, each ending with a newline.

    Args:
        documents: Iterable of `bytes`.

    Returns:
        `bytes`.

    Example:

    >>> join_documents([b"one", b"two\\n"])
    b'one\\ntwo\\n'
    """
    return b"".join(
        text if text.endswith(b"\n") else text + b"\n" for text in documents
    )


def name_hash(name):
    """An order of names that is the same everywhere and looks random."""
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
