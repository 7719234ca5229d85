"""Two replicas of B / 2 rows are one of B; a resumed run never stopped."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

SCRIPT = pathlib.Path(__file__).with_name("train_tiny.py")


def train(*args):
    """Losses and gradient norms of a run in a new process."""
    done = subprocess.run(
        [sys.executable, SCRIPT, *map(str, args)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    return {
        name: np.array([float.fromhex(x) for x in values])
        for name, values in results.items()
    }


def memory_of(directory):
    """What the newest checkpoint holds of memory, by variable."""
    reader = tf.train.load_checkpoint(str(directory))
    names = [
        name
        for name in reader.get_variable_to_shape_map()
        if name.startswith("memory/")
    ]
    return {name: reader.get_tensor(name) for name in names}


@pytest.fixture(scope="module")
def one_replica(tmp_path_factory):
    directory = tmp_path_factory.mktemp("one")
    return train(1, 40, directory), directory


@pytest.fixture(scope="module")
def two_replicas(tmp_path_factory):
    directory = tmp_path_factory.mktemp("two")
    return train(2, 40, directory), directory


def test_two_replicas_have_the_losses_of_one(one_replica, two_replicas):
    one, two = one_replica[0], two_replicas[0]
    np.testing.assert_allclose(two["loss"], one["loss"], atol=1e-4, rtol=0)
    np.testing.assert_allclose(
        two["gradient_norm"], one["gradient_norm"], rtol=1e-3
    )
    np.testing.assert_allclose(two["held_out"], one["held_out"], atol=1e-4)
    # The gradients were clipped, or this would not test clipping.
    assert one["gradient_norm"].max() > 0.3


def test_two_replicas_have_the_memory_of_one_row_by_row(
    one_replica, two_replicas
):
    one, two = memory_of(one_replica[1]), memory_of(two_replicas[1])
    assert len(one) == 4  # states and valid lengths of two blocks
    for name, value in one.items():
        assert value.shape[0] == 4
        np.testing.assert_allclose(two[name], value, atol=1e-3)
    states = next(value for value in one.values() if value.ndim == 3)
    assert np.abs(states[0] - states[2]).max() > 0.1  # rows do differ


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_resumed_run_equals_one_that_never_stopped_bit_for_bit(
    replicas, request, tmp_path
):
    whole, _ = request.getfixturevalue(
        "one_replica" if replicas == 1 else "two_replicas"
    )
    before = train(replicas, 40, tmp_path, 17)
    after = train(replicas, 40, tmp_path)
    for name in ("loss", "gradient_norm"):
        np.testing.assert_array_equal(before[name], whole[name][:17])
        np.testing.assert_array_equal(after[name], whole[name][17:])
    np.testing.assert_array_equal(after["held_out"], whole["held_out"])


def test_one_replica_goes_on_from_two(two_replicas, tmp_path):
    whole, _ = two_replicas
    train(2, 40, tmp_path, 17)
    after = train(1, 40, tmp_path)
    np.testing.assert_allclose(after["loss"], whole["loss"][17:], atol=1e-4)
