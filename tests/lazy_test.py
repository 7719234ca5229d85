import pytest

from txl_keras import data


def test_names_are_imported_on_first_use_and_listed():
    assert {*data.__all__} <= {*dir(data)}
    for name in data.__all__:
        assert getattr(data, name).__name__ == name
    with pytest.raises(AttributeError, match="'txl_keras.data' has no .*'nam"):
        data.__getattr__("name")
