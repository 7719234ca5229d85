"""Finds the published files of a corpus and reads the texts in them."""

import contextlib
import hashlib
import os
import tarfile
import typing
import zipfile

import tensorflow as tf

from txl_keras.data.corpora.files import DAMAGED
from txl_keras.data.corpora.files import chunks_of
from txl_keras.data.corpora.files import damaged
from txl_keras.data.corpora.files import open_file


class Source(typing.NamedTuple):
    """Where a text lies.

    Args:
        path: String, a file.
        member: Optional string, the name inside if the file is an archive.
    """

    path: str
    member: str | None = None

    def __str__(self):
        return self.path if self.member is None else "/".join(self)


def find_sources(folder, archive, members):
    """Finds the texts of a corpus in a folder, packed or not.

    Args:
        folder: String.
        archive: String, name of a `.zip` or `.tgz` file.
        members: Dict of split to the name of its text in the archive. Its last
            part will do, too, and either with `.gz`.

    Returns:
        Dict of split to `Source`, or None if a text is missing.
    """
    for suffix in ("", ".gz"):
        sources = {
            split: Source(os.path.join(folder, name + suffix))
            for split, name in members.items()
        }
        if all(_is_file(source.path) for source in sources.values()):
            return sources
    path = os.path.join(folder, archive)
    if _is_file(path):
        return sources_in_archive(path, members)
    bare = {split: os.path.basename(name) for split, name in members.items()}
    return None if bare == members else find_sources(folder, archive, bare)


def sources_in_archive(path, members):
    return {split: Source(path, name) for split, name in members.items()}


def read_chunks(source, start=0, stop=None):
    """Yields a text, or the part from byte `start` to `stop`.

    Args:
        source: A `Source`.
        start: Integer.
        stop: Optional integer.

    Yields:
        `bytes` of at most 1 MiB, cut anywhere.

    Raises:
        ValueError: If the file is damaged or its archive lacks the text.
    """
    with _open_source(source) as file:
        yield from chunks_of(file, start, stop)


def read_lines(source):
    """Yields the lines of a `Source`, as `bytes` with their newlines."""
    rest = b""
    for chunk in read_chunks(source):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line + b"\n"
    if rest:
        yield rest


def file_digest(path, algorithm):
    """Returns the hexadecimal digest of a file, as it lies there."""
    digest = hashlib.new(algorithm)
    with tf.io.gfile.GFile(path, "rb") as file:
        for chunk in chunks_of(file):
            digest.update(chunk)
    return digest.hexdigest()


def _is_file(path):
    return tf.io.gfile.exists(path) and not tf.io.gfile.isdir(path)


@contextlib.contextmanager
def _open_source(source):
    if source.member is None:
        with open_file(source.path) as file:
            yield file
        return
    open_member = _open_zip if source.path.endswith(".zip") else _open_tar
    try:
        with (
            tf.io.gfile.GFile(source.path, "rb") as archive,
            open_member(archive, source.member) as file,
        ):
            yield file
    except (*DAMAGED, zipfile.BadZipFile, tarfile.TarError) as error:
        raise damaged(source.path, error) from error
    except KeyError as error:
        raise ValueError(
            f"{source.path} must contain a file '{source.member}'."
        ) from error


@contextlib.contextmanager
def _open_zip(archive, member):
    with zipfile.ZipFile(archive) as unpacked, unpacked.open(member) as file:
        yield file


@contextlib.contextmanager
def _open_tar(archive, member):
    with tarfile.open(fileobj=archive, mode="r:gz") as unpacked:
        for info in unpacked:
            # Names may begin with `./`.
            if os.path.normpath(info.name) == member:
                yield unpacked.extractfile(info)
                return
    raise KeyError(member)
