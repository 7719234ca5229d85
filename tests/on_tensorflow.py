"""Fixtures that save time and memory of TensorFlow, for all tests on it."""

import gc

import pytest
import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.util import tf_stack


@pytest.fixture(autouse=True, scope="session")
def operations_share_a_traceback():
    """A tenth of tracing, and of memory two fifths, is for those of each."""
    traceback = tf_stack.extract_stack()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf_stack, "extract_stack", lambda stacklevel=1: traceback)
        yield


@pytest.fixture(autouse=True, scope="module")
def grappler_is_off(request):
    """Its rewrites take a seventh of the time of tests, and are not ours.

    Where exported graphs are run, which are for other programs, it is on.
    """
    is_off = request.path.parent.name != "serving"
    tf.config.optimizer.set_experimental_options(
        {"disable_meta_optimizer": is_off}
    )


@pytest.fixture(autouse=True, scope="module")
def graphs_are_freed():
    """Half the memory of a traced step is held by its custom gradients.

    TensorFlow registers each one by name forever, with the graph around it. No
    graph of a finished file is differentiated again.
    """
    yield
    registry = ops.gradient_registry._registry
    for name in [x for x in registry if x.startswith("CustomGradient-")]:
        del registry[name]
    gc.collect()
    # What is left stays: the next collection need not look at it again.
    gc.freeze()
