"""Keeps a command running after its output is closed."""

import contextlib
import errno
import os
import sys


@contextlib.contextmanager
def lasting_output(is_result=False):
    """Keeps a command running after its terminal or pipe is closed.

    `txl train | head -1` and a lost connection would otherwise end a run at its
    next line. Later output is dropped, because the result is in files. If
    `is_result`, the command ends instead, as if by SIGPIPE.
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
            # Otherwise Python flushes on exit and prints each error.
            with contextlib.suppress(OSError):
                sys.stdout.flush()


class _Output:
    """Forwards to a text stream until writing to it fails."""

    def __init__(self, stream, is_result=False):
        if hasattr(stream, "reconfigure"):  # for what it cannot encode
            stream.reconfigure(errors="backslashreplace")
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
            # Redirected, so that buffered text is dropped, too.
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())
            if self._is_result:
                sys.exit(141)  # 128 + SIGPIPE
