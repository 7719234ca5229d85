"""Functions of `tf.io.gfile` that do not need TensorFlow for local paths."""

import functools
import glob as local_glob
import os
import shutil
import sys
import types

from txl_keras.backend import tf


def errors():
    """Returns the errors that functions of this module raise."""
    # If nothing has imported TensorFlow yet, it has raised none.
    is_imported = sys.modules.get("tensorflow")
    return OSError, *([tf.errors.OpError] if is_imported else [])


def _or_of_tensorflow(name, local):
    """Returns a function that calls `local` if all of its paths are local."""

    def call(*paths, **options):
        is_local = not any("://" in os.fspath(path) for path in paths)
        function = local if is_local else getattr(tf.io.gfile, name)
        return function(*paths, **options)

    return call


def _rename(source, target, overwrite=False):
    (os.replace if overwrite else os.rename)(source, target)


def _stat(path):
    found = os.stat(path)
    return types.SimpleNamespace(
        length=found.st_size, mtime_nsec=found.st_mtime_ns
    )


_makedirs = functools.partial(os.makedirs, exist_ok=True)

GFile = _or_of_tensorflow("GFile", open)
copy = _or_of_tensorflow("copy", shutil.copyfile)
exists = _or_of_tensorflow("exists", os.path.exists)
glob = _or_of_tensorflow("glob", local_glob.glob)
isdir = _or_of_tensorflow("isdir", os.path.isdir)
listdir = _or_of_tensorflow("listdir", os.listdir)
makedirs = _or_of_tensorflow("makedirs", _makedirs)
remove = _or_of_tensorflow("remove", os.remove)
rename = _or_of_tensorflow("rename", _rename)
rmtree = _or_of_tensorflow("rmtree", shutil.rmtree)
stat = _or_of_tensorflow("stat", _stat)
walk = _or_of_tensorflow("walk", os.walk)
