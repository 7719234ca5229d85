"""Two replicas of B / 2 rows are one of B; a resumed run never stopped."""

import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

SCRIPT = pathlib.Path(__file__).with_name("train_tiny.py")
# The models of the script, and the variables of their memory: states and
# valid lengths of two blocks.
MODELS = [pytest.param("plain", marks=pytest.mark.large), "adaptive"]
NUM_MEMORY_VARIABLES = 4
HALF, WHOLE = 17, 40


def train(model, replicas, directory):
    """Losses and gradient norms of a run in a new process."""
    done = subprocess.run(
        [sys.executable, SCRIPT, model, str(replicas), directory],
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
def whole_run(tmp_path_factory):
    """A function of model and replicas: results and folder of a run."""
    runs = {}

    def run(model, replicas):
        if (model, replicas) not in runs:
            directory = tmp_path_factory.mktemp(f"{model}_{replicas}")
            runs[model, replicas] = train(model, replicas, directory), directory
        return runs[model, replicas]

    return run


def resume(model, replicas, directory, copy):
    """Results of going on from the middle of another run, in a new process."""
    shutil.copytree(directory / "half", copy / "half")
    return train(model, replicas, copy)


@pytest.mark.parametrize("model", MODELS)
def test_two_replicas_have_the_losses_of_one(model, whole_run):
    one, two = whole_run(model, 1)[0], whole_run(model, 2)[0]
    assert len(one["loss"]) == WHOLE
    np.testing.assert_allclose(two["loss"], one["loss"], atol=1e-4, rtol=0)
    np.testing.assert_allclose(
        two["gradient_norm"], one["gradient_norm"], rtol=1e-3
    )
    np.testing.assert_allclose(two["held_out"], one["held_out"], atol=1e-4)
    # The gradients were clipped, or this would not test clipping.
    assert one["gradient_norm"].max() > 0.3


@pytest.mark.parametrize("model", MODELS)
def test_two_replicas_have_the_memory_of_one_row_by_row(model, whole_run):
    one, two = (memory_of(whole_run(model, n)[1] / "whole") for n in (1, 2))
    assert len(one) == NUM_MEMORY_VARIABLES
    for name, value in one.items():
        assert value.shape[0] == 4
        np.testing.assert_allclose(two[name], value, atol=1e-3)
    states = next(value for value in one.values() if value.ndim == 3)
    assert np.abs(states[0] - states[2]).max() > 0.1  # rows do differ


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_resumed_run_equals_one_that_never_stopped_bit_for_bit(
    replicas, whole_run, tmp_path
):
    whole, directory = whole_run("adaptive", replicas)
    after = resume("adaptive", replicas, directory, tmp_path)
    for name in ("loss", "gradient_norm"):
        np.testing.assert_array_equal(after[name], whole[name][HALF:])
    np.testing.assert_array_equal(after["held_out"], whole["held_out"])


def test_one_replica_goes_on_from_two(whole_run, tmp_path):
    whole, directory = whole_run("adaptive", 2)
    after = resume("adaptive", 1, directory, tmp_path)
    np.testing.assert_allclose(after["loss"], whole["loss"][HALF:], atol=1e-4)
