import numpy as np
import pytest
import tensorflow as tf

from txl_keras.data import token_files
from txl_keras.data.token_files import open_token_file


def write(path, ids):
    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(ids.tobytes())


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "int64"])
def test_every_range_is_read_alike_from_disk_and_bucket(
    dtype, tmp_path, monkeypatch
):
    monkeypatch.setattr(token_files, "PAGE_BYTES", 24)
    ids = np.arange(101).astype(dtype)
    for place in (str(tmp_path / "ids"), f"ram://tokens/{dtype}"):
        write(place, ids)
        tokens = open_token_file(place, dtype)
        assert len(tokens) == 101 and tokens.dtype == dtype
        for start in (0, 1, 5, 24, 99, 101, 150):
            for stop in (0, 1, 6, 25, 48, 101, 150, None):
                np.testing.assert_array_equal(
                    tokens[start:stop], ids[start:stop]
                )


def test_a_bucket_is_asked_for_what_is_needed_and_once(monkeypatch):
    monkeypatch.setattr(token_files, "PAGE_BYTES", 100)
    write("ram://tokens/pages", np.arange(1000, dtype=np.uint8))
    tokens = open_token_file("ram://tokens/pages", np.uint8)
    read = []
    inner = token_files.RemoteTokens._read_page
    monkeypatch.setattr(
        token_files.RemoteTokens,
        "_read_page",
        lambda self, number: read.append(number) or inner(self, number),
    )
    tokens = open_token_file("ram://tokens/pages", np.uint8)
    for start in range(510, 590, 8):
        assert tokens[start : start + 9][0] == start % 256
    assert read == [5]
    tokens[595:605]
    assert read == [5, 6]


def test_a_disk_is_mapped(tmp_path):
    write(str(tmp_path / "ids"), np.arange(10, dtype=np.uint16))
    tokens = open_token_file(str(tmp_path / "ids"), np.uint16)
    assert isinstance(tokens, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 3


def test_what_is_no_such_file_is_refused(tmp_path):
    path = str(tmp_path / "ids")
    with pytest.raises(FileNotFoundError, match="no file of ids.*ids"):
        open_token_file(path, np.uint8)
    write(path, np.arange(7, dtype=np.uint8))
    with pytest.raises(ValueError, match="4 bytes each.*Received: 7 bytes"):
        open_token_file(path, np.int32)
    write(path, np.zeros(0, np.int32))
    assert len(open_token_file(path, np.int32)) == 0


def test_only_ranges_without_steps_are_read():
    write("ram://tokens/steps", np.arange(10, dtype=np.uint8))
    tokens = open_token_file("ram://tokens/steps", np.uint8)
    with pytest.raises(ValueError, match="step must be 1. Received: 2"):
        tokens[::2]
