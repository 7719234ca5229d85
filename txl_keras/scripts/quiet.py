"""Imports TensorFlow and Keras without logs and optional packages.

If they are installed, TensorFlow Lite imports JAX, and Keras imports
scikit-learn. Both take a third of the start-up time, and no script needs the
parts that use them.

TensorFlow's log would hide our first lines. By default only fatal errors are
logged. Other log lines also come as exceptions, or are harmless, such as
"failed call to cuInit" without a GPU. The environment variable
TF_CPP_MIN_LOG_LEVEL sets another level; 0 shows all lines.

Ctrl-C during these seconds ends the process without a traceback.
"""

import contextlib
import os
import sys
import time

STARTED = time.monotonic()


@contextlib.contextmanager
def _without_log():
    """Drops lines that TensorFlow logs before it reads the log level."""
    try:
        stderr = os.dup(2)
    except OSError:  # it is closed
        yield
        return
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(stderr, 2)
        os.close(stderr)


@contextlib.contextmanager
def _without_packages(*names):
    """Lets imports of packages fail as if they were not installed."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def _show_error(kind, error, traceback):
    """Prints an uncaught error; exits without a traceback on Ctrl-C."""
    if issubclass(kind, KeyboardInterrupt):
        os._exit(130)
    sys.__excepthook__(kind, error, traceback)


sys.excepthook = _show_error
try:
    # The backend in Keras's own settings may be meant for notebooks.
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import txl_keras.needs_tensorflow  # noqa: F401
except ImportError as error:
    sys.exit(f"Error: {error}")
_shows_log = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") == "0"
with (
    contextlib.nullcontext() if _shows_log else _without_log(),
    _without_packages("jax", "sklearn"),
):
    import tensorflow  # noqa: F401

    import keras  # noqa: F401  isort: skip
