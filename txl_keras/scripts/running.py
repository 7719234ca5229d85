"""Runs the main function of a script: flags, errors and exit codes."""

import difflib
import math
import os
import pathlib
import re
import sys

import tensorflow as tf
from absl import app
from absl import flags
from absl import logging

from txl_keras.scripts.options import define_help_flag
from txl_keras.scripts.options import refuse
from txl_keras.scripts.output import lasting_output
from txl_keras.training.host_memory import keep_freed_memory
from txl_keras.training.stopping import EXIT_CODE
from txl_keras.training.strategy import read_jobs

# Errors caused by bad input or a full machine. Any other error is a bug, so its
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

# Errors that a worker gets when another worker of the run has ended.
_PEER_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)

_FLAGFILE = re.compile("--?flagfile(?:=(.*))?", re.DOTALL)
# Places to look for a flagfile; all but the first are in the folder of train/.
_PLACES = (
    "{}",
    "train/configs/{}.flags",
    "train/configs/{}",
    "tpu_configs/{}.flags",
    "tpu_configs/{}",
)


def run(main, prints_result=False):
    """Parses flags and runs `main`; prints user errors without a traceback."""
    begin()
    define_help_flag()
    scripts = pathlib.Path(main.__code__.co_filename).resolve().parent
    with lasting_output(prints_result):
        try:
            # In place, because child processes receive the arguments, too.
            arguments = expand_flagfiles(sys.argv[1:], scripts.parent)
            sys.argv[1:] = ["--help" if x == "-h" else x for x in arguments]
        except (OSError, ValueError) as error:
            sys.exit(f"Error: {error}")
        app.run(lambda argv: _run(main, argv), flags_parser=_parse_flags)


def _parse_flags(arguments):
    """Parses flags; suggests a name for an unknown one."""
    try:
        return flags.FLAGS(arguments)
    except flags.UnrecognizedFlagError as error:
        name, known = error.flagname, list(flags.FLAGS)
        near = difflib.get_close_matches(name.replace("-", "_"), known, 1)
        hint = f" Did you mean --{near[0]}?" if near else ""
        sys.exit(f"Error: unknown flag --{name}.{hint}")
    except flags.Error as error:
        sys.exit(f"Error: {error}. --help lists the flags.")


def expand_flagfiles(arguments, home, above=()):
    """Yields arguments; replaces each `--flagfile` by the flags in it."""
    # Unlike absl, this also looks for a flagfile in `home`, the folder that
    # holds train/ and tpu_configs/.
    arguments = iter(arguments)
    for argument in arguments:
        match = _FLAGFILE.fullmatch(argument)
        if not match:
            yield argument
            if argument == "--":  # no flags follow
                yield from arguments
            continue
        name = match[1] if match[1] is not None else next(arguments, "")
        path = _find(name, pathlib.Path(home))
        if path in above:
            raise ValueError(
                "`flagfile` must not name a file that leads to itself. "
                f"Received: --flagfile={name} in {above[-1]}"
            )
        text = path.read_text("utf-8-sig")
        lines = map(str.strip, text.splitlines())
        flags = [x for x in lines if x and not x.startswith(("#", "//"))]
        yield from expand_flagfiles(flags, home, (*above, path))


def _find(name, home):
    path = pathlib.Path(name.strip()).expanduser()
    places = [path, *(home / place.format(path) for place in _PLACES)]
    for place in places:
        if place.is_file():
            return place
    configs = [*home.glob("train/configs/*.flags")]
    raise ValueError(
        "`flagfile` must be the path of a file of flags, or the name of one "
        f"of {', '.join(sorted(path.stem for path in configs))}. Received: "
        f"--flagfile={name}"
    )


def begin():
    """Sets up a process of a script."""
    # By default absl also prints INFO messages, including TensorFlow's.
    logging.set_verbosity(logging.WARNING)
    keep_freed_memory()


def _run(main, argv):
    if len(argv) > 1:
        sys.exit(f"Error: unexpected arguments {argv[1:]}; flags start with --")
    try:
        _check_flags()
        main(argv)
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        sys.exit(130)
    except _USER_ERRORS as error:
        if logging.level_debug():
            raise
        if isinstance(error, _PEER_ERRORS) and read_jobs():
            print(
                "Error: another worker ended, hangs or cannot be reached; see "
                "its log for the reason. Run the same command on all workers "
                f"to resume. TensorFlow's error, with its task: {error}",
                file=sys.stderr,
                flush=True,
            )
            # `sys.exit` would let TensorFlow wait for an answer of the lost
            # worker before the process ends.
            sys.stdout.flush()
            os._exit(EXIT_CODE)
        sys.exit(f"Error: {error}")


def _check_flags():
    """Checks that numbers are finite."""
    for name in flags.FLAGS:
        value = flags.FLAGS[name].value
        is_wrong = isinstance(value, float) and not math.isfinite(value)
        refuse(is_wrong, f"`{name}` must be a finite number.")
