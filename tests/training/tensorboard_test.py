import importlib.util

import numpy as np
import pytest
import tensorflow as tf

from txl_keras.layers import MemoryStack
from txl_keras.layers.memory.memory_stack import Memory
from txl_keras.training.tensorboard import TensorBoard
from txl_keras.training.tensorboard import memory_statistics

STRATEGY = tf.distribute.get_strategy()


def read(directory):
    """What lies in the event files, by name and step."""
    found = {}
    for path in sorted(directory.glob("events.*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                content = tf.make_ndarray(value.tensor)
                found[value.tag, event.step] = content.item()
    return found


def test_numbers_of_a_line_are_read_back(tmp_path):
    board = TensorBoard(str(tmp_path))
    board.write({"step": 20, "loss": 2.5, "note": "warm", "score": None})
    board.write({"step": 40, "loss": 1.5, "valid": {"nll": 1.25, "tokens": 7}})
    # Flushed: they are there while the run goes on.
    assert read(tmp_path) == {
        ("loss", 20): 2.5,
        ("loss", 40): 1.5,
        ("valid/nll", 40): 1.25,
        ("valid/tokens", 40): 7.0,
    }
    board.close()


def test_a_text_is_shown_as_it_stands(tmp_path):
    board = TensorBoard(str(tmp_path))
    board.write_text("sample", "= Title =\n\n  two *words*\n", step=9)
    # Four spaces make it code to Markdown, an empty line too.
    assert read(tmp_path) == {
        ("sample", 9): b"    = Title =\n    \n      two *words*\n"
    }
    board.close()


def test_a_worker_without_a_directory_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    board = TensorBoard(None)
    board.write({"step": 20, "loss": 2.5})
    board.write_text("sample", "text", step=9)
    board.close()
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install tensorboard"):
        TensorBoard(str(tmp_path))


def make_stack(cold_start="masked"):
    return MemoryStack(
        2, batch_size=3, memory_length=5, hidden_dim=4, cold_start=cold_start
    )


def test_statistics_are_those_of_valid_entries():
    stack = make_stack()
    rng = np.random.default_rng(1)
    states = [rng.normal(size=(3, 5, 4)).astype("float32") for _ in range(2)]
    for state in states:
        state[0] = np.nan  # nothing of this row is valid
    valid_length = np.array([0, 2, 5])
    stack.write(Memory(states, tf.constant(valid_length, tf.int32)))
    before = [v.numpy() for v in stack.state_variables]

    statistics = memory_statistics(stack, STRATEGY)()
    np.testing.assert_allclose(statistics["valid_share"], 7 / 15, rtol=1e-6)
    for i, state in enumerate(states):
        valid = np.concatenate([state[1, 3:], state[2]])
        expected = np.sqrt(np.mean(valid**2))
        np.testing.assert_allclose(
            statistics["rms"][f"block_{i}"], expected, rtol=1e-6
        )
    assert len(statistics["rms"]) == 2
    for variable, value in zip(stack.state_variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


def test_statistics_follow_the_memory():
    stack = make_stack()
    statistics = memory_statistics(stack, STRATEGY)
    empty = {"block_0": 0.0, "block_1": 0.0}
    assert statistics() == {"valid_share": 0.0, "rms": empty}
    for layer in range(2):
        stack(3.0 * tf.ones((3, 2, 4)), layer=layer)
    after = statistics()
    np.testing.assert_allclose(after["valid_share"], 2 / 5, rtol=1e-6)
    np.testing.assert_allclose(list(after["rms"].values()), 3.0, rtol=1e-6)


def test_zeros_count_where_they_are_attended_to():
    statistics = memory_statistics(make_stack("zeros"), STRATEGY)()
    assert statistics["valid_share"] == 1.0


def test_a_model_without_memory_has_none():
    stack = MemoryStack(1, batch_size=3, memory_length=0, hidden_dim=4)
    assert memory_statistics(stack, STRATEGY)() == {
        "valid_share": 0.0,
        "rms": {"block_0": 0.0},
    }
