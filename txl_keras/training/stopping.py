"""Stopping between two steps when the machine is taken away."""

import contextlib
import os
import signal
import threading

import tensorflow as tf

# "Temporary failure, try again": the same command goes on.
EXIT_CODE = 75


class StopRequest:
    """Hears SIGTERM and SIGINT, even while TensorFlow runs many steps.

    A handler in Python runs only when TensorFlow gives the main thread back,
    after up to `steps_per_execution` steps; clouds give 30 seconds. So the
    signal is read from a pipe by a thread of its own, which sets a variable
    that the loop of steps looks at (`host_loop`). On several workers the loop
    sums it over all, so that they stop after the same step.

    Used as a context: outside of it signals do what they did before. Inside
    of it they end the program at once, with `EXIT_CODE`; but within
    `looked_at()` they are left to the loop, and only a second one does.

    Attributes:
        variable: float32 `tf.Variable`, 1 once a signal has come.
        signal: The signal that came, or `None`.

    Example:

    >>> stop = StopRequest()
    >>> with stop, stop.looked_at():
    ...     os.kill(os.getpid(), signal.SIGTERM)
    ...     stop.wait(5)
    True
    >>> stop.signal.name, float(stop.variable)
    ('SIGTERM', 1.0)
    """

    _SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self):
        with tf.device("CPU:0"):
            self.variable = tf.Variable(0.0, trainable=False)
        self.signal = None
        self._is_looked_at = False
        self._heard = threading.Event()

    def wait(self, timeout):
        """Waits for a signal; returns whether one came.

        Args:
            timeout: Float, seconds.
        """
        return self._heard.wait(timeout)

    def __enter__(self):
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        self._handlers = {
            number: signal.signal(number, lambda *_: None)
            for number in self._SIGNALS
        }
        self._old_fd = signal.set_wakeup_fd(self._write_end)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception):
        signal.set_wakeup_fd(self._old_fd)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._write_end)  # the thread reads the end and leaves
        self._thread.join()
        os.close(self._read_end)

    @contextlib.contextmanager
    def looked_at(self):
        """While a loop of steps runs, which stops by itself."""
        self._is_looked_at = True
        try:
            yield
        finally:
            self._is_looked_at = False

    def _listen(self):
        while numbers := os.read(self._read_end, 64):
            for number in numbers:
                if number not in self._SIGNALS:
                    continue
                if not self._is_looked_at:
                    # Not `sys.exit`: what is called may catch it. All files
                    # are written such that a kill does no harm.
                    os._exit(EXIT_CODE)
                if self.signal is not None:
                    os._exit(128 + number)
                self.signal = signal.Signals(number)
                self.variable.assign(1.0)
                self._heard.set()
