"""Reads text from plain, gzip and zip files, with errors that name the file."""

import gzip
import pathlib
import zipfile
import zlib


def read_file(path):
    """Returns the content of a file, unpacked if its name ends in `.gz`.

    Args:
        path: String or `pathlib.Path`.

    Returns:
        `bytes`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the gzip data is truncated or damaged.
    """
    path = pathlib.Path(path)
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path) as file:
            return file.read()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(path, error) from error


def read_data_file(data_dir, name, source):
    """Returns the content of `name`, `name.gz` or `name.zip` in a folder.

    Args:
        data_dir: String or `pathlib.Path`, the folder, or None.
        name: String. File name without suffix, and the name inside the zip.
        source: String. Where the file is published, for the error message.

    Returns:
        `bytes`.

    Raises:
        ValueError: If `data_dir` is None or the file is damaged.
        FileNotFoundError: If the folder holds none of the three files.
    """
    if data_dir is None:
        raise ValueError(
            f"`data_dir` must be the folder that holds {name} (--data_dir on "
            f"the command line); the file is published at {source}. "
            "Received: data_dir=None"
        )
    folder = pathlib.Path(data_dir).expanduser()
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return read_file(path)
    path = folder / f"{name}.zip"
    if path.is_file():
        return _read_zip(path, name)
    raise FileNotFoundError(
        f"`data_dir` must hold {name}, {name}.gz or {name}.zip. Fetch {source} "
        f"and put it in that folder. Received: data_dir={str(data_dir)!r}"
    )


def _read_zip(path, member):
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read(member)
    except KeyError as error:
        raise ValueError(f"{path} must contain a file '{member}'.") from error
    except (EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise _damaged(path, error) from error


def _damaged(path, error):
    return ValueError(
        f"{path} is truncated or damaged ({error}). Delete it and fetch it "
        "again."
    )
