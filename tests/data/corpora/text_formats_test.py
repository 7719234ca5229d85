import bz2
import gzip
import io
import lzma
import tarfile
import zipfile

import numpy as np
import pytest

from txl_keras.data.corpora.files import read_text

NOISE = np.random.default_rng(0).bytes(3000)


def refused(path, data):
    path.write_bytes(data)
    with pytest.raises(ValueError, match="is not text in UTF-8: byte") as error:
        list(read_text(str(path)))
    assert str(error.value).startswith(str(path))
    return str(error.value)


def tar_of(data):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("a.txt")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def zip_of(data):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.txt", data)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "data, advice",
    [
        (gzip.compress(NOISE), "gzip: let its name end in .gz"),
        (bz2.compress(NOISE), "bzip2: unpack it with `bunzip2`"),
        (lzma.compress(NOISE), "xz: unpack it with `unxz`"),
        (b"\x28\xb5\x2f\xfd" + NOISE, "Zstandard: unpack it with `unzstd`"),
        (zip_of(b"only ASCII\n"), "zip: unpack it with `unzip`"),
        (tar_of(b"only ASCII\n"), "tar: unpack it with `tar -xf`"),
        (b"PAR1\x15\x04" + NOISE + b"PAR1", "Parquet: write it as .jsonl"),
        (b"%PDF-1.7\n%\xe2\xe3\xcf\n1 0 obj\n", "PDF: take the text out"),
        (NOISE, "does not look like text: remove it"),
        (bytes(3000), "does not look like text: remove it"),
        (np.arange(900).tobytes(), "does not look like text: remove it"),
        ("naïve café\n".encode("latin1"), "iconv -f latin1 -t utf-8"),
        (b"some words\n" * 99 + b"a\0b\n", r"zero bytes with `tr -d '\0'"),
    ],
)
def test_what_is_no_text_is_recognized(data, advice, tmp_path):
    message = refused(tmp_path / "a.txt", data)
    assert advice in message
    # Which would make text of anything.
    assert ("latin1" in message) == ("latin1" in advice)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    "encoding", ["UTF-16LE", "UTF-16BE", "UTF-32LE", "UTF-32BE"]
)
def test_a_marked_encoding_of_unicode_is_named(encoding, suffix, tmp_path):
    data = "\ufeffСъешь ещё этих булок, 这是一个中文文本。\n".encode(encoding)
    pack = gzip.compress if suffix else bytes
    message = refused(tmp_path / f"a.txt{suffix}", pack(data))
    assert f"`iconv -f {encoding} -t UTF-8 OLD > NEW`" in message


def test_text_without_a_mark_may_be_utf16(tmp_path):
    data = "The quick brown fox.\n".encode("UTF-16LE")
    assert "iconv -f UTF-16LE" in refused(tmp_path / "a.txt", data)


def test_text_that_begins_like_another_format_is_text(tmp_path):
    path = tmp_path / "a.txt"
    for data in (b"PAR1 is\n", b"BZh\n", b"%PDF-1.7 in text\n"):
        path.write_bytes(data)
        assert b"".join(read_text(str(path))) == data
