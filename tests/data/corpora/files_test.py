import os

import pytest

from txl_keras.data import read_labelled_texts
from txl_keras.data.corpora import files
from txl_keras.data.corpora.files import read_between
from txl_keras.data.corpora.files import read_bytes
from txl_keras.data.corpora.files import renamed_when_complete
from txl_keras.data.corpora.files import write_text
from txl_keras.data.corpora.id_files import open_ids


def test_a_file_has_its_name_once_it_is_complete(tmp_path):
    path = tmp_path / "file"
    with renamed_when_complete(str(path)) as unfinished:
        write_text("new", unfinished)
        assert not path.exists()
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_not_completed_leaves_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with (
        pytest.raises(KeyboardInterrupt),
        renamed_when_complete(str(path)) as unfinished,
    ):
        write_text("new", unfinished)
        raise KeyboardInterrupt
    with pytest.raises(UnicodeEncodeError):
        write_text("\ud800", str(path))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize(
    "name, read",
    [
        *(("a.txt", read_bytes), ("a.txt.gz", read_bytes), ("a.npy", open_ids)),
        *(("a.csv", read_labelled_texts), ("a.tsv.gz", read_labelled_texts)),
    ],
)
def test_only_files_are_read(name, read, kind, tmp_path):
    path = tmp_path / name
    if kind == "pipe":
        os.mkfifo(path)  # would be waited for
    elif kind == "device":
        path.symlink_to("/dev/zero")  # has no end
    else:
        path.mkdir()
    with pytest.raises((ValueError, OSError), match=f"must be a file.*{kind}"):
        list(read(str(path)))


def test_separators_are_found_across_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "CHUNK_BYTES", 3)
    path = tmp_path / "a.txt"
    path.write_bytes(b"ab--c\n--" + b"d" * 99)
    assert list(read_between(str(path), b"--")) == [b"ab", b"c\n", b"d" * 99]
