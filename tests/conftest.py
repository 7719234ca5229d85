"""What all tests share."""

import os

# LLVM's optimizations are most of the time that XLA takes to compile, in the
# tests and in the programs they start. `XLA_FLAGS= pytest` compiles as users
# do. Set before TensorFlow is imported, which reads it once.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0"
    # Two processes keep two cores busy by themselves.
    " --xla_cpu_parallel_codegen_split_count=1",
)

import keras  # noqa: E402
import pytest  # noqa: E402


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
