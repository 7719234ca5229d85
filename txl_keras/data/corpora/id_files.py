"""The user's own token ids: `.npy` and `.npz` files, on disk or in a bucket."""

import contextlib
import dataclasses
import math
import tokenize
import zipfile
import zlib

import numpy as np
import tensorflow as tf

from txl_keras.data.corpora.corpus import BLOCK_BYTES
from txl_keras.data.corpora.corpus import SECTION_BYTES
from txl_keras.data.corpora.corpus import Block
from txl_keras.data.corpora.corpus import Corpus
from txl_keras.data.corpora.files import check_unpacked
from txl_keras.data.corpora.splitting import HELD_OUT_FRACTION
from txl_keras.data.corpora.splitting import grouped
from txl_keras.json_files import open_checked

ID_SUFFIXES = (".npy", ".npz")
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
    NotImplementedError,
    RuntimeError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
    tf.errors.InvalidArgumentError,
    tf.errors.OutOfRangeError,
)


class IdCorpus(Corpus):
    """Holds token ids in splits, which `IdTokenizer` takes as they are."""

    # The `parts` of each split are whole `.npy` or `.npz` files, or ids
    # `[start, stop)` of one. The pieces of a block are integer arrays.

    def num_bytes(self, split):
        return None  # those of `.npz` files are unknown

    def sections(self, split):
        groups = grouped(self._text(split).parts, SECTION_BYTES)
        return [IdSection(tuple(group)) for group in groups]

    def unknown_symbol_error(self, split, symbol, position):
        for part in self.splits[split].parts:
            stop = num_ids(part.path) if part.stop is None else part.stop
            if position < stop - part.start:
                break
            position -= stop - part.start
        return ValueError(
            f"{part.path} must have ids below the vocabulary size of the "
            "tokenizer. Give these ids a tokenizer of their own, or a larger "
            f"--vocabulary_size. Received: {symbol} at position "
            f"{part.start + position}"
        )


@dataclasses.dataclass(frozen=True)
class IdSection:
    """Reads the ids of some parts of files."""

    parts: tuple

    def blocks(self, size=BLOCK_BYTES):
        """Yields the ids in `Block`s of about `size` bytes."""
        for part in self.parts:
            documents = document_starts(part.path)
            start = part.start
            for ids in read_ids(part.path, part.start, part.stop, size):
                first, last = np.searchsorted(
                    documents, (start, start + len(ids))
                )
                inside = documents[first:last] - start
                is_start = start == part.start or 0 in inside[:1]
                pieces = np.split(ids, inside[inside > 0])
                yield Block(tuple(pieces), not is_start, amid_line=False)
                start += len(ids)


def is_id_file(path):
    """Returns whether a file is named as one of ids."""
    return path.lower().endswith(ID_SUFFIXES)


def num_ids(path):
    """Returns the number of ids in a file."""
    with _open(path) as array:
        return array.size


def document_starts(path):
    """Returns where rows or `documents` of a file begin: `(D,)`, int64."""
    with _open(path) as array:
        size, shape = array.size, array.shape
    if len(shape) == 2:
        _check_starts(path, shape[0])
        return np.arange(0, size, shape[1] or 1)
    if not _has_documents(path):
        return np.zeros(1, np.int64)
    with _open(path, "documents") as array:
        _check_starts(path, array.size)
        blocks = [
            np.zeros(0, np.int64),
            *array.read(0, array.size, BLOCK_BYTES),
        ]
    starts = np.concatenate(blocks).astype(np.int64)
    is_ascending = (np.diff(starts, prepend=0, append=size) >= 0).all()
    if starts[:1].tolist() != [0] or not is_ascending:
        raise ValueError(
            f"{path}: `documents` must be the positions in `tokens` at which "
            f"documents begin, ascending from 0 to at most {size}. Received: "
            f"{np.array2string(starts, threshold=6)}"
        )
    return starts


def _check_starts(path, number):
    """Checks that the starts of documents, which are kept, fit in memory."""
    check_unpacked(path, 8 * number, tf.io.gfile.stat(path).length)


def read_ids(path, start=0, stop=None, size=BLOCK_BYTES):
    """Yields ids `[start, stop)` of a file in arrays of up to `size` bytes."""
    with _open(path) as array:
        for ids in array.read(
            start, array.size if stop is None else stop, size
        ):
            wrong = np.flatnonzero((ids < 0) | (ids > MAX_ID))
            if len(wrong):
                raise ValueError(
                    f"{path} must have ids from 0 to {MAX_ID:,}. Received: "
                    f"{ids[wrong[0]]} at position {start + wrong[0]}"
                )
            yield ids
            start += len(ids)


def split_ids(path):
    """Cuts a file into train, valid and test, between documents if several."""
    documents, size = document_starts(path), num_ids(path)
    first, second = (
        int(size * (1 - part * HELD_OUT_FRACTION)) for part in (2, 1)
    )
    if len(documents) > 1:
        ends = np.append(documents, size)
        first, second = ends[np.searchsorted(ends, (first, second))].tolist()
    return {
        "train": (0, first),
        "valid": (first, second),
        "test": (second, size),
    }


@dataclasses.dataclass(frozen=True)
class _Array:
    """Reads an array of integers from an open file, part by part."""

    path: str
    file: object
    shape: tuple
    dtype: np.dtype
    offset: int

    @property
    def size(self):
        return math.prod(self.shape)

    def read(self, start, stop, size):
        """Yields items `[start, stop)` in arrays of at most `size` bytes."""
        count = max(1, size // self.dtype.itemsize)
        self.file.seek(self.offset + start * self.dtype.itemsize)
        for first in range(start, stop, count):
            length = min(count, stop - first) * self.dtype.itemsize
            try:
                ids = np.frombuffer(self.file.read(length), self.dtype)
            except _DAMAGED as error:
                raise _damaged_error(self.path, error) from error
            yield ids


@contextlib.contextmanager
def _open(path, entry="tokens"):
    """Opens the array of an `.npy` file, or an entry of an `.npz` file."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open_checked(path, math.inf))
        try:
            length = tf.io.gfile.stat(path).length
            if path.lower().endswith(".npz"):
                archive = stack.enter_context(zipfile.ZipFile(file))
                member = archive.getinfo(f"{entry}.npy")
                length = member.file_size
                file = stack.enter_context(archive.open(member))
            version = np.lib.format.read_magic(file)
            shape, is_fortran, dtype = _HEADERS[version](file)
        except _DAMAGED as error:
            raise _damaged_error(path, error) from error
        array = _Array(path, file, shape, dtype, file.tell())
        _check(array, entry, is_fortran, length)
        yield array


def _has_documents(path):
    if not path.lower().endswith(".npz"):
        return False
    with (
        open_checked(path, math.inf) as file,
        zipfile.ZipFile(file) as archive,
    ):
        return "documents.npy" in archive.namelist()


def _check(array, entry, is_fortran, length):
    name = f"{array.path}: `{entry}`"
    is_matrix = len(array.shape) == 2 and min(array.shape) >= 0
    is_matrix = is_matrix and entry == "tokens" and not is_fortran
    if array.dtype.kind not in "iu" or not (len(array.shape) == 1 or is_matrix):
        raise ValueError(
            f"{name} must be an array of integers of shape (n,), or of tokens "
            "in documents of equal length (d, n), in row-major order. "
            f"Received: dtype {array.dtype}, shape {array.shape}"
            f"{', column-major' if is_fortran else ''}"
        )
    expected = array.offset + array.size * array.dtype.itemsize
    if expected != length:
        raise ValueError(
            f"{name} must have {expected:,} bytes, by its header: it is "
            f"truncated or damaged. Received: {length:,} bytes"
        )


def _damaged_error(path, error):
    return ValueError(
        f"{path} must be a file of token ids, as np.save(path, ids) or "
        "np.savez(path, tokens=ids, documents=starts) write it. Received: "
        f"{type(error).__name__}: {str(error)[:300]}"
    )
