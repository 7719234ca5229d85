"""Feeds the segments of each host call to the replicas of any strategy."""

from concurrent import futures

from txl_keras.backend import tf


class Feed:
    """Provides iterators over the next steps of a text, on any strategy."""

    # If this program runs on the hosts of all replicas, each host reads its own
    # rows in the background with one infinite iterator. If another machine
    # drives a TPU slice, the slice's hosts run TensorFlow but no Python. Then
    # this machine reads the requested steps and sends each host its rows. While
    # a host consumes them, it sends as many steps in advance.

    def __init__(self, segments, strategy, first_step=0, num_steps=None):
        self._segments = segments
        self._strategy = strategy
        self._step = first_step
        self._iterator = None
        if not _has_hosts_without_python(strategy):
            self._iterator = iter(
                segments.distribute(strategy, first_step, num_steps)
            )
            return
        self._end = None if num_steps is None else first_step + num_steps
        self._sender = futures.ThreadPoolExecutor(1)
        self._ahead = None, None  # first step and number, future iterator

    def next(self, num_steps):
        """Returns an iterator over the next steps; all must be consumed."""
        if self._iterator is not None:
            return self._iterator
        steps, sent = self._ahead
        # The guess is wrong only if the loop stops early.
        if steps != (self._step, num_steps):
            sent = self._sender.submit(self._send, self._step, num_steps)
        self._step += num_steps
        if self._end is None or self._step < self._end:
            steps = self._step, num_steps
            self._ahead = steps, self._sender.submit(self._send, *steps)
        return sent.result()

    def _send(self, first_step, num_steps):
        # Leaving the scope waits for the hosts: otherwise a step could run
        # before its host has made the iterator, and fail.
        with tf.experimental.async_scope():
            return iter(
                self._segments.distribute(
                    self._strategy, first_step, num_steps, in_memory=True
                )
            )


def _has_hosts_without_python(strategy):
    """Returns whether the strategy drives a TPU on other hosts."""
    return (
        isinstance(strategy, tf.distribute.TPUStrategy)
        and "/job:localhost" not in strategy.extended.worker_devices[0]
    )
