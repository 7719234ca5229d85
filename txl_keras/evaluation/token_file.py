"""A file with a number for every token."""

import contextlib
import os
import uuid

import numpy as np

from txl_keras.data.corpora.files import is_remote

_BLOCK = 1 << 20  # numbers written at once


@contextlib.contextmanager
def create_token_file(path, num_tokens):
    """Makes a `.npy` file with a float32 for every token, to be filled.

    A context: the file takes its name at the end of it, so that it is there
    whole or, after an error, not at all. All of its room on the disk is taken
    at the beginning.

    Args:
        path: String, local.
        num_tokens: Integer.

    Yields:
        `np.memmap` of shape `(num_tokens,)`, all NaN: it takes next to no
        memory, whatever its size.

    Raises:
        ValueError: If the path is not local.
        OSError: If the file cannot be written, or the disk is full.

    Example:

    >>> with create_token_file("nll.npy", 5) as nll:
    ...     nll[1:] = 2.5
    >>> np.load("nll.npy").tolist()
    [nan, 2.5, 2.5, 2.5, 2.5]
    """
    path = os.path.expanduser(path)
    if is_remote(path):
        raise ValueError(
            "`token_nll_path` must be a local file, to be written here and "
            f"there. Received: {path}"
        )
    unfinished = f"{path}.{uuid.uuid4().hex}.incomplete"
    try:
        _write_empty(path, unfinished, num_tokens)
        array = np.lib.format.open_memmap(unfinished, mode="r+")
        yield array
        array.flush()
        os.replace(unfinished, path)
    finally:
        with contextlib.suppress(OSError):
            os.remove(unfinished)


def _write_empty(path, unfinished, num_tokens):
    """Writes NaN, not holes: where no room is left, a map ends the program."""
    header = {
        "descr": "<f4",
        "fortran_order": False,
        "shape": (num_tokens,),
    }
    try:
        if os.path.isdir(path):
            raise IsADirectoryError(None, "it is a folder")
        with open(unfinished, "wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, num_tokens, _BLOCK):
                size = min(_BLOCK, num_tokens - start)
                file.write(np.full(size, np.nan, "<f4").tobytes())
    except OSError as error:
        raise OSError(
            f"`token_nll_path` must be a file that can be written, with room "
            f"for {4 * num_tokens:,} bytes. Received: {path} "
            f"({error.strerror})"
        ) from error
