"""Keeps a command going when nobody can read its output any more."""

import contextlib
import errno
import os
import sys


@contextlib.contextmanager
def lasting_output(is_result=False):
    """Lets a command go on when the terminal or the reader of a pipe is gone.

    `txl train | head -1` and a lost connection would otherwise end a run at its
    next line. What is printed from then on is dropped, because the result is in
    files. If `is_result`, the command ends instead, as if by SIGPIPE.
    """
    with (
        open(os.devnull, "w") as nowhere,
        # Streams are `None` after `>&-`.
        contextlib.redirect_stdout(_Output(sys.stdout or nowhere, is_result)),
        contextlib.redirect_stderr(_Output(sys.stderr or nowhere)),
    ):
        try:
            yield
        finally:
            # Else Python does at its end, where it prints each error.
            with contextlib.suppress(OSError):
                sys.stdout.flush()


class _Output:
    """Forwards to a text stream, until it cannot be written."""

    def __init__(self, stream, is_result=False):
        self._stream = stream
        self._is_result = is_result

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def write(self, text):
        self._call(self._stream.write, text)
        return len(text)

    def flush(self):
        self._call(self._stream.flush)

    def _call(self, function, *arguments):
        try:
            function(*arguments)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            # Also for what the stream still holds.
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())
            if self._is_result:
                sys.exit(141)  # 128 + SIGPIPE
