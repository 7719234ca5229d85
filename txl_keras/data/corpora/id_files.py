"""Arrays of token ids: `.npy` and `.npz` files, on disk or in a bucket."""

import math
import zipfile

import numpy as np

from txl_keras.data.corpora.files import check_unpacked
from txl_keras.data.corpora.files import is_remote
from txl_keras.json_files import open_checked

SUFFIXES = (".npy", ".npz")


def is_id_file(path):
    """Returns whether a file is named as one of ids."""
    return path.lower().endswith(SUFFIXES)


def open_ids(path):
    """Returns the ids of a file, `(n,)`, and where documents begin, `(D,)`."""
    # A local `.npy` file is mapped into memory, others are read.
    with open_checked(path, math.inf) as file:
        try:
            if path.lower().endswith(".npz"):
                with zipfile.ZipFile(file) as archive:
                    size = sum(x.file_size for x in archive.infolist())
                check_unpacked(path, size, file.size())
                file.seek(0)
            found = np.load(file) if is_remote(path) else np.load(path, "r")
            tokens, starts = found, np.zeros(1, np.int64)
            if isinstance(found, np.lib.npyio.NpzFile):
                tokens, starts = found["tokens"], found.get("documents", starts)
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
            raise ValueError(
                f"{path} must have token ids, integers from 0 on of shape (n,),"
                " or (d, n) for documents of equal length, as np.save(path, "
                "ids) or np.savez(path, tokens=ids, documents=starts) write "
                "them, with `documents` that ascend from 0. Received: "
                f"{type(error).__name__}: {error}"[:700]
            ) from error
    return tokens, ends[:-1]
