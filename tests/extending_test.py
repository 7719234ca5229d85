"""Names that extensions register."""

import pytest

from txl_keras.extending import register
from txl_keras.extending import registered


def test_a_name_is_registered_once():
    register("test", first=1, second=2)
    register("test", first=1)
    assert registered("test") == {"first": 1, "second": 2}
    with pytest.raises(ValueError, match="new name of the kind .test"):
        register("test", second=3)


def test_a_kind_without_names_is_empty():
    assert registered("nothing") == {}
