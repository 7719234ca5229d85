"""The mean of checkpoints."""

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


def test_every_weight_is_the_mean(directory):
    model = make_model()
    assert average_weights(model, directory) == STEPS
    saved = [tensors_of(f"{directory}/ckpt-{step}") for step in STEPS]
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


def test_a_damaged_checkpoint_is_not_left_out_in_silence(directory):
    with open(f"{directory}/ckpt-9.safetensors", "r+b") as file:
        file.truncate(50)
    model = make_model()
    before = model.get_weights()
    with pytest.raises(ValueError, match="ckpt-9.* is damaged"):
        average_weights(model, directory)
    assert_same(model.get_weights(), before)
    with pytest.raises(FileNotFoundError, match="ckpt-no"):
        average_weights(make_model(), f"{directory}/ckpt-no")
