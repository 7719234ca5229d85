"""Vocabularies: symbols or words and their ids."""

import itertools
import math
import os
import re
from collections.abc import Sequence

import numpy as np

from txl_keras.checks import shown
from txl_keras.types import Tensor

NUM_CODE_POINTS = 0x110000  # all of Unicode
LARGE_VOCABULARY = 10_000  # a full softmax over fewer ids is cheap
_COUNTED = 1 << 22  # ids to read at once
_SURROGATE = re.compile("[\ud800-\udfff]")


class Vocabulary:
    """Maps symbols, such as words, to ids, which are indices in a list.

    Args:
        symbols: Sequence of distinct strings, none of them empty, or a
            `Vocabulary`.

    Example:

    >>> vocabulary = Vocabulary(["<eos>", "<unk>", "the"])
    >>> vocabulary.ids(["the", "cat", "<eos>"], unknown="<unk>").tolist()
    [2, 1, 0]
    """

    def __init__(self, symbols: Sequence[str]):
        if isinstance(symbols, (str, os.PathLike)):  # not a list of characters
            raise ValueError(
                "`symbols` must be a list of words: read a file with "
                f"`checkpoints.load_vocabulary`. Received: {symbols!r:.80}"
            )
        self.symbols = symbols = tuple(symbols)
        if not symbols:
            raise ValueError("`symbols` must not be empty.")
        self._ids = {}
        for i, symbol in enumerate(symbols):
            is_text = isinstance(symbol, str) and not _SURROGATE.search(symbol)
            if not symbol or not is_text or symbol in self._ids:
                raise ValueError(
                    "`symbols` must be distinct strings of at least one "
                    "character that can be encoded in UTF-8. "
                    f"Received: {shown(symbol)} at index {i}"
                )
            self._ids[symbol] = i
        self.dtype = smallest_dtype(len(symbols))

    def __iter__(self):
        return iter(self.symbols)

    def __len__(self):
        return len(self.symbols)

    def __contains__(self, word):
        return word in self._ids

    def id_of(self, word: str) -> int | None:
        """Returns the id of a word, or None if it has none."""
        return self._ids.get(word)

    def ids(self, words: Tensor, unknown: str | None = None) -> np.ndarray:
        """Looks up the ids of words.

        Args:
            words: List of `n` strings.
            unknown: Optional string. The word whose id replaces the ids of all
                words that are not in the vocabulary, if `unknown` itself is in
                the vocabulary.

        Returns:
            Array of shape `(n,)`, of the smallest dtype that holds every id.

        Raises:
            UnknownSymbolError: A `ValueError`, if a word has no id. The message
                gives its position.
        """
        unknown_id = itertools.repeat(self._ids.get(unknown, -1))
        found = map(self._ids.get, words, unknown_id)
        ids = np.fromiter(found, np.int32, len(words))
        if ids.size and ids.min() < 0:
            position = int(np.argmin(ids))
            raise UnknownSymbolError(words[position], position)
        return ids.astype(self.dtype, copy=False)


class UnknownSymbolError(ValueError):
    """Reports an unknown symbol or id, after `position` other symbols."""

    def __init__(self, symbol, position):
        super().__init__(symbol, position)
        self.symbol = symbol
        self.position = position

    def __str__(self):
        symbol, position = self.args
        code_point = ""
        if isinstance(symbol, str) and len(symbol) == 1:
            code_point = f" (U+{ord(symbol):04X})"
        return (
            f"The symbol {symbol!r}{code_point} at position {position} is not "
            "in the vocabulary."
        )


def token_counts(tokens, vocabulary_size):
    """Counts how often each id occurs: int64, `(V,)`."""
    counts = np.zeros(vocabulary_size, np.int64)
    for start in range(0, len(tokens), _COUNTED):
        block = tokens[start : start + _COUNTED]
        counts += np.bincount(block, minlength=vocabulary_size)
    return counts


def choose_cutoffs(counts: np.ndarray) -> list[int]:
    """Chooses the three cluster boundaries of an adaptive softmax.

    Minimizes the expected number of logits per token, over a grid of cutoffs
    with ratio 1.1 (Grave et al., 2017, section 4).

    Args:
        counts: Array of shape `(V,)`, the number of occurrences of each id. Ids
            should be sorted by decreasing frequency.

    Returns:
        List of three ascending integers below `V`. Empty if V is less than
        10,000, because a softmax over so few ids is cheap.

    Example:

    >>> counts = 10**6 // np.arange(1, 50_001)
    >>> choose_cutoffs(counts)
    [767, 7491, 23400]
    """
    counts = np.asarray(counts)
    is_number = counts.ndim == 1 and counts.dtype.kind in "iuf"
    if not is_number or not 0 < counts.sum() < np.inf or counts.min() < 0:
        raise ValueError(
            "`counts` must be finite numbers of at least 0, and not all 0, of "
            f"shape (V,). Received: counts={counts}"
        )
    counts = counts.astype(np.float64)
    size = len(counts)
    if size < LARGE_VOCABULARY:
        return []
    places = np.geomspace(1, size, 1 + math.ceil(math.log(size, 1.1)))
    places = np.unique(places.astype(np.int64))
    before = np.append(0, counts.cumsum())[places] / counts.sum()
    width = places - places[:, None]
    # Logits per token for a cluster, by its begin and end.
    cluster = np.where(width > 0, (before - before[:, None]) * width, np.inf)
    # Logits of all clusters, by the three cutoffs.
    cost = places[:, None, None] + cluster[..., None] + cluster
    cost += cluster[:, -1]
    chosen = np.unravel_index(cost.argmin(), cost.shape)
    return places[list(chosen)].tolist()


def smallest_dtype(size):
    """Returns the smallest of uint8, uint16, int32 that holds `size` ids."""
    dtype = np.min_scalar_type(size - 1)
    return dtype if dtype.itemsize < 4 else np.dtype(np.int32)
