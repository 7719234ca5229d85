"""What all tests share."""

import keras
import pytest


def pytest_collection_modifyitems(items):
    """The long ones first: the others fill what time is left of two."""
    items.sort(key=lambda item: item.path.parent.name != "conformance")


@pytest.fixture(autouse=True, scope="session")
def own_data_dir(tmp_path_factory):
    """Prepared text of tests, and of the scripts they run, lies apart."""
    with pytest.MonkeyPatch.context() as patch:
        folder = str(tmp_path_factory.mktemp("tensorflow_datasets"))
        patch.setenv("TFDS_DATA_DIR", folder)
        yield


@pytest.fixture(autouse=True)
def same_weights_every_time():
    keras.utils.set_random_seed(3)
