"""Imports TensorFlow and Keras without logs and optional packages.

If they are installed, TensorFlow Lite imports JAX, and Keras imports
Matplotlib and scikit-learn. They take a third of the start-up time, and no
script needs the parts that use them.

Ctrl-C during these seconds ends the process without a traceback.
"""

import contextlib
import os
import sys
import time

from txl_keras.lazy import without_tensorflow_log

STARTED = time.monotonic()


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
with (
    without_tensorflow_log(),
    _without_packages("jax", "matplotlib", "sklearn"),
):
    import tensorflow  # noqa: F401

    import keras  # noqa: F401  isort: skip
