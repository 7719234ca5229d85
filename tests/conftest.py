"""What all tests share."""

import keras
import pytest


@pytest.fixture(autouse=True)
def same_weights_every_time():
    keras.utils.set_random_seed(3)
