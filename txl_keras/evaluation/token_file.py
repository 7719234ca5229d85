"""A file with one number per token."""

import contextlib
import os

import numpy as np

from txl_keras.data.corpora.files import is_remote
from txl_keras.data.corpora.files import renamed_when_complete


@contextlib.contextmanager
def create_token_file(path, num_tokens):
    """Yields a map of a new `.npy` file with one float32 per token, all NaN."""
    # The file gets its name when the context ends without an error, so an
    # incomplete file never appears under that name.
    path = os.path.expanduser(path)
    if is_remote(path):
        raise ValueError(
            "`token_nll` must be a local file, because its numbers are "
            f"not written in order. Received: {path}"
        )
    if os.path.isfile(path):
        magic = np.lib.format.MAGIC_PREFIX
        with open(path, "rb") as file:
            if file.read(len(magic)) != magic:
                raise ValueError(
                    "`token_nll` must be a new file, or one of NumPy to "
                    f"replace. Received: {path}, which is another file"
                )
    with renamed_when_complete(path) as unfinished:
        try:
            if os.path.isdir(path):
                raise IsADirectoryError(None, "it is a folder")
            # Written, because writing to a map of a sparse file on a full disk
            # is fatal; one by one from a single number, whatever the size.
            with open(unfinished, "wb") as file:
                np.save(file, np.broadcast_to(np.float32(np.nan), num_tokens))
        except OSError as error:
            raise OSError(
                "`token_nll` must be a file that can be written, with disk "
                f"space for {4 * num_tokens:,} bytes. Received: {path} "
                f"({error.strerror or error})"
            ) from error
        array = np.lib.format.open_memmap(unfinished, mode="r+")
        yield array
        array.flush()
