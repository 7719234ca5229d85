"""Adds up the counts of more words than memory holds."""

import collections
import contextlib
import sqlite3

MAX_STRINGS = 1 << 21  # in memory: about 300 MB
_ADD = (
    "INSERT INTO words VALUES (?, ?) "
    "ON CONFLICT (word) DO UPDATE SET count = count + excluded.count"
)
# A word keeps the `rowid` of its first occurrence.
_CHOOSE = (
    "SELECT word, count FROM (SELECT rowid AS place, * FROM words "
    "WHERE count >= ? ORDER BY count DESC, place LIMIT ?) ORDER BY place"
)


def add_up(counters, min_count=1, num_kept=None):
    """Adds up `Counter`s of strings, in the order of their first occurrence.

    If there are more than `MAX_STRINGS`, they are counted on disk, and what
    occurs less than `min_count` times is left out, and so are all but the
    `num_kept` most frequent ones.
    """
    total, is_on_disk = collections.Counter(), False
    # Without a name, a temporary file.
    with contextlib.closing(sqlite3.connect("")) as database:
        database.execute("CREATE TABLE words (word TEXT UNIQUE, count INTEGER)")
        for counts in counters:
            total.update(counts)
            if len(total) > MAX_STRINGS:
                database.executemany(_ADD, total.items())
                total.clear()
                is_on_disk = True
        if not is_on_disk:
            return total
        database.executemany(_ADD, total.items())
        limit = -1 if num_kept is None else num_kept
        chosen = database.execute(_CHOOSE, (min_count, limit))
        return collections.Counter(dict(chosen))
