import types

import numpy as np
import pytest
import tensorflow as tf

from txl_keras.data import Segments
from txl_keras.data.step_batches import Feed

STRATEGY = tf.distribute.get_strategy()


def make_segments():
    return Segments(np.arange(83), 4, 5, drop_remainder=True)


def take(iterator, num_steps):
    steps = [next(iterator) for _ in range(num_steps)]
    return tf.nest.map_structure(np.array, steps)


def assert_steps(batches, steps):
    segments = make_segments()
    for batch, step in zip(batches, steps, strict=True):
        np.testing.assert_equal(batch, segments.batch(step))


def test_steps_follow_each_other_however_many_are_asked_for():
    feed = Feed(make_segments(), STRATEGY, first_step=3)
    batches = [b for n in (2, 1, 4) for b in take(feed.next(n), n)]
    assert_steps(batches, range(3, 10))


class Slice(tf.distribute.OneDeviceStrategy):
    """Stands in for a TPU that this machine drives by name."""


def test_hosts_without_python_are_sent_their_rows(monkeypatch):
    monkeypatch.setattr(tf.distribute, "TPUStrategy", Slice)
    strategy = Slice("/job:localhost/replica:0/task:0/device:CPU:0")
    monkeypatch.setattr(
        type(strategy.extended),
        "worker_devices",
        ("/job:worker/replica:0/task:0/device:CPU:0",),
    )

    def no_python(*_):
        raise AssertionError("Python does not run there")

    monkeypatch.setattr("txl_keras.backend.tf.numpy_function", no_python)
    segments, read = make_segments(), []
    make_batch = segments.batch

    def batch(step, *rows):
        read.append(step)
        return make_batch(step, *rows)

    monkeypatch.setattr(segments, "batch", batch)
    feed = Feed(segments, strategy, first_step=3, num_steps=11)
    batches = []
    for num_steps in (2, 2, 1, 3, 3):
        iterator = feed.next(num_steps)
        batches += take(iterator, num_steps)
        with pytest.raises((StopIteration, tf.errors.OutOfRangeError)):
            next(iterator)
    assert_steps(batches, range(3, 14))
    # Each call was guessed to be followed by one of as many steps: wrong for
    # the third and the fourth, and there is none after the last.
    guessed = [*range(3, 7), 7, 8, 7, 8, 8, 9, 10, 11, 12, 13]
    assert sorted(read) == sorted(guessed)


def host_of(hosts, replicas, number=0):
    """Stands in for a strategy that asks for the dataset of one host."""
    context = tf.distribute.InputContext(hosts, number, replicas)
    return types.SimpleNamespace(
        num_replicas_in_sync=replicas,
        distribute_datasets_from_function=lambda make: make(context),
    )


def test_rows_and_replicas_must_divide():
    segments = Segments(np.arange(101), 6, 3, drop_remainder=True)
    with pytest.raises(ValueError, match="batch_size=6, 4 replicas"):
        segments.distribute(host_of(1, 4))
    with pytest.raises(ValueError, match="`num_steps` must be an integer"):
        segments.distribute(STRATEGY, in_memory=True)


@pytest.mark.parametrize("host", [0, 1])
def test_a_host_gets_an_element_a_replica(host):
    segments = Segments(np.arange(200), 12, 5, drop_remainder=True)
    in_memory, read = (
        [*dataset.as_numpy_iterator()]
        for dataset in (
            segments.distribute(host_of(2, 4, host), 2, 3, in_memory)
            for in_memory in (True, False)
        )
    )
    assert len(in_memory) == 6  # 3 steps, 2 replicas
    for i, (ours, expected) in enumerate(zip(in_memory, read, strict=True)):
        step, replica = divmod(i, 2)
        rows = segments.batch(2 + step, 6 * host + 3 * replica, 3)
        assert ours["inputs"].shape == (3, 5)
        np.testing.assert_equal(ours, rows)
        np.testing.assert_equal(expected, rows)
