"""Segments for a loop that runs some steps at a time."""

import tensorflow as tf


class Feed:
    """Iterators over the next steps of a text, on any strategy.

    Where the hosts of the replicas run this program, each reads its own rows
    in the background, by one iterator without end. The hosts of a TPU slice
    that one machine drives by name run TensorFlow alone, no Python: for them
    this machine reads the steps that are asked for, and sends each host its
    rows.

    Args:
        segments: `Segments` or `PermutedSegments`.
        strategy: A `tf.distribute.Strategy`.
        first_step: Integer, 0 or more.
        num_steps: Optional integer. None is without end.
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
        """The next steps; all of them must be taken.

        Args:
            num_steps: Integer.

        Returns:
            Iterator over one element a step, for a `tf.function`.
        """
        if self._iterator is not None:
            return self._iterator
        dataset = self._segments.distribute(
            self._strategy, self._step, num_steps, in_memory=True
        )
        self._step += num_steps
        return iter(dataset)


def _has_hosts_without_python(strategy):
    """Whether this is a TPU that another machine holds."""
    return (
        isinstance(strategy, tf.distribute.TPUStrategy)
        and "/job:localhost" not in strategy.extended.worker_devices[0]
    )
