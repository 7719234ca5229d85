"""Files of token ids: little-endian integers without a header."""

import functools
import itertools
import os

import numpy as np
import tensorflow as tf

from txl_keras.data.corpora.files import is_remote

BLOCK = 1 << 22  # ids that `blocks_of` yields at once
# Bytes per read from a bucket, and pages in the cache: 64 MiB in all.
PAGE_BYTES = 1 << 16
NUM_PAGES = 1024


def shard_paths(folder, number):
    """Returns the paths of the files that hold the ids of a split, in order."""
    # The names are made here and never read from a file, so that a folder from
    # a stranger cannot name files elsewhere.
    if number == 1:
        return [os.path.join(folder, "tokens.bin")]
    names = (f"tokens-{i:05}-of-{number:05}.bin" for i in range(number))
    return [os.path.join(folder, name) for name in names]


def open_tokens(paths, lengths, dtype):
    """Opens files of ids as a read-only `np.memmap`, or as `TokenFiles`."""
    tokens = TokenFiles(paths, lengths, dtype)
    if is_remote(paths[0]):
        return tokens
    files = [tokens.file(number) for number in range(len(paths))]
    return files[0] if len(files) == 1 else tokens


class TokenFiles:
    """Reads ids in several files, or in a bucket, as if they were one array."""

    # Files are opened when they are first read. Of those in a bucket, ranges
    # are read and recent pages are cached, so that rows that read on
    # sequentially send one request for many steps.

    def __init__(self, paths, lengths, dtype):
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self._paths = paths
        self._starts = np.cumsum([0, *lengths], dtype=np.int64)
        self._files = {}
        self._page = functools.lru_cache(NUM_PAGES)(self._read_page)

    def __len__(self):
        return int(self._starts[-1])

    @property
    def nbytes(self):
        return len(self) * self.dtype.itemsize

    def __getitem__(self, index):
        """Returns the ids of a slice with step 1, as an array."""
        start, stop, step = index.indices(len(self))
        if step != 1:
            raise ValueError(f"The step must be 1. Received: {step}")
        if stop <= start:
            return np.zeros(0, self.dtype)
        first = int(np.searchsorted(self._starts, start, "right")) - 1
        last = int(np.searchsorted(self._starts, stop, "left"))
        bounds = itertools.pairwise(self._starts[first : last + 1].tolist())
        return _joined(
            self._part(number, max(0, start - begin), min(stop, end) - begin)
            for number, (begin, end) in enumerate(bounds, start=first)
            if begin < end
        )

    def _part(self, number, start, stop):
        """Returns ids `[start, stop)` of one file."""
        ids = self.file(number)
        if ids is not None:
            return ids[start:stop]
        size = PAGE_BYTES // self.dtype.itemsize  # ids per page
        first = start // size
        pages = (self._page(number, i) for i in range(first, -(-stop // size)))
        return _joined(pages)[start - first * size : stop - first * size]

    def _read_page(self, number, page):
        with tf.io.gfile.GFile(self._paths[number], "rb") as file:
            file.seek(page * PAGE_BYTES)
            return np.frombuffer(file.read(PAGE_BYTES), self.dtype)

    def file(self, number):
        """Returns a file as `np.memmap`, in a bucket None; checks its size."""
        if number not in self._files:
            self._files[number] = self._open(number)
        return self._files[number]

    def _open(self, number):
        path = self._paths[number]
        if not tf.io.gfile.exists(path):
            raise FileNotFoundError(f"There is no file of ids {path}.")
        size = tf.io.gfile.stat(path).length
        expected = int(np.diff(self._starts)[number]) * self.dtype.itemsize
        if size != expected:
            raise ValueError(
                f"{path} was changed after it was prepared: delete its folder, "
                "and it will be prepared again. "
                f"Expected: {expected} bytes. Received: {size} bytes"
            )
        if is_remote(path):
            return None
        if not size:
            return np.zeros(0, self.dtype)  # an empty file cannot be mapped
        return np.memmap(path, self.dtype, mode="r")

    def blocks(self):
        """Yields all ids in arrays, by one read of each file."""
        for path in self._paths:
            with tf.io.gfile.GFile(path, "rb") as file:
                while block := file.read(BLOCK * self.dtype.itemsize):
                    yield np.frombuffer(block, self.dtype)


def blocks_of(tokens):
    """Yields all ids in arrays."""
    if isinstance(tokens, TokenFiles):
        yield from tokens.blocks()
        return
    for start in range(0, len(tokens), BLOCK):
        yield tokens[start : start + BLOCK]


def _joined(arrays):
    arrays = list(arrays)
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
