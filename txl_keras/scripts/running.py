"""What all scripts in train/ share: how they stop."""

import math
import multiprocessing
import os
import signal
import sys
import traceback

import tensorflow as tf
from absl import app
from absl import flags
from absl import logging

from txl_keras.training.host_memory import keep_freed_memory
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
    _begin()
    app.run(lambda argv: _run(main, argv))


def in_a_child(function, *arguments):
    """Calls a function in a process of its own, with the flags of this one.

    Args:
        function: Function of a module.
        *arguments: Its arguments; they and what it returns must pickle.

    Returns:
        What it returns; what it raises is raised here.

    Raises:
        RuntimeError: If the process ends without an answer.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(sender, function, *arguments))
    # Ctrl-C goes to both, and this one tells the other.
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process.start()
    finally:
        signal.signal(signal.SIGINT, previous)
    sender.close()
    try:
        is_error, answer = receiver.recv()
    except EOFError:
        process.join()
        raise RuntimeError(
            f"A process of this one, {process.name}, ended with "
            f"{process.exitcode}. It wrote the reason above, or memory was "
            "short."
        ) from None
    except BaseException:
        process.kill()  # whatever it does: nobody waits for it
        raise
    finally:
        process.join()
    if is_error:
        raise answer
    return answer


def _call(sender, function, *arguments):
    # Spawning has imported the script, so the flags are defined.
    _begin()
    flags.FLAGS(sys.argv)
    try:
        sender.send((False, function(*arguments)))
    except Exception as error:  # noqa: BLE001, it is raised by the caller
        error.add_note(traceback.format_exc())
        sender.send((True, error))


def end_on_sigterm():
    """Lets SIGTERM end the program as an error does, what it began with it."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def _begin():
    # absl prints information by default, TensorFlow's own among it.
    logging.set_verbosity(logging.WARNING)
    keep_freed_memory()


def _run(main, argv):
    if len(argv) > 1:
        sys.exit(f"Error: unexpected arguments {argv[1:]}; flags begin with --")
    try:
        _check_flags()
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


def _check_flags():
    """Refuses values that no flag may have: NaN, and text that is no UTF-8."""
    for name in flags.FLAGS:
        values = flags.FLAGS[name].value
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(
                    f"`{name}` must be a finite number. "
                    f"Received: --{name}={value}"
                )
            if isinstance(value, str) and not _is_utf8(value):
                raise ValueError(
                    f"`{name}` must be UTF-8: convert the text, or rename the "
                    f"file. Received: --{name}={os.fsencode(value)!r}"
                )


def _is_utf8(text):
    # Python marks other bytes of a command line by surrogates.
    return not any("\ud800" <= symbol <= "\udfff" for symbol in text)
