import bz2
import codecs
import gzip
import io
import lzma
import tarfile
import zipfile

import numpy as np
import pytest

from txl_keras.data.corpora.files import read_text

TEXTS = {
    "Latin": "The quick brown fox, a naïve one.\r\nA second line.\n" * 30,
    "Cyrillic": "Съешь ещё этих булок, да выпей чаю.\nИ вторая.\n" * 30,
    "Chinese": "这是一个中文文本，没有空格。\n第二行也是如此，共 2 行。\n" * 30,
}
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


@pytest.mark.parametrize("has_mark", [True, False])
@pytest.mark.parametrize("script", TEXTS)
@pytest.mark.parametrize(
    "encoding", ["UTF-16LE", "UTF-16BE", "UTF-32LE", "UTF-32BE"]
)
def test_other_encodings_of_unicode_are_named(
    encoding, script, has_mark, tmp_path
):
    mark = codecs.BOM_UTF8.decode("utf-8") if has_mark else ""
    data = (mark + TEXTS[script]).encode(encoding)
    message = refused(tmp_path / "a.txt", data)
    assert f"`iconv -f {encoding} -t UTF-8 OLD > NEW`" in message


def test_the_format_is_that_of_what_is_packed(tmp_path):
    data = gzip.compress(TEXTS["Latin"].encode("utf-16"))
    assert "UTF-16LE" in refused(tmp_path / "a.txt.gz", data)


def test_text_that_begins_like_another_format_is_text(tmp_path):
    path = tmp_path / "a.txt"
    for data in (b"PAR1 is\n", b"BZh\n", b"%PDF-1.7 in text\n"):
        path.write_bytes(data)
        assert b"".join(read_text(str(path))) == data
