import numpy as np
import pytest
import tensorflow as tf

from txl_keras.data import Segments
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
    read = []
    inner = token_files._read_page
    monkeypatch.setattr(
        token_files,
        "_read_page",
        lambda path, number: read.append(number) or inner(path, number),
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


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_several_files_are_read_as_one(place, tmp_path, monkeypatch):
    monkeypatch.setattr(token_files, "PAGE_BYTES", 6)
    ids = np.arange(41, dtype=np.uint16)
    lengths = [0, 7, 0, 0, 20, 1, 13, 0]
    folder = str(tmp_path) if place == "disk" else "ram://shards"
    paths = token_files.shard_paths(folder, len(lengths))
    parts = np.split(ids, np.cumsum(lengths)[:-1])
    for path, part in zip(paths, parts, strict=True):
        write(path, part)
    tokens = token_files.open_shards(paths, lengths, "uint16")
    assert len(tokens) == 41 and tokens.dtype == np.uint16
    assert tokens.nbytes == 82
    for start in range(43):
        for stop in (0, 6, 7, 8, 27, 28, 41, 50, None, -3):
            np.testing.assert_array_equal(tokens[start:stop], ids[start:stop])
    with pytest.raises(ValueError, match="step must be 1. Received: 3"):
        tokens[::3]
    write(paths[4], ids[:19])
    tokens = token_files.open_shards(paths, lengths, "uint16")
    np.testing.assert_array_equal(tokens[28:], ids[28:])  # other files are fine
    with pytest.raises(ValueError, match="-of-00008.bin was changed.* 20 ids"):
        tokens[26:30]


@pytest.mark.parametrize("place", ["disk", "bucket", "slice", "array"])
def test_blocks_are_all_ids(place, tmp_path, monkeypatch):
    monkeypatch.setattr(token_files, "BLOCK", 7)
    ids = np.arange(50, dtype=np.uint16)
    path = "ram://blocks" if place == "bucket" else str(tmp_path / "ids")
    write(path, ids)
    tokens = ids if place == "array" else open_token_file(path, np.uint16)
    if place == "slice":
        tokens, ids = tokens[9:40], ids[9:40]
    blocks = list(token_files.blocks_of(tokens))
    assert {len(block) for block in blocks[:-1]} == {7}
    np.testing.assert_array_equal(np.concatenate(blocks), ids)


class HugeFile:
    """A file of so many ids that no disk has room for them."""

    dtype = np.dtype(np.int32)

    def __init__(self, number, length):
        self.number = number
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        start, stop, _ = index.indices(self.length)
        return np.arange(start, stop, dtype=np.int32) % 999 + self.number


def test_segments_of_2_to_the_40_tokens_begin_at_any_step(monkeypatch):
    opened = []

    def open_file(path, dtype, read_page):
        number = paths.index(path)
        opened.append(number)
        return HugeFile(number, lengths[number])

    monkeypatch.setattr(token_files, "open_token_file", open_file)
    lengths = [2**28 + number % 7 for number in range(2**12)]
    paths = token_files.shard_paths("none", len(lengths))
    tokens = token_files.open_shards(paths, lengths, np.int32)
    assert len(tokens) > 2**40
    for order in ("sequential", "roll"):
        segments = Segments(tokens, 6, 5, True, order=order)
        assert opened == []
        step = segments.steps_per_epoch - 2
        batch = segments.batch(step, first_row=2, num_rows=3)
        assert 1 <= len(opened) <= 3  # a host reads its rows only
        opened.clear()
        tokens = token_files.open_shards(paths, lengths, np.int32)
    segments = Segments(tokens, 6, 5, True)
    row = 5
    start = row * segments.num_predictions // 6 + 5 * step
    starts = np.cumsum([0, *lengths])
    number = int(np.searchsorted(starts, start, "right")) - 1
    inputs = segments.batch(step, first_row=row)["inputs"]
    expected = (start - starts[number] + np.arange(5)) % 999 + number
    assert inputs.tolist() == [expected.tolist()]
    assert batch["inputs"].shape == (3, 5)
