"""Published files are found in a folder, packed or not, and read in chunks."""

import gzip
import os

import pytest

from txl_keras.data.corpora import files
from txl_keras.data.corpora.published_files import Source
from txl_keras.data.corpora.published_files import find_sources
from txl_keras.data.corpora.published_files import read_chunks
from txl_keras.data.corpora.published_files import read_lines

TEXTS = {
    "train": bytes(range(256)) * 20,
    "valid": b"\0 \xff\n",
    "test": b"\n\n\x80",
}
MEMBERS = {split: f"any/{split}.bin" for split in TEXTS}


def write_files(folder, suffix=""):
    folder.mkdir(exist_ok=True)
    pack = gzip.compress if suffix else bytes
    for split, text in TEXTS.items():
        (folder / f"{split}.bin{suffix}").write_bytes(pack(text))


def test_a_name_with_its_folder_comes_before_the_bare_one(tmp_path):
    def found():
        sources = find_sources(str(tmp_path), "any.zip", MEMBERS)
        return sources and os.path.relpath(sources["test"].path, tmp_path)

    assert found() is None
    (tmp_path / "train.bin").write_bytes(b"only one of three")
    assert found() is None
    write_files(tmp_path)
    assert found() == "test.bin"
    (tmp_path / "any.zip").write_bytes(b"")  # only looked for, not read
    assert found() == "any.zip"
    write_files(tmp_path / "any")
    assert found() == "any/test.bin"


def test_lines_are_put_together_across_chunks(tmp_path, monkeypatch):
    path = tmp_path / "text"
    path.write_bytes(b"a\n\nlong line\r\x0b\x0c\nno end")
    monkeypatch.setattr(files, "CHUNK_BYTES", 3)
    lines = list(read_lines(Source(str(path))))
    assert lines == [b"a\n", b"\n", b"long line\r\x0b\x0c\n", b"no end"]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_part_of_a_text_is_read(tmp_path, monkeypatch, suffix):
    write_files(tmp_path, suffix)
    monkeypatch.setattr(files, "CHUNK_BYTES", 100)
    source = Source(str(tmp_path / f"train.bin{suffix}"))
    chunks = list(read_chunks(source, 250, 1000))
    assert b"".join(chunks) == TEXTS["train"][250:1000]
    assert max(map(len, chunks)) == 100
