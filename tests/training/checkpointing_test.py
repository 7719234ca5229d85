"""The files alone; `trainer_test.py` has what is in them."""

import errno
import os
import resource

import numpy as np
import pytest
import tensorflow as tf
from factories import save_tensors

from txl_keras.training import checkpointing
from txl_keras.training.checkpointing import saved_steps
from txl_keras.training.checkpointing import write_checkpoint

SHAPES = {"step": (), "weights/a": (3, 5), "memory/000": (2, 4)}


def make_state(step):
    return {
        "step": np.int64(step),
        "weights/a": np.arange(15, dtype="float32").reshape(3, 5) + step,
        "memory/000": np.full((2, 4), step, tf.bfloat16.as_numpy_dtype),
    }


def read(directory):
    return checkpointing.read_newest(str(directory), SHAPES)


@pytest.mark.parametrize("where", ["here", "ram://bucket"])
def test_what_is_written_is_read_and_the_oldest_are_removed(where, tmp_path):
    directory = str(tmp_path / "new") if where == "here" else f"{where}/a/b"
    for step in (3, 20, 100):
        write_checkpoint(directory, make_state(step), max_to_keep=2)
    assert saved_steps(directory) == [20, 100]
    names = tf.io.gfile.listdir(directory)
    assert len(names) == 2, names
    state = checkpointing.read_newest(directory, SHAPES)
    expected = make_state(100)
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        assert state[name].dtype == value.dtype
        np.testing.assert_array_equal(state[name], value)


def test_what_a_run_left_behind_when_it_went_back_is_removed(tmp_path):
    for step in (3, 8, 6):
        write_checkpoint(str(tmp_path), make_state(step), max_to_keep=2)
    assert saved_steps(str(tmp_path)) == [3, 6]
    write_checkpoint(str(tmp_path), make_state(5), max_to_keep=1)
    assert saved_steps(str(tmp_path)) == [5]


def test_a_damaged_one_gives_way_loudly(tmp_path, caplog):
    for step in (7, 9, 10):
        write_checkpoint(str(tmp_path), make_state(step))
    os.truncate(tmp_path / "ckpt-9.safetensors", 50)
    # Of an earlier version, or of a disk that flips bits.
    state = make_state(10)
    state["weights/a"][2, 4] = np.nan
    save_tensors(state, tmp_path / "ckpt-10")
    assert read(tmp_path)["step"] == 7
    assert "ckpt-9.safetensors cannot be read; it is damaged" in caplog.text
    assert "weights/a is not finite. Step 7 is taken instead" in caplog.text
    os.truncate(tmp_path / "ckpt-7.safetensors", 0)
    with pytest.raises(ValueError, match="No checkpoint in .* can be read"):
        read(tmp_path)


def test_what_another_model_wrote_is_listed(tmp_path):
    state = make_state(4)
    state["weights/a"] = np.zeros((5, 3), "float32")
    del state["memory/000"]
    write_checkpoint(str(tmp_path), state)
    message = r"ckpt-4.* is of another model: weights/a is \(5, 3\), not \(3, 5"
    with pytest.raises(ValueError, match=message) as error:
        read(tmp_path)
    assert "memory/000 is missing. Bring back the config" in str(error.value)


def test_a_full_disk_is_told_and_older_ones_are_whole(tmp_path):
    write_checkpoint(str(tmp_path), make_state(7))
    state = {**make_state(9), "weights/a": np.zeros((500, 500), "float32")}
    # As a full disk does, this makes a write fail in the middle of the file.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="disk full.*by step: 7") as error:
            write_checkpoint(str(tmp_path), state)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.strerror(errno.EFBIG) in str(error.value)
    # Nothing is left of the one that failed.
    assert {path.stem for path in tmp_path.iterdir()} == {"ckpt-7"}
    assert read(tmp_path)["step"] == 7


def test_values_that_are_not_finite_are_never_written(tmp_path):
    state = make_state(3)
    state["memory/000"][1, 2] = np.inf
    with pytest.raises(FloatingPointError, match="memory/000 of step 3"):
        write_checkpoint(str(tmp_path), state)
    assert saved_steps(str(tmp_path)) == []


def test_leftovers_of_a_killed_process_are_removed_and_nothing_else(tmp_path):
    write_checkpoint(str(tmp_path), make_state(7))
    keep = {path.name for path in tmp_path.iterdir()} | {"notes.txt"}
    for name in ("notes.txt", f"{'3f' * 16}.tmp"):
        (tmp_path / name).write_bytes(b"half")
    checkpointing.remove_leftovers(str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == keep
