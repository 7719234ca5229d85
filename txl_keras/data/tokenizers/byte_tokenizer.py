"""`ByteTokenizer`: the id is the byte."""

import numpy as np

from txl_keras.data.tokenizers.token_ids import as_bytes
from txl_keras.data.tokenizers.token_ids import check_ids


class ByteTokenizer:
    """Ids are bytes; text typed as `str` is taken in UTF-8.

    Args:
        drop_newlines: Boolean. Leaves newlines out of the encoded text.

    Example:

    >>> tokenizer = ByteTokenizer()
    >>> tokenizer.encode("né").tolist()
    [110, 195, 169]
    >>> tokenizer.decode([110, 195, 169])
    'né'
    """

    vocabulary_size = 256
    unknown_id = None
    newline_id = None
    unit = "byte"  # what a token is
    is_lossless = True  # decoding gives back what was encoded
    releases_gil = False

    def __init__(self, drop_newlines=False):
        self.drop_newlines = drop_newlines

    def encode(self, text, begins_line=True):
        """Turns text into ids.

        Args:
            text: `bytes` or `str`.
            begins_line: Boolean, of no effect on bytes.

        Returns:
            Array of shape `(n,)`, uint8.
        """
        data = as_bytes(text)
        if self.drop_newlines:
            data = data.replace(b"\n", b"")
        return np.frombuffer(data, np.uint8)

    def decode_bytes(self, ids):
        """Turns ids into bytes, which may end amid a character.

        Feed them to `codecs.getincrementaldecoder("utf-8")` to show text while
        it is generated.

        Args:
            ids: Integer array or list of shape `(n,)`, or one integer.

        Returns:
            `bytes`.

        Raises:
            ValueError: If an id is not in `[0, 256)`.
        """
        return check_ids(ids, self.vocabulary_size).astype(np.uint8).tobytes()

    def decode(self, ids):
        """Turns ids into a `str`; broken characters become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def get_config(self):
        return {"drop_newlines": self.drop_newlines}

    @classmethod
    def from_config(cls, config):
        return cls(**config)
