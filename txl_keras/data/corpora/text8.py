"""text8: 100,000,000 bytes of Wikipedia, reduced to a-z and space."""

import string

from txl_keras.data.corpora.corpus import Corpus
from txl_keras.data.corpora.enwik8 import check_length
from txl_keras.data.corpora.enwik8 import split_in_order
from txl_keras.data.corpora.files import read_data_file

SOURCE = "http://mattmahoney.net/dc/text8.zip"
ALPHABET = (string.ascii_lowercase + " ").encode()


def load(data_dir):
    """Reads text8 from `text8`, `text8.gz` or `text8.zip` in a folder.

    The splits are the published ones: 90M, 5M and 5M bytes in order.

    Args:
        data_dir: String, the folder.

    Returns:
        A `Corpus`.

    Raises:
        ValueError: If `data_dir` is None, or if the content is not text8.
        FileNotFoundError: If the folder has no such file.
    """
    data = read_data_file(data_dir, "text8", SOURCE)
    check_length(data, "text8", SOURCE)
    foreign = data.translate(None, delete=ALPHABET)
    if foreign:
        raise ValueError(
            f"text8 in {data_dir} is damaged: delete it and fetch {SOURCE} "
            "again. Expected: only the letters a-z and space. "
            f"Received: byte {foreign[0]:#04x}"
        )
    return Corpus("text8", split_in_order(data), encoding="latin-1")
