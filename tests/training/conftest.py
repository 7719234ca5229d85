"""Gives several tests of training what they share."""

import pytest

from txl_keras.training.stopping import StopRequest


@pytest.fixture(scope="module")
def stop():
    """The request that stops the compiled trainer of a file."""
    return StopRequest()
