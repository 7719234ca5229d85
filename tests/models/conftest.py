import pytest
from factories import rewinder
from factories import seed_weights
from small_fits import compiled


@pytest.fixture(scope="module")
def rewind():
    """Function that returns the compiled model with the weights it began with.

    Tests of a module share it.
    """
    seed_weights(1)
    return rewinder(compiled(jit_compile=True))


@pytest.fixture
def model(rewind):
    """Compiled model that tests share, with the weights it had at first."""
    return rewind()
