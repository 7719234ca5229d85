"""Waits for the folder of a run while it is missing, as a disk may be."""

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
    end = time.monotonic() + WAIT_SECONDS
    while True:
        if _exists(path):
            try:
                return function()
            except (OSError, tf.errors.OpError):
                if _exists(path):
                    raise
        folder = os.path.dirname(path)
        if time.monotonic() >= end:
            raise OSError(
                f"`workdir` {folder} must stay where it is while a run writes "
                f"to it, but {path} has been missing for {WAIT_SECONDS} "
                "seconds. Bring it back and run the same command to resume."
            )
        message = "`workdir` %s is missing. The run goes on once it is back."
        logging.log_first_n(logging.WARNING, message, 1, folder)
        time.sleep(1)


def _exists(path):
    try:
        return tf.io.gfile.exists(path)
    except tf.errors.OpError:  # such as a stale file handle
        return False
