import gzip
import itertools

import pytest

from txl_keras.data.corpora.splitting import fits
from txl_keras.data.corpora.splitting import split_by_name
from txl_keras.data.corpora.splitting import split_file
from txl_keras.data.corpora.splitting import split_groups


def test_groups_are_split_by_size_and_by_nothing_but_their_names():
    sizes = {f"module{i}": 10 + i % 7 for i in range(200)}
    splits = split_groups(sizes)
    assert sorted(sum(splits.values(), [])) == sorted(sizes)
    total = sum(sizes.values())
    for split in ("valid", "test"):
        size = sum(sizes[name] for name in splits[split])
        assert 0.05 * total <= size < 0.06 * total
    backwards = dict(reversed(sizes.items()))
    assert split_groups(backwards) == splits


@pytest.mark.parametrize(
    "sizes",
    [
        *([1], [1, 1], [1, 1, 1], [1000, 1, 1], [500, 600, 700, 800], [1] * 9),
        *([1] * 100 + [100_000], [1, 2, 3000, 3000, 3000]),
        [21] * 20 + [3_200] * 3,
    ],
)
def test_files_that_do_not_fit_are_found(sizes):
    sizes = by_name(sizes)
    splits = split_groups(sizes)
    assert not fits(bytes_of(splits, sizes))
    assert sorted(sum(splits.values(), [])) == sorted(sizes)
    assert len(sizes) < 3 or all(splits.values())


@pytest.mark.parametrize(
    "sizes", [[1] * 10, [1] * 40, [1, 2] + [950 + i for i in range(12)]]
)
def test_held_out_files_are_no_small_and_no_large_part(sizes):
    sizes = by_name(sizes)
    splits = split_groups(sizes)
    assert sorted(sum(splits.values(), [])) == sorted(sizes)
    held_out = bytes_of(splits, sizes)
    assert fits(held_out)
    assert held_out["train"] >= 0.8 * sum(sizes.values())


def by_name(sizes):
    return {str(i): size for i, size in enumerate(sizes)}


def bytes_of(splits, sizes):
    return {x: sum(map(sizes.get, names)) for x, names in splits.items()}


@pytest.fixture
def split(tmp_path):
    """Splits a text by `split_file`, plain and packed."""

    def run(text, *args):
        (tmp_path / "a.txt").write_bytes(text)
        (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text))
        places = split_file(str(tmp_path / "a.txt"), *args)
        assert split_file(str(tmp_path / "a.txt.gz"), *args) == places
        bounds = itertools.pairwise([0, *places])
        return [text[start:stop] for start, stop in bounds]

    return run


def test_a_text_is_cut_at_line_ends(split):
    lines = [b"%03d\n" % i for i in range(100)]
    # A place right at the start of a line is moved to the next.
    parts = lines[:91], lines[91:96], lines[96:]
    assert split(b"".join(lines)) == [b"".join(part) for part in parts]


def test_a_text_without_lines_is_cut_between_characters(split):
    text = "€" * 100
    for end in ("", "\n"):  # a line end after the last cut does not count
        pieces = [piece.decode() for piece in split((text + end).encode())]
        assert "".join(pieces) == text + end
        assert [len(piece) for piece in pieces] == [90, 5, 5 + len(end)]


def test_with_a_delimiter_no_document_is_cut(split):
    documents = [b"%d\n" % i * (1 + i % 7) + b"<end>" for i in range(200)]
    pieces = split(b"".join(documents), b"<end>")
    assert b"".join(pieces) == b"".join(documents)
    assert all(piece.endswith(b"<end>") for piece in pieces)
    # Across the borders of what is read at once, too.
    pieces = split(b"x" * 3_000_000 + b"<end>" + b"y" * 100_000, b"<end>")
    assert [len(piece) for piece in pieces] == [3_000_005, 100_000, 0]


TRAIN = ["train-0.jsonl.gz", "data/my train (1).txt", "split=train/0", "TrainA"]
VALID = ["dev.txt", "a_VALID.npy", "x/validation/1.md", "val-0-of-1.tokens"]
TEST = ["test.txt", "testing/2.txt"]


def test_whole_words_name_a_split():
    code = ["a/test.py", "train.cpp", "README.rst"]
    others = ["trains.txt", "devices.md", "valid1.csv"]
    found = split_by_name("folder", [*TRAIN, *VALID, *TEST, *code, *others])
    assert found == {"train": TRAIN, "valid": VALID, "test": TEST}
    shards = [f"train-{i}-of-5.txt" for i in range(5)]
    for names in (["a.txt", "b.txt"], shards, ["train.py", "test.py", "a.txt"]):
        assert split_by_name("folder", names) is None


@pytest.mark.parametrize(
    "names, received",
    [
        # Otherwise both would be cut, and training would read the test text.
        *(
            ([f"my_train.{end}", f"my_test.{end}"], f"my_test.{end} and my_tr")
            for end in ("txt", "ndjson", "tokens", "TXT", "Jsonl.GZ")
        ),
        (["a.txt", "b.txt", "c.txt", "test.txt"], "test.txt beside a.txt"),
        (["train.txt", "dev.txt", "train_test.txt"], "train_test.txt"),
    ],
)
def test_names_that_may_be_of_splits_are_refused(names, received):
    with pytest.raises(ValueError, match=f"for all of train.*{received}"):
        split_by_name("folder", names)
