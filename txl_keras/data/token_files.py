"""Ids in a file: little-endian integers one after the other, nothing else."""

import functools

import numpy as np
import tensorflow as tf

from txl_keras.data.corpora.files import is_remote

# Read at once from a bucket, and how many of them are kept: 64 MiB.
PAGE_BYTES = 1 << 16
NUM_PAGES = 1024


def open_token_file(path, dtype):
    """Opens ids for reading anywhere, without reading them all.

    Args:
        path: String, local or of a bucket.
        dtype: NumPy dtype of the ids.

    Returns:
        A read-only `np.memmap` of a local file, else a `RemoteTokens`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If its size is not a number of ids.
    """
    dtype = np.dtype(dtype).newbyteorder("<")
    if not tf.io.gfile.exists(path):
        raise FileNotFoundError(f"There is no file of ids {path}.")
    size = tf.io.gfile.stat(path).length
    if size % dtype.itemsize:
        raise ValueError(
            f"{path} must have ids of {dtype.itemsize} bytes each: it is "
            f"truncated or of another dtype. Received: {size} bytes"
        )
    if is_remote(path):
        return RemoteTokens(path, dtype, size // dtype.itemsize)
    if not size:
        return np.zeros(0, dtype)  # which cannot be mapped
    return np.memmap(path, dtype, mode="r")


class RemoteTokens:
    """Ids in a bucket, read in ranges when they are asked for.

    What was read lately is kept, so that rows which read on from where they
    were ask the bucket once in many steps.

    Args:
        path: String, as for `tf.io.gfile`.
        dtype: NumPy dtype.
        num_tokens: Integer.
    """

    def __init__(self, path, dtype, num_tokens):
        self.path = path
        self.dtype = np.dtype(dtype)
        self._num_tokens = num_tokens
        self._page = functools.lru_cache(NUM_PAGES)(self._read_page)

    def __len__(self):
        return self._num_tokens

    def __getitem__(self, index):
        """The ids of a slice with step 1, as an array."""
        start, stop, step = index.indices(self._num_tokens)
        if step != 1:
            raise ValueError(f"The step must be 1. Received: {step}")
        if stop <= start:
            return np.zeros(0, self.dtype)
        size = PAGE_BYTES // self.dtype.itemsize  # ids a page
        first = start // size
        pages = [self._page(i) for i in range(first, (stop - 1) // size + 1)]
        ids = pages[0] if len(pages) == 1 else np.concatenate(pages)
        return ids[start - first * size : stop - first * size]

    def _read_page(self, number):
        with tf.io.gfile.GFile(self.path, "rb") as file:
            file.seek(number * PAGE_BYTES)
            return np.frombuffer(file.read(PAGE_BYTES), self.dtype)
