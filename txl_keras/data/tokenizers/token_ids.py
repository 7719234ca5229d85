"""Conversion and checks of the text and ids that tokenizers receive."""

import numpy as np

from txl_keras.checks import check_token_ids
from txl_keras.checks import shown


def as_bytes(text):
    """Returns text as `bytes` in UTF-8, or raises ValueError."""
    if isinstance(text, (bytes, bytearray, memoryview)):
        return bytes(text)
    if not isinstance(text, str):  # for example 5: `bytes(5)` is five zeros
        raise ValueError(
            "`text` must be `bytes` or `str`. "
            f"Received: {shown(text)} of type {type(text).__name__}"
        )
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            "`text` must be encodable in UTF-8. Received: "
            f"{text[error.start]!r} at position {error.start}"
        ) from error


def decode_utf8(data, start=0):
    """Decodes `bytes` of a text; errors count positions from `start`."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            "`text` must be UTF-8. Received: byte "
            f"{data[error.start]:#04x} at position {start + error.start}"
        ) from error


def check_ids(ids, vocabulary_size):
    """Returns ids as an array of shape `(n,)`, or raises ValueError."""
    ids = np.atleast_1d(np.asarray(ids))
    if ids.size == 0:
        return ids.reshape(-1).astype(np.int32)
    if ids.ndim != 1:
        raise ValueError(
            f"`ids` must be of shape (n,). Received: shape {ids.shape}"
        )
    return check_token_ids("ids", ids, vocabulary_size)
