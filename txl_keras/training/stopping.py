"""Stopping between two steps when machine or terminal is taken away."""

import contextlib
import os
import signal
import threading

import tensorflow as tf

# EX_TEMPFAIL of sysexits.h: the same command resumes.
EXIT_CODE = 75
_HANGUP = getattr(signal, "SIGHUP", None)  # which Windows lacks
# What ends a program without Ctrl-C.
TERMINATION = tuple(filter(None, (signal.SIGTERM, _HANGUP)))


def set_handlers(numbers, handler):
    """Sets the handler of signals; returns their handlers before."""
    # What is ignored stays ignored: SIGHUP after `nohup`, and SIGINT in the
    # background of a script.
    return {
        number: signal.signal(number, handler)
        for number in numbers
        if signal.getsignal(number) != signal.SIG_IGN
    }


class StopRequest:
    """Receives signals that stop, even while TensorFlow runs many steps.

    These are SIGTERM, SIGINT (Ctrl-C) and SIGHUP (the terminal was closed).

    A signal handler in Python runs only when TensorFlow returns to the main
    thread, after up to `steps_per_execution` steps, but clouds give 30 seconds.
    So a thread reads the signal from a pipe and sets `variable`, a float32
    `tf.Variable`, to 1. The loop of steps (`host_loop`) polls it. With several
    workers the loop sums it over all of them, so that they stop after the same
    step.

    Inside this context manager, a signal ends the program at once with
    `EXIT_CODE`. Inside `deferred()`, the first signal is left to the loop, and
    only a second one ends the program. Further SIGHUP do not: when a terminal
    is closed, both the system and the shell may send one.
    """

    def __init__(self):
        with tf.device("CPU:0"):
            self.variable = tf.Variable(0.0, trainable=False)
        self.signal = None
        self._is_deferred = False

    def __enter__(self):
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        self._handlers = set_handlers(
            (*TERMINATION, signal.SIGINT), lambda *_: None
        )
        self._old_fd = signal.set_wakeup_fd(self._write_end)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception):
        signal.set_wakeup_fd(self._old_fd)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._write_end)  # the thread reads EOF and ends
        self._thread.join()
        os.close(self._read_end)

    @contextlib.contextmanager
    def deferred(self):
        """Leaves the first signal to a loop of steps that polls `variable`."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False

    def _listen(self):
        while numbers := os.read(self._read_end, 64):
            for number in numbers:
                if number in self._handlers:
                    self._receive(signal.Signals(number))

    def _receive(self, number):
        if not self._is_deferred:
            _tell(f"{number.name}: stopped. Run the same command to go on.")
            # Not `sys.exit`, which other code may catch. A kill is safe at any
            # time.
            os._exit(EXIT_CODE)
        if self.signal is not None and number == _HANGUP:
            return
        if self.signal not in (None, _HANGUP):
            os._exit(128 + number)
        self.variable.assign(1.0)
        self.signal = number
        _tell(
            f"{number.name}: finishing the step, then saving. A second signal "
            "ends the program at once."
        )


def _tell(text):
    """Writes a line to stderr, whose lock the main thread may hold."""
    with contextlib.suppress(OSError):
        os.write(2, f"\n{text}\n".encode())
