"""Adds up the counts of more words than memory holds."""

import collections
import contextlib
import heapq
import itertools
import json
import operator
import tempfile

MAX_STRINGS = 1 << 21  # in memory: about 300 MB


def add_up(counters, min_count=1, num_kept=None):
    """Adds up `Counter`s of strings, in the order of their first occurrence.

    If there are more than `MAX_STRINGS`, they are sorted on disk, and what
    occurs less than `min_count` times is left out, and so are all but the
    `num_kept` most frequent ones.
    """
    total = collections.Counter()
    with contextlib.ExitStack() as stack:
        files = []
        for counts in counters:
            total.update(counts)
            if len(total) > MAX_STRINGS:
                files.append(
                    stack.enter_context(
                        tempfile.TemporaryFile("w+", encoding="ascii")
                    )
                )
                _write(total, len(files), files[-1])
                total.clear()
        if not files:
            return total
        rest = sorted(_entries(total, len(files) + 1))
        merged = heapq.merge(rest, *map(_read, files))
        frequent = (item for item in _sums(merged) if item[0] >= min_count)
        if num_kept is not None:
            frequent = heapq.nlargest(num_kept, frequent)
        kept = sorted(frequent, key=operator.itemgetter(1), reverse=True)
    return collections.Counter({word: count for count, _, word in kept})


def _entries(counts, number):
    """Yields each string with its count and its place in the whole text."""
    for place, (word, count) in enumerate(counts.items()):
        yield [word, count, (number << 40) + place]


def _write(counts, number, file):
    for entry in sorted(_entries(counts, number)):
        file.write(json.dumps(entry) + "\n")


def _read(file):
    file.seek(0)
    return map(json.loads, file)


def _sums(entries):
    """Yields a count, minus the first place, and the string."""
    for word, group in itertools.groupby(entries, operator.itemgetter(0)):
        _, counts, places = zip(*group, strict=True)
        yield sum(counts), -min(places), word
