"""Files of token ids: little-endian integers without a header."""

import functools
import mmap
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


def open_shards(paths, lengths, dtype):
    """Opens files of ids as one array, as `open_token_file` opens one."""
    if len(paths) == 1:
        return open_token_file(paths[0], dtype)
    return ShardedTokens(paths, lengths, dtype)


def open_token_file(path, dtype, read_page=None):
    """Opens a file of ids as a read-only `np.memmap` or `RemoteTokens`."""
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
        return RemoteTokens(path, dtype, size // dtype.itemsize, read_page)
    if not size:
        return np.zeros(0, dtype)  # an empty file cannot be mapped
    return np.memmap(path, dtype, mode="r")


class RemoteTokens:
    """Reads ids in a bucket by ranges, and caches recent pages."""

    # So rows that read on sequentially send one request for many steps.

    def __init__(self, path, dtype, num_tokens, read_page=None):
        self.path = path
        self.dtype = np.dtype(dtype)
        self._num_tokens = num_tokens
        self._read_page = read_page or page_cache()

    def __len__(self):
        return self._num_tokens

    @property
    def nbytes(self):
        return len(self) * self.dtype.itemsize

    def __getitem__(self, index):
        """Returns the ids of a slice with step 1, as an array."""
        start, stop = _bounds(index, self._num_tokens)
        if stop <= start:
            return np.zeros(0, self.dtype)
        size = PAGE_BYTES // self.dtype.itemsize  # ids per page
        first = start // size
        ids = _joined(
            np.frombuffer(self._read_page(self.path, number), self.dtype)
            for number in range(first, (stop - 1) // size + 1)
        )
        return ids[start - first * size : stop - first * size]

    def blocks(self):
        """Yields all ids in arrays, by one read from start to end."""
        with tf.io.gfile.GFile(self.path, "rb") as file:
            while block := file.read(BLOCK * self.dtype.itemsize):
                yield np.frombuffer(block, self.dtype)


class ShardedTokens:
    """Reads ids in several files as if they were one array."""

    # Files are opened when they are first read, so each host opens those of its
    # rows only.

    def __init__(self, paths, lengths, dtype):
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self._paths = paths
        self._starts = np.cumsum([0, *lengths], dtype=np.int64)
        self._read_page = page_cache()  # one for all files: its size is fixed
        self._opened = {}

    def __len__(self):
        return int(self._starts[-1])

    @property
    def nbytes(self):
        return len(self) * self.dtype.itemsize

    def __getitem__(self, index):
        """Returns the ids of a slice with step 1, as an array."""
        start, stop = _bounds(index, len(self))
        if stop <= start:
            return np.zeros(0, self.dtype)
        first = int(np.searchsorted(self._starts, start, "right")) - 1
        last = int(np.searchsorted(self._starts, stop, "left"))
        starts = self._starts[first:last].tolist()
        return _joined(
            self.shard(number)[max(0, start - begin) : stop - begin]
            for number, begin in enumerate(starts, start=first)
        )

    @property
    def num_shards(self):
        return len(self._paths)

    def shard(self, number):
        """Returns the ids of one file, after a check of its length."""
        if number not in self._opened:
            self._opened[number] = self._open(number)
        return self._opened[number]

    def _open(self, number):
        path = self._paths[number]
        ids = open_token_file(path, self.dtype, self._read_page)
        expected = int(np.diff(self._starts)[number])
        if len(ids) != expected:
            raise ValueError(
                f"{path} was changed after it was prepared: delete its folder, "
                "and it will be prepared again. "
                f"Expected: {expected} ids. Received: {len(ids)}"
            )
        return ids


def blocks_of(tokens):
    """Yields all ids in arrays, without keeping those of a file in memory."""
    if isinstance(tokens, ShardedTokens):
        for number in range(tokens.num_shards):
            yield from blocks_of(tokens.shard(number))
        return
    if isinstance(tokens, RemoteTokens):
        yield from tokens.blocks()
        return
    # A whole file, as only slices of it have another array as their base.
    is_file = isinstance(getattr(tokens, "base", None), mmap.mmap)
    for start in range(0, len(tokens), BLOCK):
        if is_file:
            # Pages of `tokens` would stay in memory as long as it does.
            length = min(BLOCK, len(tokens) - start)
            offset = tokens.offset + start * tokens.itemsize
            yield np.memmap(
                tokens.filename, tokens.dtype, "r", offset, (length,)
            )
        else:
            yield tokens[start : start + BLOCK]


def page_cache():
    """Returns a function that reads pages of files and keeps recent ones."""
    return functools.lru_cache(NUM_PAGES)(_read_page)


def _read_page(path, number):
    with tf.io.gfile.GFile(path, "rb") as file:
        file.seek(number * PAGE_BYTES)
        return file.read(PAGE_BYTES)


def _bounds(index, length):
    start, stop, step = index.indices(length)
    if step != 1:
        raise ValueError(f"The step must be 1. Received: {step}")
    return start, stop


def _joined(arrays):
    arrays = list(arrays)
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
