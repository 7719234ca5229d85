"""`ByteTokenizer`: one id per byte."""

import numpy as np

from txl_keras.data.tokenizers.token_ids import as_bytes
from txl_keras.data.tokenizers.token_ids import check_ids


class ByteTokenizer:
    """Encodes each byte as its value; `str` is converted to UTF-8.

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
    unit = "byte"  # of one token
    is_lossless = True  # decoding restores the encoded text
    releases_gil = False

    def __init__(self, drop_newlines=False):
        self.drop_newlines = drop_newlines

    def encode(self, text, begins_line=True):
        """Encodes text as ids.

        Args:
            text: `bytes` or `str`.
            begins_line: Boolean, ignored for bytes.

        Returns:
            Array of shape `(n,)`, uint8.
        """
        data = as_bytes(text)
        if self.drop_newlines:
            data = data.replace(b"\n", b"")
        return np.frombuffer(data, np.uint8)

    def decode_bytes(self, ids):
        """Decodes ids to bytes, which may end inside a character.

        Pass them to `codecs.getincrementaldecoder("utf-8")` to show text while
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
        """Decodes ids to a `str`; invalid characters become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def get_config(self):
        return {"drop_newlines": self.drop_newlines}

    @classmethod
    def from_config(cls, config):
        return cls(**config)
