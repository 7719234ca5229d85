"""Signatures of models whose memory is another than the core's."""

import numpy as np
import pytest
import tensorflow as tf
from backbones_test import BACKBONES
from factories import random_ids
from factories import small_model
from serving import export_test

from txl_keras.serving import Sampler
from txl_keras.serving import export

# 25 seconds and a gigabyte. `compressive_test.py` reads the same cache without
# a SavedModel.
pytestmark = pytest.mark.large
COMPRESSIVE = {**BACKBONES["compressive"], "compression_rate": 3}


@pytest.fixture(scope="module")
def model():
    return small_model(num_layers=2, **COMPRESSIVE)


@pytest.fixture(scope="module")
def signatures(model, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("compressive") / "1")
    export(model, path, max_segment_length=9, num_slots=5, max_batch_size=3)
    return tf.saved_model.load(path).signatures


def check_clients(model, signatures, slots=None):
    """Fills the memory that a client passes on, and of slots; returns it."""
    memory, expected_memory = export_test.start(signatures, 2), None
    for seed, length in enumerate([9, 4, 1, 1, 1, 9, 5]):
        ids = random_ids(2, length, seed=seed)
        expected, expected_memory = model.log_probs(ids, expected_memory)
        found, memory = export_test.predict(signatures, ids, memory)
        export_test.assert_close(found, expected, 2e-5)
        if slots is not None:
            found = export_test.step(signatures, ids, slots)
            export_test.assert_close(found, expected[:, -1], 2e-5)
    return memory


def test_clients_and_slots_keep_the_memory(model, signatures):
    memory = check_clients(model, signatures, [3, 1])
    assert set(memory) == {
        "memory", "states", "valid_length", "pending", "pending_length",
    }  # fmt: skip
    # 30 tokens: 6 in memory, and 8 groups of 3 left it, for 4 slots.
    assert memory["valid_length"].numpy().tolist() == [10, 10]
    assert memory["pending_length"].numpy().tolist() == [0, 0]
    signatures["reset"](slots=tf.constant([3]))
    ids = random_ids(1, 9)
    expected = model.log_probs(ids)[0][:, -1]
    for slot, is_new in ((3, True), (1, False)):
        found = export_test.step(signatures, ids, [slot])
        assert np.allclose(found, expected, atol=2e-5) == is_new


@pytest.mark.parametrize(
    "options",
    [
        *(BACKBONES[name] for name in ("gtrxl", "same_layer")),
        {**COMPRESSIVE, "compression": "most_used"},
    ],
)
def test_clients_of_others_pass_it_on(options):
    model = small_model(num_layers=2, **options)
    check_clients(model, export_test.signatures_of(model))


def test_the_generator_writes_the_same(model, signatures):
    prompts = [random_ids(23), random_ids(6, seed=1)]
    expected = model.generate(
        prompts,
        max_new_tokens=12,
        sampler=Sampler(top_k=1),
        seed=0,
        strip_prompt=True,
    )
    memory = export_test.start(signatures, 2)
    found, memory = export_test.write(signatures, prompts, 12, memory, top_k=1)
    # The signature reads the prompt in segments of 9, the generator of 128.
    np.testing.assert_array_equal(found[1], expected[1])
    assert memory["pending_length"].numpy().tolist() == [1, 2]


@pytest.mark.parametrize("name", ["valid_length", "pending_length", "states"])
def test_memory_that_no_call_returned_is_refused(signatures, name):
    memory = export_test.start(signatures, 2)
    wrong = {
        "valid_length": memory["valid_length"] + 11,
        "pending_length": memory["pending_length"] - 1,
        "states": memory["states"][:, :, 1:],
    }
    memory[name] = wrong[name]
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"`{name}`"):
        export_test.predict(signatures, random_ids(2, 4), memory)
