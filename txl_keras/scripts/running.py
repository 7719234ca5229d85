"""What all scripts in train/ share: how they stop."""

import concurrent.futures
import multiprocessing
import os
import sys

import tensorflow as tf
from absl import app
from absl import flags
from absl import logging

from txl_keras.training.stopping import EXIT_CODE

# What bad input and full machines raise; anything else is a bug, and its
# traceback is shown.
_USER_ERRORS = (
    ValueError,
    ImportError,
    OSError,
    RuntimeError,
    FloatingPointError,
    MemoryError,
    tf.errors.OpError,
)

# What the workers of a run see of one that ended.
_PEER_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)


def run(main):
    """Parses flags and runs `main`; an error of the user's is one message.

    `-v=1` shows the traceback too.

    Args:
        main: Function of the arguments that are no flags.
    """
    _set_verbosity()
    app.run(lambda argv: _run(main, argv))


def in_a_child(function, *arguments):
    """Calls a function in a process of its own, with the flags of this one.

    Args:
        function: Function of a module.
        *arguments: Its arguments; they and what it returns must pickle.

    Returns:
        What it returns; what it raises is raised here.
    """
    with concurrent.futures.ProcessPoolExecutor(
        max_workers=1, mp_context=multiprocessing.get_context("spawn")
    ) as child:
        return child.submit(_call, function, *arguments).result()


def _call(function, *arguments):
    # Spawning has imported the script, so the flags are defined.
    _set_verbosity()
    flags.FLAGS(sys.argv)
    return function(*arguments)


def _set_verbosity():
    # absl prints information by default, TensorFlow's own among it.
    logging.set_verbosity(logging.WARNING)


def _run(main, argv):
    if len(argv) > 1:
        sys.exit(f"Error: unexpected arguments {argv[1:]}; flags begin with --")
    try:
        main(argv)
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        sys.exit(130)
    except _USER_ERRORS as error:
        if logging.level_debug():
            raise
        if os.environ.get("TF_CONFIG") and isinstance(error, _PEER_ERRORS):
            print(
                "Error: another worker ended, or cannot be reached; its own "
                "log says why. The same command on all workers goes on. "
                f"TensorFlow said: {error}",
                file=sys.stderr,
            )
            sys.exit(EXIT_CODE)
        sys.exit(f"Error: {error}")
