"""Arrays of token ids: `.npy` and `.npz` files, on disk or in a bucket."""

import functools
import math
import zipfile

import numpy as np

from txl_keras import gfile
from txl_keras.data.corpora.files import check_unpacked
from txl_keras.data.corpora.files import is_remote
from txl_keras.json_files import open_checked

SUFFIXES = (".npy", ".npz")
MAX_ID = 2**31 - 2  # so that ids and the vocabulary size fit in int32


def is_id_file(path):
    """Returns whether a file has the name of a file of ids."""
    return path.lower().endswith(SUFFIXES)


# Only one, because the file of the next text may take as much memory.
@functools.lru_cache(maxsize=1)
def open_ids(path, version=None):
    """Returns the ids of a file, `(n,)`, and where documents begin, `(D,)`."""
    # A local `.npy` file is mapped into memory, others are read. Ids are
    # checked block by block. `version` distinguishes files of the same path.
    with open_checked(path, math.inf) as file:
        try:
            if path.lower().endswith(".npz"):
                with zipfile.ZipFile(file) as archive:
                    sizes = [x.file_size for x in archive.infolist()]
                check_unpacked(path, sum(sizes), gfile.stat(path).length)
                file.seek(0)
                with np.load(file) as arrays:
                    tokens = arrays["tokens"]
                    starts = arrays.get("documents", np.zeros(1, np.int64))
            else:
                remote = is_remote(path)
                tokens = np.load(file) if remote else np.load(path, "r")
                starts = np.zeros(1, np.int64)
            if tokens.ndim == 2:
                starts = np.arange(0, tokens.size, tokens.shape[1] or 1)
                tokens = tokens.reshape(-1)
            for array in (tokens, starts):
                if array.dtype.kind not in "iu" or array.ndim != 1:
                    raise ValueError(
                        f"dtype {array.dtype}, shape {array.shape}"
                    )
            ends = np.append(starts, len(tokens)).astype(np.int64)
            if ends[0] != 0 or np.diff(ends).min() < 0:
                raise ValueError(f"documents {starts}")
        # Damaged files raise errors of NumPy, zipfile, zlib and tokenize.
        except Exception as error:  # noqa: BLE001
            raise _error(path, f"{type(error).__name__}: {error}") from error
    return tokens, ends[:-1]


def check_ids(path, ids, start):
    """Raises ValueError if ids are negative or too large."""
    wrong = np.flatnonzero((ids < 0) | (ids > MAX_ID))
    if len(wrong):
        raise _error(path, f"{ids[wrong[0]]} at {start + wrong[0]}")


def _error(path, received):
    return ValueError(
        f"{path} must have token ids, integers from 0 to {MAX_ID:,} of shape "
        "(n,), or (d, n) for documents of equal length, as np.save(path, ids) "
        "or np.savez(path, tokens=ids, documents=starts) write them, with "
        f"`documents` that ascend from 0. Received: {received[:300]}"
    )
