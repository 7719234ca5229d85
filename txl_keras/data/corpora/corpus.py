"""`Corpus`, the text that every loader in this folder returns."""

import dataclasses

SPLITS = ("train", "valid", "test")
ENCODINGS = ("utf-8", "latin-1")


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A text in three splits, as bytes and not yet as tokens.

    Args:
        name: String. What the corpus is called in messages and reports.
        splits: Dict of `"train"`, `"valid"` and `"test"` to `bytes`.
        encoding: String, what one symbol of the text is. `"utf-8"`: a
            character. `"latin-1"`: a byte, as in enwik8 and text8, whose
            published results count bytes.

    Raises:
        ValueError: If a split is missing, unknown or empty, or if the
            encoding is neither of the two.

    Example:

    >>> corpus = Corpus("tiny", {"train": b"abc", "valid": b"d", "test": b"e"})
    >>> len(corpus.splits["train"])
    3
    """

    name: str
    splits: dict
    encoding: str = "utf-8"

    def __post_init__(self):
        if set(self.splits) != set(SPLITS):
            raise ValueError(
                f"`splits` must have the keys {list(SPLITS)}. "
                f"Received: {list(self.splits)}"
            )
        empty = [split for split in SPLITS if len(self.splits[split]) == 0]
        if empty:
            raise ValueError(
                f"`splits` must not be empty. Received: corpus '{self.name}' "
                f"with no text in {empty}"
            )
        if self.encoding not in ENCODINGS:
            raise ValueError(
                f"`encoding` must be one of {list(ENCODINGS)}. "
                f"Received: encoding={self.encoding!r}"
            )
