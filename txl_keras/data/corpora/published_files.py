"""Finds the published files of a corpus and reads the texts in them."""

import contextlib
import os
import tarfile
import typing
import zipfile

import tensorflow as tf

from txl_keras.data.corpora.files import DAMAGED
from txl_keras.data.corpora.files import chunks_of
from txl_keras.data.corpora.files import damaged_file_error
from txl_keras.data.corpora.files import is_file
from txl_keras.data.corpora.files import open_file


class Source(typing.NamedTuple):
    """Locates a text: a file, or the member `member` of an archive."""

    path: str
    member: str | None = None

    def __str__(self):
        return self.path if self.member is None else "/".join(self)


def find_sources(folder, archive, members):
    """Returns the `Source` per split of files, `.gz` or an archive, or None."""
    # Files may also have just the last part of a member's name.
    for suffix in ("", ".gz"):
        sources = {
            split: Source(os.path.join(folder, name + suffix))
            for split, name in members.items()
        }
        if all(is_file(source.path) for source in sources.values()):
            return sources
    path = os.path.join(folder, archive)
    if is_file(path):
        return sources_in_archive(path, members)
    bare = {split: os.path.basename(name) for split, name in members.items()}
    return None if bare == members else find_sources(folder, archive, bare)


def sources_in_archive(path, members):
    """Returns the `Source` of each split in an archive."""
    return {split: Source(path, name) for split, name in members.items()}


def read_chunks(source, start=0, stop=None):
    """Yields bytes `[start, stop)` of a `Source` in chunks up to 1 MiB."""
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
        raise damaged_file_error(source.path, error) from error
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
