"""Waits for the folder of a run while it is missing.

A disk in the network may be gone for seconds. What is written meanwhile would
go to the disk below it, and be hidden once it is back.
"""

import os
import time

import tensorflow as tf
from absl import logging

WAIT_SECONDS = 300


def when_present(path, function):
    """Returns `function()`, called once the file `path` exists."""
    # The file shows that the folder is the right one, not an empty place where
    # it is to be mounted. If `function` fails and the file is missing, it is
    # called again, so it must not matter how far it came.
    while True:
        _wait_for(path)
        try:
            return function()
        except (OSError, tf.errors.OpError):
            if _exists(path):
                raise


def _wait_for(path):
    if _exists(path):
        return
    folder = os.path.dirname(path)
    logging.warning(
        "`workdir` %s is missing. The run goes on once it is back; it ends if "
        "that takes more than %d seconds.",
        folder,
        WAIT_SECONDS,
    )
    end = time.monotonic() + WAIT_SECONDS
    while not _exists(path):
        if time.monotonic() > end:
            raise OSError(
                f"`workdir` {folder} must stay where it is while a run writes "
                f"to it, but {path} has been missing for {WAIT_SECONDS} "
                "seconds. Bring the folder back and run the same command to "
                "resume."
            )
        time.sleep(1)


def _exists(path):
    try:
        return tf.io.gfile.exists(path)
    except tf.errors.OpError:  # such as a stale file handle
        return False
