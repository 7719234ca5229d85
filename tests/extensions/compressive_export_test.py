"""SavedModels of models with compressed memory."""

import numpy as np
import pytest
import tensorflow as tf
from backbones_test import BACKBONES
from factories import random_ids
from factories import small_model

from txl_keras.extensions.compressive import CompressiveBackbone
from txl_keras.serving import Sampler
from txl_keras.serving import export

# 25 seconds and a gigabyte. `compressive_test.py` reads the same cache without
# a SavedModel.
pytestmark = pytest.mark.large
RATE, SLOTS = 3, 4


@pytest.fixture(scope="module")
def model():
    return small_model(
        num_layers=2,
        make=CompressiveBackbone,
        compression_rate=RATE,
        compressed_length=SLOTS,
    )


@pytest.fixture(scope="module")
def served(model, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("compressive") / "1")
    export(model, path, max_segment_length=9, num_slots=5, max_batch_size=3)
    return tf.saved_model.load(path)


def read_segments(model, rows=2):
    """Ids and the expected log-probabilities of segments that fill memory."""
    memory = None
    for seed, length in enumerate([9, 4, 1, 1, 1, 9, 5]):
        ids = random_ids(rows, length, seed=seed)
        log_probs, memory = model.log_probs(ids, memory)
        yield ids, log_probs


def check_clients(model, served):
    """Reads segments with memory that a client passes on; returns it."""
    memory = served.signatures["initial_memory"](batch_size=tf.constant(2))
    for ids, expected in read_segments(model):
        memory = served.signatures["serving_default"](
            ids=tf.constant(ids), **memory
        )
        found = memory.pop("log_probs")
        np.testing.assert_allclose(found, expected, atol=2e-5)
    return memory


def test_clients_pass_the_memory_on(model, served):
    memory = check_clients(model, served)
    assert set(memory) == {
        "memory", "states", "valid_length", "pending", "pending_length",
    }  # fmt: skip
    # 30 tokens: 6 in memory, and 8 groups of 3 left it, for 4 slots.
    assert memory["valid_length"].numpy().tolist() == [10, 10]
    assert memory["pending_length"].numpy().tolist() == [0, 0]


@pytest.mark.parametrize(
    "options",
    [
        *(BACKBONES[name] for name in ("gtrxl", "same_layer")),
        {**BACKBONES["compressive"], "compression": "most_used"},
    ],
)
def test_clients_of_others_pass_it_on(options, tmp_path):
    model, path = small_model(num_layers=2, **options), str(tmp_path / "1")
    export(model, path, max_segment_length=9, num_slots=0)
    check_clients(model, tf.saved_model.load(path))


def test_slots_keep_the_memory(model, served):
    slots = tf.constant([3, 1])
    served.signatures["reset"](slots=slots)
    for ids, expected in read_segments(model):
        found = served.signatures["step"](ids=tf.constant(ids), slots=slots)
        np.testing.assert_allclose(
            found["log_probs"], expected[:, -1], atol=2e-5
        )
    served.signatures["reset"](slots=slots[:1])
    for slot, is_new in ((3, True), (1, False)):
        ids, expected = next(read_segments(model))
        found = served.signatures["step"](
            ids=tf.constant(ids[:1]), slots=tf.constant([slot])
        )
        same = np.allclose(found["log_probs"], expected[:1, -1], atol=2e-5)
        assert same == is_new


def test_the_generator_writes_the_same(model, served):
    prompts = [random_ids(23), random_ids(6, seed=1)]
    expected = model.generate(
        prompts,
        max_new_tokens=12,
        sampler=Sampler(top_k=1),
        seed=0,
        strip_prompt=True,
    )
    ids = np.zeros((2, 23), "int32")
    ids[0], ids[1, :6] = prompts
    memory = served.signatures["initial_memory"](batch_size=tf.constant(2))
    outputs = served.generate(
        prompt_ids=tf.constant(ids),
        prompt_length=tf.constant([23, 6]),
        **memory,
        length=tf.constant(12),
        top_k=tf.constant(1),
    )
    # The signature reads the prompt in segments of 9, the generator of 128.
    np.testing.assert_array_equal(outputs["ids"][1], expected[1])
    assert outputs["pending_length"].numpy().tolist() == [1, 2]


@pytest.mark.parametrize("name", ["valid_length", "pending_length", "states"])
def test_memory_that_no_call_returned_is_refused(served, name):
    memory = served.signatures["initial_memory"](batch_size=tf.constant(2))
    wrong = {
        "valid_length": memory["valid_length"] + 11,
        "pending_length": memory["pending_length"] - 1,
        "states": memory["states"][:, :, 1:],
    }
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"`{name}`"):
        served.signatures["serving_default"](
            ids=tf.constant(random_ids(2, 4)), **{**memory, name: wrong[name]}
        )
