"""A model whose pages all tests of them show: each compiles it anew."""

import pytest
from factories import byte_model
from factories import seed_weights

from txl_keras.pages.playground import Playground
from txl_keras.pages.surprise import SurpriseReader


@pytest.fixture(scope="session")
def model():
    seed_weights(3)
    # Large weights, so that the tokens before matter.
    return byte_model(memory_length=9, initializer_stddev=0.5)


@pytest.fixture(scope="session")
def playground(model):
    return Playground(model, segment_length=7)


@pytest.fixture(scope="session")
def reader(model):
    return SurpriseReader(model, segment_length=7)
