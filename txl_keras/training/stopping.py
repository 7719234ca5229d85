"""Stops a run between two calls of TensorFlow, to resume later."""

import contextlib
import os
import signal

# EX_TEMPFAIL of sysexits.h: the same command resumes.
EXIT_CODE = 75
_HANGUP = getattr(signal, "SIGHUP", None)  # None on Windows
_SIGNALS = tuple(filter(None, (signal.SIGTERM, signal.SIGINT, _HANGUP)))


class StopRequest:
    """Receives signals that stop: SIGTERM, SIGINT (Ctrl-C) and SIGHUP.

    Python handles a signal when the running call of TensorFlow has returned.
    Inside this context manager, a signal then ends the program with
    `EXIT_CODE`. Inside `deferred()`, the first signal is left to the loop that
    calls TensorFlow and reads `signal` between two calls. A second signal ends
    the program immediately, except a further SIGHUP: when a terminal is closed,
    both the system and the shell may send SIGHUP.
    """

    def __init__(self):
        self.signal = None
        self._is_deferred = False

    def __enter__(self):
        # Ignored signals stay ignored: SIGHUP after `nohup`, and SIGINT in the
        # background of a script.
        self._handlers = {
            number: signal.signal(number, self._receive)
            for number in _SIGNALS
            if signal.getsignal(number) != signal.SIG_IGN
        }
        return self

    def __exit__(self, *exception):
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def deferred(self):
        """Leaves the first signal to a loop that reads `signal`."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False

    def _receive(self, number, frame):
        name = signal.Signals(number).name
        if not self._is_deferred:
            _tell(f"{name}: stopped. Run the same command to resume.")
            # Not `sys.exit`, which other code may catch. A kill is safe at any
            # time.
            os._exit(EXIT_CODE)
        self.signal = number
        for other in self._handlers:
            if other == _HANGUP:
                signal.signal(other, signal.SIG_IGN)
            elif number != _HANGUP:
                signal.signal(other, signal.SIG_DFL)
        _tell(
            f"{name}: finishing the steps of this call, then saving. A second "
            "signal ends the program immediately."
        )


def _tell(text):
    """Writes a line to stderr, even if the main thread holds its lock."""
    with contextlib.suppress(OSError):
        os.write(2, f"\n{text}\n".encode())
