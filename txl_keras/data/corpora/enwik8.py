"""enwik8: the first 100,000,000 bytes of an English Wikipedia dump of 2006."""

import hashlib

from txl_keras.data.corpora.corpus import Corpus
from txl_keras.data.corpora.files import read_data_file

SOURCE = "http://mattmahoney.net/dc/enwik8.zip"
LENGTH = 100_000_000
SHA256 = "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8"
HELD_OUT = 5_000_000  # bytes in each of valid and test


def load(data_dir):
    """Reads enwik8 from `enwik8`, `enwik8.gz` or `enwik8.zip` in a folder.

    The splits are the published ones: 90M, 5M and 5M bytes in order. A symbol
    is a byte. Published results further drop the newlines: see `drop_newlines`
    of `txl_keras.data.CharacterTokenizer`.

    Args:
        data_dir: String, the folder.

    Returns:
        A `Corpus`.

    Raises:
        ValueError: If `data_dir` is None, or if the content is not enwik8.
        FileNotFoundError: If the folder has no such file.
    """
    data = read_data_file(data_dir, "enwik8", SOURCE)
    check_length(data, "enwik8", SOURCE)
    digest = hashlib.sha256(data).hexdigest()
    if digest != SHA256:
        raise ValueError(
            f"enwik8 in {data_dir} is damaged: delete it and fetch {SOURCE} "
            f"again. Expected: sha256 {SHA256}. Received: sha256 {digest}"
        )
    return Corpus("enwik8", split_in_order(data), encoding="latin-1")


def check_length(data, name, source):
    """Raises ValueError unless `data` has 100,000,000 bytes."""
    if len(data) != LENGTH:
        raise ValueError(
            f"{name} is incomplete or another file: delete it and fetch "
            f"{source} again. Expected: {LENGTH:,} bytes. "
            f"Received: {len(data):,} bytes"
        )


def split_in_order(data):
    """Returns the first 90%, next 5% and last 5% of enwik8 or text8."""
    return {
        "train": data[: -2 * HELD_OUT],
        "valid": data[-2 * HELD_OUT : -HELD_OUT],
        "test": data[-HELD_OUT:],
    }
