import numpy as np
import pytest
import tensorflow as tf

from txl_keras.data import token_files
from txl_keras.data import vocabulary
from txl_keras.data.token_files import TokenFiles
from txl_keras.data.token_files import open_tokens
from txl_keras.data.token_files import shard_paths


def write(path, ids):
    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(ids.tobytes())


@pytest.mark.parametrize("lengths", [[101], [0, 7, 0, 0, 20, 1, 73, 0]])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "int64"])
def test_every_range_is_read_alike_from_disk_and_bucket(
    dtype, lengths, tmp_path, monkeypatch
):
    monkeypatch.setattr(token_files, "PAGE_BYTES", 24)
    ids = np.arange(101).astype(dtype)
    for folder in (str(tmp_path), f"ram://tokens/{dtype}{len(lengths)}"):
        paths = shard_paths(folder, len(lengths))
        parts = np.split(ids, np.cumsum(lengths)[:-1])
        for path, part in zip(paths, parts, strict=True):
            write(path, part)
        tokens = open_tokens(paths, lengths, dtype)
        assert len(tokens) == 101 and tokens.dtype == dtype
        for start in (0, 1, 5, 7, 24, 27, 28, 99, 101, 150):
            for stop in (0, 1, 6, 7, 25, 27, 48, 101, 150, None, -3):
                np.testing.assert_array_equal(
                    tokens[start:stop], ids[start:stop]
                )


def test_a_bucket_is_asked_for_what_is_needed_and_once(monkeypatch):
    monkeypatch.setattr(token_files, "PAGE_BYTES", 100)
    write("ram://tokens/pages", np.arange(1000, dtype=np.uint8))
    read = []
    inner = TokenFiles._read_pages
    monkeypatch.setattr(
        TokenFiles,
        "_read_pages",
        lambda *args: read.append(args[2:]) or inner(*args),
    )
    tokens = open_tokens(["ram://tokens/pages"], [1000], np.uint8)
    for start in range(510, 590, 8):
        assert tokens[start : start + 9][0] == start % 256
    assert read == [(5, 6)]
    tokens[595:605]
    assert read == [(5, 6), (6, 7)]
    assert tokens[140:990][-1] == 989 % 256
    assert read[2:] == [(1, 10)]


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_what_is_no_such_file_is_refused(place, tmp_path):
    folder = str(tmp_path) if place == "disk" else "ram://missing"
    paths = shard_paths(folder, 2)
    write(paths[0], np.arange(7, dtype=np.uint8))
    for lengths, message in (
        ([7, 3], f"no file of ids {paths[1]}"),
        ([6, 3], "was changed.*Expected: 6 bytes. Received: 7"),
    ):
        with pytest.raises((FileNotFoundError, ValueError), match=message):
            open_tokens(paths, lengths, np.uint8)[4:9]


def test_all_ids_are_counted(monkeypatch):
    monkeypatch.setattr(vocabulary, "_COUNTED", 7)
    ids = np.arange(50, dtype=np.uint16) % 9
    counts = vocabulary.token_counts(ids, 10)
    assert counts.tolist() == [6, 6, 6, 6, 6, 5, 5, 5, 5, 0]
