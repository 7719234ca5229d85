import pytest

from txl_keras import data
from txl_keras import models


@pytest.mark.parametrize("package", [data, models])
def test_names_are_imported_on_first_use_and_listed(package):
    assert {*package.__all__} <= {*dir(package)}
    for name in package.__all__:
        assert getattr(package, name).__name__ == name
    with pytest.raises(
        AttributeError, match=f"'{package.__name__}' has no .*'"
    ):
        package.name  # noqa: B018
