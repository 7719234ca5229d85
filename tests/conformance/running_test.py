"""What scripts share."""

import os
import sys

import pytest

from txl_keras.scripts.running import in_a_child


def refuse():
    raise ValueError("`sizes` must be others")


def die():
    os._exit(3)


@pytest.mark.large
def test_an_error_of_a_child_is_one_of_its_parent(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["script"])
    with pytest.raises(ValueError) as caught:
        in_a_child(refuse)
    assert str(caught.value) == "`sizes` must be others"
    assert "in refuse" in caught.value.__notes__[0]


@pytest.mark.large
def test_a_child_that_dies_is_told_with_its_code(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["script"])
    with pytest.raises(RuntimeError, match="ended with 3"):
        in_a_child(die)
