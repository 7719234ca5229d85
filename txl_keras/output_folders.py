"""Folders that are written as a whole, or replaced."""

import contextlib
import os

from txl_keras import gfile
from txl_keras.checks import check_path
from txl_keras.checks import shown
from txl_keras.data.corpora.files import check_can_write
from txl_keras.data.corpora.files import is_remote
from txl_keras.data.corpora.files import remove_folder


def check_replaceable(name, path, what, is_ours):
    """Raises `ValueError` unless a folder may be written or replaced."""
    # `is_ours` takes names of files and returns whether they are `what`.
    if not gfile.exists(path):
        return
    names = sorted(gfile.listdir(path)) if gfile.isdir(path) else ["a file"]
    if names and not is_ours(names):
        raise ValueError(
            f"`{name}` must be new, empty, or {what}, which is replaced. "
            f"Received: {name}={path}, which holds {shown(names)}"
        )


def check_new(name, path):
    """Raises an error unless a new or empty folder can be written."""
    path = check_path(name, path)
    if gfile.isdir(path) and gfile.listdir(path):
        raise FileExistsError(
            f"`{name}` must be a new or empty folder. Received: {name}={path}"
        )
    check_can_write(name, path)


@contextlib.contextmanager
def replaced_when_complete(path, last=()):
    """Yields a new folder to write to, which replaces `path` at the end."""
    # In a bucket, the files named `last` are copied last.
    path = os.fspath(path)
    if not is_remote(path):
        path = os.path.abspath(path)  # `.` has no name to rename a folder to
    # Created in the same parent folder. Its name is not a number, so servers do
    # not load it as a version.
    parent, name = os.path.split(path.rstrip("/"))
    unfinished = os.path.join(parent, f"unfinished.{name}")
    remove_folder(unfinished)
    try:
        gfile.makedirs(unfinished)
        yield unfinished
        remove_folder(path)
        _move(unfinished, path, last)
    finally:
        remove_folder(unfinished)


def _move(source, target, last):
    if not is_remote(target):
        gfile.rename(source, target)
        return
    # Buckets have no folders to rename. First `assets`, which tell that the
    # folder is ours if this is killed.
    top, *others = sorted(gfile.walk(source))
    for folder, _, names in [*others, top]:
        new_folder = target + folder[len(source) :]
        gfile.makedirs(new_folder)
        for name in sorted(names, key=last.__contains__):
            gfile.copy(
                os.path.join(folder, name), os.path.join(new_folder, name)
            )
