"""Feeds the segments of each host call to the replicas of any strategy."""

import tensorflow as tf


class Feed:
    """Provides iterators over the next steps of a text, on any strategy.

    Where this program runs on the hosts of all replicas, each host reads its
    own rows in the background with one infinite iterator. The hosts of a TPU
    slice that is driven by one other machine run TensorFlow but no Python. For
    them, this machine reads the requested steps and sends each host its rows.
    """

    def __init__(self, segments, strategy, first_step=0, num_steps=None):
        self._segments = segments
        self._strategy = strategy
        self._step = first_step
        self._iterator = None
        if not _has_hosts_without_python(strategy):
            self._iterator = iter(
                segments.distribute(strategy, first_step, num_steps)
            )

    def next(self, num_steps):
        """Returns an iterator over the next steps; all must be consumed."""
        if self._iterator is not None:
            return self._iterator
        dataset = self._segments.distribute(
            self._strategy, self._step, num_steps, in_memory=True
        )
        self._step += num_steps
        return iter(dataset)


def _has_hosts_without_python(strategy):
    """Returns whether the strategy drives a TPU that is attached elsewhere."""
    return (
        isinstance(strategy, tf.distribute.TPUStrategy)
        and "/job:localhost" not in strategy.extended.worker_devices[0]
    )
