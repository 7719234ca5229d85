"""Reads text in chunks: plain or gzip, on disk or in a bucket."""

import codecs
import contextlib
import gzip
import os
import sys
import zlib

import tensorflow as tf

CHUNK_BYTES = 1 << 20
# What damaged gzip data raises.
DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)


@contextlib.contextmanager
def open_file(path):
    """Opens a file for reading bytes, unpacked if its name ends in `.gz`.

    Args:
        path: String: a local path, or `gs://` and what else `tf.io.gfile`
            knows.

    Yields:
        An object with `read(size)`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the gzip data is truncated or damaged.
    """
    if not tf.io.gfile.exists(path):
        raise FileNotFoundError(f"There is no file {path}.")
    with tf.io.gfile.GFile(path, "rb") as file:
        if not path.lower().endswith(".gz"):
            yield file
            return
        try:
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield unpacked
        except DAMAGED as error:
            raise damaged(path, error) from error


def write_text(text, path):
    """Writes a file that is never seen half written.

    Args:
        text: String.
        path: String, local or `gs://`.
    """
    # Renamed once complete: a stopped program leaves no half of it.
    with tf.io.gfile.GFile(path + ".tmp", "w") as file:
        file.write(text)
    tf.io.gfile.rename(path + ".tmp", path, overwrite=True)


def damaged(path, error):
    """The error of a file that cannot be unpacked."""
    return ValueError(
        f"{path} is truncated or damaged ({error}). Delete it and fetch it "
        "again."
    )


def read_bytes(path, start=0, stop=None):
    """Yields a file, or the part of it from byte `start` to `stop`.

    Args:
        path: String, as for `open_file`.
        start: Integer.
        stop: Optional integer.

    Yields:
        `bytes` of at most 1 MiB.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If gzip data is damaged.
    """
    with open_file(path) as file:
        yield from chunks_of(file, start, stop)


def chunks_of(file, start=0, stop=None):
    """Yields an open file as `read_bytes` does: what is packed, unpacked."""
    file.seek(start)  # what is packed is read to get there
    left = sys.maxsize if stop is None else stop - start
    while chunk := file.read(min(CHUNK_BYTES, left)):
        yield chunk
        left -= len(chunk)


def read_text(path, start=0, stop=None):
    """As `read_bytes`, of a text in UTF-8 from where a character begins.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not UTF-8, with the offset of the first byte that
            is not, if it ends before `stop`, or if gzip data is damaged.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = start
    for chunk in read_bytes(path, start, stop):
        _check_utf8(decoder, chunk, path, offset)
        # Windows begins files with a mark that is no text.
        yield chunk if offset else chunk.removeprefix(codecs.BOM_UTF8)
        offset += len(chunk)
    if stop is not None and offset < stop:
        raise ValueError(
            f"{path} must have at least {stop} bytes, as it had before it was "
            f"read. Received: {offset} bytes. Run the same command again when "
            "nothing writes to it."
        )
    _check_utf8(decoder, b"", path, offset)


def text_size(path):
    """Bytes of a text; of `.gz` once unpacked, which reads all of it."""
    if not path.lower().endswith(".gz"):
        return tf.io.gfile.stat(path).length
    return sum(map(len, read_bytes(path)))


def rough_size(path):
    """As `text_size`, without reading a `.gz`: by what its end says.

    Of more than 4 GiB the end does not tell; of such it is the packed size.
    Nor of several members, and the last is often empty (`bgzip`): so where it
    says 0 the text is read.
    """
    try:
        size = tf.io.gfile.stat(path).length
    except tf.errors.OpError as error:
        raise OSError(
            f"{path} must be a file that can be read: remove it if it is a "
            f"broken link. Received: {error.message}"
        ) from error
    if not path.lower().endswith(".gz") or size < 4 or size > 1 << 31:
        return size
    with tf.io.gfile.GFile(path, "rb") as file:
        file.seek(size - 4)
        unpacked = int.from_bytes(file.read(4), "little")
    return unpacked or text_size(path)


def is_remote(path):
    """Whether a path is in a bucket, or wherever else `tf.io.gfile` reads."""
    return "://" in path


def modification_time(path):
    """When a file was last written, in nanoseconds."""
    if is_remote(path):
        return tf.io.gfile.stat(path).mtime_nsec
    return os.stat(path).st_mtime_ns  # `gfile` has whole seconds only


def _check_utf8(decoder, chunk, path, offset):
    held, _ = decoder.getstate()  # a character's first bytes, from before
    try:
        decoder.decode(chunk, final=not chunk)
    except UnicodeDecodeError as error:
        place = offset - len(held) + error.start
        raise ValueError(
            f"{path} is not UTF-8: byte {error.object[error.start]:#04x} at "
            f"offset {place}. Leave the file out if it is no text, or convert "
            "it, for example with `iconv -f latin1 -t utf-8 OLD > NEW`."
        ) from error
