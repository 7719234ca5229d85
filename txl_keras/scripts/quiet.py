"""Imports TensorFlow without its log, which hides our first lines.

By default only fatal errors are logged: the others also come as exceptions, or
are harmless, such as "failed call to cuInit" without a GPU. The environment
variable TF_CPP_MIN_LOG_LEVEL sets another level, and 0 shows all lines.
"""

import contextlib
import os
import re
import sys
import tempfile

_LOG_LINE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog"
    rb"|[IWE]\d{4} \d\d:\d\d"
    rb"|To enable the following instructions: "
)


@contextlib.contextmanager
def _without_log():
    """Leaves out lines that TensorFlow logs before it reads the level."""
    try:
        stderr = os.dup(2)
    except OSError:  # it is closed
        yield
        return
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            file.seek(0)
            for line in file:
                if not _LOG_LINE.match(line):
                    os.write(2, line)


if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") != "0":
    with _without_log():
        import tensorflow  # noqa: F401
