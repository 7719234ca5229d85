import gzip

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


def test_a_file_that_unpacks_to_far_more_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_FREE_BYTES", 1 << 16)
    path = tmp_path / "a.txt.gz"
    days = (b"day %d\n" % i + b"all is well\n" * 50 for i in range(300))
    # Packed 120 to 1, and a little of what is packed far more.
    for text in (b"".join(days), b"a\tb\n" * 2**14):
        path.write_bytes(gzip.compress(text))
        assert b"".join(files.read_bytes(str(path))) == text
    path.write_bytes(gzip.compress(b"a\tb\n" * 2**20))
    with pytest.raises(ValueError, match=r"a\.txt\.gz must not unpack to more"):
        list(files.read_bytes(str(path)))


def test_separators_are_found_across_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "CHUNK_BYTES", 3)
    path = tmp_path / "a.txt"
    path.write_bytes(b"ab--c\n--" + b"d" * 99)
    assert list(read_between(str(path), b"--")) == [b"ab", b"c\n", b"d" * 99]
