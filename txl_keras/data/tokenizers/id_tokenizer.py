"""`IdTokenizer`, for data that already consists of token ids."""

from typing import Any

import numpy as np

from txl_keras.checks import check_integer
from txl_keras.data.tokenizers.tokenizer import Tokenizer
from txl_keras.data.tokenizers.tokenizer import as_bytes
from txl_keras.data.vocabulary import UnknownSymbolError
from txl_keras.data.vocabulary import smallest_dtype


class IdTokenizer(Tokenizer):
    """Passes token ids through, and writes them as numbers in text.

    It is for sequences that are not text, such as music events, DNA or logs.
    `load_corpus` loads a `Corpus` of ids from `.npy` or `.npz` files.

    Args:
        vocabulary_size: Integer. Ids are below it.

    Example:

    >>> tokenizer = IdTokenizer(vocabulary_size=128)
    >>> tokenizer.encode("60 64 67").tolist()
    [60, 64, 67]
    >>> tokenizer.decode([60, 64, 67])
    '60 64 67'
    """

    releases_gil = True
    _has_prefix = True

    def __init__(self, vocabulary_size: int):
        check_integer("vocabulary_size", vocabulary_size, 1, 2**31 - 1)
        self.vocabulary_size = vocabulary_size

    def encode(self, text: Any, begins_line: bool = True) -> np.ndarray:
        """Checks an integer array `(n,)`, or reads ids from text.

        The text has decimal numbers between spaces, commas or newlines.
        """
        ids = text if isinstance(text, np.ndarray) else self._parse(text)
        if ids.size and ids.dtype.kind not in "iu":
            raise ValueError(
                f"`text` must hold integers. Received: dtype={ids.dtype}"
            )
        wrong = (ids < 0) | (ids >= self.vocabulary_size)
        if wrong.any():
            position = int(np.argmax(wrong))
            raise UnknownSymbolError(int(ids[position]), position)
        return ids.astype(smallest_dtype(self.vocabulary_size), copy=False)

    def _parse(self, text):
        words = as_bytes(text).replace(b",", b" ").split()
        for word in words:
            if not word.isdigit() or len(word) > 10:
                raise ValueError(
                    "`text` must be token ids, numbers separated by spaces or "
                    f"commas. Received: {word.decode(errors='replace')!r:.40}"
                )
        return np.array([int(word) for word in words], np.int64)

    def _text(self, token_id):
        return b" %d" % token_id
