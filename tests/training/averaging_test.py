"""The mean of checkpoints; files are read by TensorFlow alone."""

import numpy as np
import pytest
import tensorflow as tf
from factories import assert_same
from factories import save_checkpoint
from factories import small_model
from factories import tensors_of

from txl_keras.training.checkpointing import average_weights
from txl_keras.weights import weights_by_name

STEPS = [5, 9, 12]


def make_model(**overrides):
    config = {"num_layers": 1, "cutoffs": (3,), "div_val": 2, **overrides}
    return small_model(**config)


@pytest.fixture
def directory(tmp_path):
    """Three checkpoints, whose weights are far apart."""
    model = make_model()
    random = np.random.default_rng(0)
    for step in STEPS:
        for weight in model.weights:
            weight.assign(random.normal(step, 3, weight.shape))
        save_checkpoint(str(tmp_path), model, step)
    return str(tmp_path)


@pytest.mark.parametrize("num_checkpoints", [None, 1, 2, 3])
def test_every_weight_is_the_mean_of_the_newest(directory, num_checkpoints):
    model = make_model()
    expected_steps = STEPS[-num_checkpoints:] if num_checkpoints else STEPS
    assert average_weights(model, directory, num_checkpoints) == expected_steps

    saved = [tensors_of(f"{directory}/ckpt-{step}") for step in expected_steps]
    ours = {f"weights/{n}": w for n, w in weights_by_name(model).items()}
    assert ours.keys() == saved[0].keys() - {"step", "run"}
    for name, weight in ours.items():
        mean = sum(tensors[name] for tensors in saved) / len(saved)
        np.testing.assert_allclose(weight, mean, rtol=1e-6, atol=1e-6)


def test_sums_lose_no_digits(tmp_path):
    # In float32 2**24 + 1 is 2**24.
    model = make_model()
    for step, value in enumerate([2**24, 1, 1]):
        for weight in model.weights:
            weight.assign(tf.fill(weight.shape, float(value)))
        save_checkpoint(str(tmp_path), model, step)
    average_weights(model, str(tmp_path))
    expected = np.float32((2**24 + 2) / 3)
    assert all((weight.numpy() == expected).all() for weight in model.weights)


@pytest.mark.parametrize(
    ("num_checkpoints", "message"),
    [
        (4, "must be at most 3.*--max_to_keep.*num_checkpoints=4"),
        (0, "num_checkpoints=0"),
        (-1, "num_checkpoints=-1"),
        (1.5, "num_checkpoints=1.5"),
    ],
)
def test_a_number_that_cannot_be_is_refused(
    directory, num_checkpoints, message
):
    model = make_model()
    before = model.get_weights()
    with pytest.raises(ValueError, match=message):
        average_weights(model, directory, num_checkpoints)
    assert_same(model.get_weights(), before)


def test_a_damaged_checkpoint_is_not_left_out_in_silence(directory):
    with open(f"{directory}/ckpt-9.data-00000-of-00001", "r+b") as file:
        file.truncate(50)
    with pytest.raises(ValueError, match="ckpt-9 is damaged"):
        average_weights(make_model(), directory)
    assert average_weights(make_model(), directory, 1) == [12]
    with pytest.raises(FileNotFoundError, match="ckpt-no"):
        average_weights(make_model(), f"{directory}/ckpt-no")
