"""Reads text in chunks, plain or gzip, and writes files atomically."""

import codecs
import contextlib
import gzip
import hashlib
import itertools
import json
import math
import os
import sys
import uuid
import zlib

from txl_keras import gfile
from txl_keras.json_files import open_checked

CHUNK_BYTES = 1 << 20
MAX_DOCUMENT_BYTES = 1 << 30  # between separators: must fit in memory
# gzip packs prose 3 to 1, logs 10 to 1 and very similar lines 100 to 1, but a
# bomb 1000 to 1. Up to `_FREE_BYTES` are always allowed, for small files.
_MAX_RATIO = 200
_FREE_BYTES = 8 << 20


@contextlib.contextmanager
def _open_file(path):
    """Opens a file; decompresses it if its name ends in `.gz`."""
    try:
        with open_checked(path, math.inf) as file:
            is_packed = path.lower().endswith(".gz")
            yield _GzipFile(fileobj=file) if is_packed else file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is truncated or damaged ({error}). Delete it and download "
            "it again."
        ) from error


class _GzipFile(gzip.GzipFile):
    """Decompresses a file; refuses one that unpacks to far too much."""

    def read(self, size=-1):
        data = super().read(size)
        check_unpacked(self.name, self.tell(), self.fileobj.tell())
        return data


def check_unpacked(path, size, packed):
    """Raises ValueError if `packed` bytes unpack to far too many bytes."""
    if size > _MAX_RATIO * packed + _FREE_BYTES:
        raise ValueError(
            f"{path} must not unpack to more than {_MAX_RATIO} times its size, "
            "like files that are made to fill a memory or a disk. If you trust "
            "the file, unpack it yourself. Received: at least "
            f"{size:,} bytes from {packed:,}"
        )


@contextlib.contextmanager
def renamed_when_complete(path):
    """Yields the path of a temporary file, which becomes `path` at the end."""
    # So readers never see an incomplete file, and errors do not leave one.
    # Only this call writes to the name, and it cannot be a stranger's link.
    name = f"{uuid.uuid4().hex}.tmp"
    unfinished = os.path.join(os.path.dirname(path), name)
    try:
        yield unfinished
        gfile.rename(unfinished, path, overwrite=True)
    finally:
        with contextlib.suppress(*gfile.errors()):
            gfile.remove(unfinished)


@contextlib.contextmanager
def written_when_complete(path):
    """Yields a binary file to write to, which becomes `path` at the end."""
    with (
        renamed_when_complete(path) as unfinished,
        gfile.GFile(unfinished, "wb") as file,
    ):
        yield file


def write_text(text, path):
    """Writes a file atomically: readers never see an incomplete one."""
    with written_when_complete(path) as file:
        file.write(text.encode())


def check_can_write(name, folder):
    """Checks that files can be written to the folder `name`; leaves none."""
    try:
        is_new = not gfile.exists(folder)
        gfile.makedirs(folder)
        path = os.path.join(folder, f"{uuid.uuid4().hex}.tmp")
        write_text("", path)
        gfile.remove(path)
    except gfile.errors() as error:
        raise OSError(
            f"`{name}` must be a folder that can be written to. "
            f"Received: {name}={folder} ({error})"
        ) from error
    if is_new:
        remove_if_empty(folder)


def remove_if_empty(folder):
    """Removes a folder if it exists and is empty."""
    if gfile.isdir(folder) and not gfile.listdir(folder):
        gfile.rmtree(folder)


def remove_link(path):
    """Removes a link, because writing to it would change another file."""
    # A stranger's folder may have a link in place of a temporary file.
    if os.path.islink(path):
        os.remove(path)


def remove_folder(path):
    """Removes a folder if it exists; if it is a link, removes only the link."""
    remove_link(path)
    if gfile.exists(path):
        gfile.rmtree(path)


def read_bytes(path, start=0, stop=None):
    """Yields (decompressed) bytes `[start, stop)` in chunks up to 1 MiB."""
    with _open_file(path) as file:
        yield from _chunks_of(file, start, stop)


def _chunks_of(file, start=0, stop=None):
    """Yields bytes `[start, stop)` of an open file in chunks up to 1 MiB."""
    file.seek(start)  # gzip reads and discards everything before `start`
    left = sys.maxsize if stop is None else stop - start
    while chunk := file.read(min(CHUNK_BYTES, left)):
        yield chunk
        left -= len(chunk)


def json_digest(content):
    """Returns the hexadecimal SHA-256 of a JSON value."""
    return digest_of([json.dumps(content).encode()])


def file_digest(*paths):
    """Returns the SHA-256 of files together, without decompressing them."""

    def chunks():
        for path in paths:
            with open_checked(path, math.inf) as file:
                yield from _chunks_of(file)

    return digest_of(chunks())


def digest_of(chunks, algorithm="sha256"):
    """Returns the hexadecimal digest of `bytes` in chunks."""
    digest = hashlib.new(algorithm)
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def read_text(path, start=0, stop=None):
    """Yields a text like `read_bytes`, with the checks of `checked_text`."""
    # `start` must be the first byte of a character.
    return checked_text(read_bytes(path, start, stop), path, start)


def checked_text(chunks, path, offset=0):
    """Yields the chunks of a text, after checks that they are valid UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for chunk in itertools.chain(chunks, [b""]):
        try:
            text = decoder.decode(chunk, final=not chunk)
            reason = "has a zero byte" if "\0" in text else None
        except UnicodeDecodeError as error:
            reason = f"is not text in UTF-8: {error.reason}"
        if reason:
            raise ValueError(
                f"{path} {reason} after byte {offset}. Unpack it, convert it "
                "with `iconv -f ENCODING -t UTF-8 OLD > NEW`, or remove it."
            )
        if chunk:
            # Windows programs begin files with a byte order mark.
            yield chunk if offset else chunk.removeprefix(codecs.BOM_UTF8)
        offset += len(chunk)


def read_between(
    path, separator, start=0, stop=None, max_bytes=MAX_DOCUMENT_BYTES
):
    """Yields the texts between separators, as `bytes`."""
    rest = bytearray()
    for chunk in read_text(path, start, stop):
        searched = max(0, len(rest) - len(separator) + 1)
        rest += chunk
        if rest.find(separator, searched) >= 0:
            *texts, last = bytes(rest).split(separator)
            yield from texts
            rest = bytearray(last)
        elif len(rest) > max_bytes:
            raise ValueError(
                f"{path} must have a separator within every {max_bytes:,} "
                f"bytes. Received: {separator!r}, which does not occur in so "
                "many bytes"
            )
    if rest:
        yield bytes(rest)


def is_file(path):
    """Returns whether a path is a file (and not a folder)."""
    return gfile.exists(path) and not gfile.isdir(path)


def is_remote(path):
    """Returns whether a path is remote, such as `gs://...`."""
    return "://" in path


def data_folder(data_dir=None):
    """Returns the folder for downloaded and prepared data, without `~`."""
    data_dir = data_dir or os.environ.get("TFDS_DATA_DIR")
    return os.path.expanduser(data_dir or "~/tensorflow_datasets")


def data_dir_error(data_dir, error):
    """Returns the error for a data folder that cannot be written to."""
    return ValueError(
        "`data_dir` must be a folder that can be written to (--data_dir on the "
        "command line); pass a read-only folder with files of the corpus as "
        "`manual_dir` (--manual_dir). "
        f"Received: data_dir={data_dir!r} ({error})"
    )


def check_manual_dir(manual_dir):
    """Returns the folder without `~`; raises if it has no files."""
    if manual_dir is None:
        return None
    manual_dir = os.path.expanduser(manual_dir)
    if not gfile.isdir(manual_dir) or not gfile.listdir(manual_dir):
        raise ValueError(
            "`manual_dir` must be a folder with files of the corpus. "
            f"Received: manual_dir={manual_dir!r}"
        )
    return manual_dir


def absolute_path(path):
    """Returns the absolute path, without `~`; remote paths are unchanged."""
    if is_remote(path):
        return path
    return os.path.abspath(os.path.expanduser(path))


def version_of(path):
    """Returns the size of a file and when it was last written, in ns."""
    found = gfile.stat(path)
    return found.length, found.mtime_nsec
