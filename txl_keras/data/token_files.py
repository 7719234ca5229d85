"""Files of token ids: little-endian integers without a header."""

import functools

import numpy as np
import tensorflow as tf

from txl_keras.data.corpora.files import is_remote

# Bytes per read from a bucket, and pages in the cache: 64 MiB in all.
PAGE_BYTES = 1 << 16
NUM_PAGES = 1024


def open_token_file(path, dtype):
    """Opens a file of ids for random access, without reading all of it.

    Returns a read-only `np.memmap` of a local file, otherwise a `RemoteTokens`.
    """
    dtype = np.dtype(dtype).newbyteorder("<")
    if not tf.io.gfile.exists(path):
        raise FileNotFoundError(f"There is no file of ids {path}.")
    size = tf.io.gfile.stat(path).length
    if size % dtype.itemsize:
        raise ValueError(
            f"{path} must have ids of {dtype.itemsize} bytes each: it is "
            f"truncated or has another dtype. Received: {size} bytes"
        )
    if is_remote(path):
        return RemoteTokens(path, dtype, size // dtype.itemsize)
    if not size:
        return np.zeros(0, dtype)  # an empty file cannot be mapped
    return np.memmap(path, dtype, mode="r")


class RemoteTokens:
    """Reads ids in a bucket by ranges, when they are requested.

    Recent pages are cached, so rows that read on sequentially send one request
    for many steps.
    """

    def __init__(self, path, dtype, num_tokens):
        self.path = path
        self.dtype = np.dtype(dtype)
        self._num_tokens = num_tokens
        self._page = functools.lru_cache(NUM_PAGES)(self._read_page)

    def __len__(self):
        return self._num_tokens

    def __getitem__(self, index):
        """Returns the ids of a slice with step 1, as an array."""
        start, stop, step = index.indices(self._num_tokens)
        if step != 1:
            raise ValueError(f"The step must be 1. Received: {step}")
        if stop <= start:
            return np.zeros(0, self.dtype)
        size = PAGE_BYTES // self.dtype.itemsize  # ids per page
        first = start // size
        pages = [self._page(i) for i in range(first, (stop - 1) // size + 1)]
        ids = pages[0] if len(pages) == 1 else np.concatenate(pages)
        return ids[start - first * size : stop - first * size]

    def _read_page(self, number):
        with tf.io.gfile.GFile(self.path, "rb") as file:
            file.seek(number * PAGE_BYTES)
            return np.frombuffer(file.read(PAGE_BYTES), self.dtype)
