"""`Vocabulary`, the symbols of a text and their ids."""

import numpy as np

NUM_CODE_POINTS = 0x110000  # Unicode ends here


class Vocabulary:
    """Symbols and their ids: the id of a symbol is its place in the list.

    Args:
        symbols: Sequence of distinct strings of one character each.

    Raises:
        ValueError: If there are no symbols, if one is not a single character,
            or if one occurs twice.

    Example:

    >>> vocabulary = Vocabulary.from_text_counts({"b": 3, "a": 3, "n": 9})
    >>> vocabulary.symbols
    ('n', 'a', 'b')
    >>> vocabulary.ids(np.array([ord("b"), ord("n")])).tolist()
    [2, 0]
    """

    def __init__(self, symbols):
        self.symbols = tuple(symbols)
        if not self.symbols:
            raise ValueError("`symbols` must not be empty.")
        for symbol in self.symbols:
            if not isinstance(symbol, str) or len(symbol) != 1:
                raise ValueError(
                    "`symbols` must be strings of one character. "
                    f"Received: {symbol!r}"
                )
        if len(set(self.symbols)) != len(self.symbols):
            raise ValueError(
                "`symbols` must be distinct. Received: "
                f"{len(self.symbols)} symbols, {len(set(self.symbols))} "
                "of them distinct"
            )
        self.dtype = smallest_dtype(len(self.symbols))
        # Indexed by code point, so that a whole text is one look-up.
        code_points = [ord(symbol) for symbol in self.symbols]
        self._ids = np.zeros(NUM_CODE_POINTS, self.dtype)
        self._ids[code_points] = np.arange(len(self.symbols))
        self._is_known = np.zeros(NUM_CODE_POINTS, bool)
        self._is_known[code_points] = True

    @classmethod
    def from_text_counts(cls, counts):
        """Most frequent symbols first, ties in the order of code points.

        Args:
            counts: Dict of symbol to how often it occurs.

        Returns:
            A `Vocabulary`.
        """
        return cls(sorted(counts, key=lambda symbol: (-counts[symbol], symbol)))

    def __len__(self):
        return len(self.symbols)

    def ids(self, code_points):
        """Looks up ids.

        Args:
            code_points: Array of shape `(n,)`, unsigned integers.

        Returns:
            Array of shape `(n,)` of the smallest dtype that holds every id.

        Raises:
            ValueError: If a symbol is not in the vocabulary, with its position.
        """
        is_known = self._is_known[code_points]
        if not is_known.all():
            position = int(np.argmin(is_known))
            raise UnknownSymbolError(chr(code_points[position]), position)
        return self._ids[code_points]


class UnknownSymbolError(ValueError):
    """A text has a symbol that its vocabulary lacks.

    Args:
        symbol: String of one character.
        position: Integer. How many symbols of the text come before it.
    """

    def __init__(self, symbol, position):
        super().__init__(
            f"The symbol {symbol!r} (U+{ord(symbol):04X}) at position "
            f"{position} is not in the vocabulary."
        )
        self.symbol = symbol
        self.position = position


def smallest_dtype(size):
    """The smallest of uint8, uint16 and int32 that holds ids below `size`."""
    return np.dtype(
        np.uint8
        if size <= 1 << 8
        else np.uint16
        if size <= 1 << 16
        else np.int32
    )
