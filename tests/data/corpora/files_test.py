import gzip
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
        write_text("old", unfinished)
        assert not path.exists()
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
        *(("a.txt.gz", read_bytes), ("a.npy", open_ids)),
        ("a.csv", read_labelled_texts),
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


def test_a_file_that_unpacks_to_far_more_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_FREE_BYTES", 1 << 16)
    monkeypatch.setattr(files, "CHUNK_BYTES", 1 << 12)
    path = str(tmp_path / "a.txt.gz")
    days = (b"day %d\n" % i + b"all is well\n" * 50 for i in range(300))
    # Packed 120 to 1, and a little of what is packed far more.
    for text in (b"".join(days), b"a\tb\n" * 2**14):
        with gzip.open(path, "wb") as file:
            file.write(text)
        assert b"".join(read_bytes(path)) == text
    found = 0
    with gzip.open(path, "wb") as file:
        file.write(b"a\tb\n" * 2**20)
    with pytest.raises(ValueError, match=r"a\.txt\.gz must not unpack to more"):
        for chunk in read_bytes(path):
            found += len(chunk)
    assert found < 2**21  # it ends long before the end of the file


def test_what_has_no_separator_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "CHUNK_BYTES", 8)
    path = tmp_path / "a.txt"
    path.write_bytes(b"ab--c\n--" + b"d" * 99)
    assert list(read_between(str(path), b"--"))[:2] == [b"ab", b"c\n"]
    texts = read_between(str(path), b"--", max_bytes=20)
    assert [next(texts), next(texts)] == [b"ab", b"c\n"]
    with pytest.raises(ValueError, match="every 20 bytes.*Received: b'--'"):
        next(texts)
