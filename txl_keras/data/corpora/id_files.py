"""Arrays of token ids: `.npy` and `.npz` files, on disk or in a bucket."""

import contextlib
import dataclasses
import math
import tokenize
import zipfile
import zlib

import numpy as np
import tensorflow as tf

from txl_keras.data.corpora import corpus
from txl_keras.data.corpora.files import check_unpacked
from txl_keras.data.corpora.splitting import held_out_places
from txl_keras.json_files import open_checked

SUFFIXES = (".npy", ".npz")
MAX_ID = 2**31 - 2  # so that ids and the size of the vocabulary are int32
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# Errors of NumPy, zipfile and TensorFlow for files that are damaged or of
# another kind.
_DAMAGED = (
    ValueError,
    TypeError,
    KeyError,
    EOFError,
    MemoryError,  # of a header too deeply nested
    RuntimeError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
    tf.errors.OpError,
)


def is_id_file(path):
    """Returns whether a file is named as one of ids."""
    return path.lower().endswith(SUFFIXES)


def document_starts(path):
    """Returns where rows or `documents` of a file begin: `(D,)`, int64."""
    packed = tf.io.gfile.stat(path).length
    with _open(path) as array:
        size, shape = array.size, array.shape
        if len(shape) == 2:
            check_unpacked(path, 8 * shape[0], packed)
            return np.arange(0, size, shape[1] or 1)
    with _open(path, "documents") as array:
        if array is None:
            return np.zeros(1, np.int64)
        check_unpacked(path, 8 * array.size, packed)
        starts = np.concatenate([np.zeros(0, np.int64), *array.read()])
        starts = starts.astype(np.int64)
        is_ascending = (np.diff(starts, prepend=0, append=size) >= 0).all()
        if starts[:1].tolist() != [0] or not is_ascending:
            raise ValueError(
                f"`documents` that do not ascend from 0 to at most {size}: "
                f"{np.array2string(starts, threshold=6)}"
            )
    return starts


def read_ids(path, start=0, stop=None):
    """Yields ids `[start, stop)` of a file in arrays for a `Block` each."""
    with _open(path) as array:
        for ids in array.read(start, stop):
            wrong = np.flatnonzero((ids < 0) | (ids > MAX_ID))
            if len(wrong):
                raise ValueError(f"{ids[wrong[0]]} at {start + wrong[0]}")
            yield ids
            start += len(ids)


def split_ids(path):
    """Returns where train, valid and test of a file end, between documents."""
    documents = document_starts(path)
    with _open(path) as array:
        size = array.size
    places = held_out_places(size)
    if len(documents) > 1:
        ends = np.append(documents, size)
        places = ends[np.searchsorted(ends, places)].tolist()
    return [*places, size]


@dataclasses.dataclass(frozen=True)
class _Array:
    """Reads an array of integers from an open file, part by part."""

    file: object
    offset: int
    shape: tuple
    dtype: np.dtype

    @property
    def size(self):
        return math.prod(self.shape)

    def read(self, start=0, stop=None):
        """Yields items `[start, stop)` in arrays of up to `BLOCK_BYTES`."""
        stop = self.size if stop is None else stop
        count = max(1, corpus.BLOCK_BYTES // self.dtype.itemsize)
        self.file.seek(self.offset + start * self.dtype.itemsize)
        for first in range(start, stop, count):
            length = min(count, stop - first) * self.dtype.itemsize
            yield np.frombuffer(self.file.read(length), self.dtype)


@contextlib.contextmanager
def _open(path, entry="tokens"):
    """Opens an entry of a file; yields None if it has no `documents`."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open_checked(path, math.inf))
        try:
            length = tf.io.gfile.stat(path).length
            is_there = entry == "tokens"
            if path.lower().endswith(".npz"):
                archive = stack.enter_context(zipfile.ZipFile(file))
                is_there = is_there or f"{entry}.npy" in archive.namelist()
                if is_there:
                    member = archive.getinfo(f"{entry}.npy")
                    length = member.file_size
                    file = stack.enter_context(archive.open(member))
            yield _read_header(file, entry, length) if is_there else None
        except _DAMAGED as error:
            raise ValueError(
                f"{path} must have token ids, integers from 0 to {MAX_ID:,} of "
                "shape (n,), or (d, n) in row-major order for documents of "
                "equal length, as np.save(path, ids) or np.savez(path, "
                "tokens=ids, documents=starts) write them. Received: "
                f"{type(error).__name__}: {str(error)[:300]}"
            ) from error


def _read_header(file, entry, length):
    """Returns the `_Array` of an open file, after checks of its header."""
    shape, is_fortran, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
    array = _Array(file, file.tell(), shape, dtype)
    is_matrix = len(shape) == 2 and min(shape) >= 0
    is_matrix = is_matrix and entry == "tokens" and not is_fortran
    if dtype.kind not in "iu" or not (len(shape) == 1 or is_matrix):
        raise ValueError(
            f"`{entry}` of dtype {dtype}, shape {shape}"
            f"{', column-major' if is_fortran else ''}"
        )
    expected = array.offset + array.size * dtype.itemsize
    if expected != length:
        raise ValueError(
            f"`{entry}` of {length:,} bytes, and not {expected:,} as in its "
            "header: truncated or damaged"
        )
    return array
