import pytest

from txl_keras.data.corpora import files
from txl_keras.data.corpora.files import read_between
from txl_keras.data.corpora.files import renamed_when_complete
from txl_keras.data.corpora.files import write_text


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


def test_separators_are_found_across_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "CHUNK_BYTES", 3)
    path = tmp_path / "a.txt"
    path.write_bytes(b"ab--c\n--" + b"d" * 99)
    assert list(read_between(str(path), b"--")) == [b"ab", b"c\n", b"d" * 99]
