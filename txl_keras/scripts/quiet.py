"""Imports TensorFlow and Keras, without a log and without optional packages.

If JAX is installed, TensorFlow Lite imports it, and so does Keras with
scikit-learn, which is a third of the time of a start. No script needs the parts
that use them.

Ctrl-C, which may come during these seconds, ends without a traceback.
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
    """Prints an error that nobody caught, and nothing for Ctrl-C."""
    if issubclass(kind, KeyboardInterrupt):
        os._exit(130)
    sys.__excepthook__(kind, error, traceback)


sys.excepthook = _show_error
try:
    # That of Keras's own settings may be for notebooks.
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import txl_keras.needs_tensorflow  # noqa: F401
except ImportError as error:
    sys.exit(f"Error: {error}")
with without_tensorflow_log(), _without_packages("jax", "sklearn"):
    import tensorflow  # noqa: F401

    import keras  # noqa: F401  isort: skip
