import hashlib
import zipfile

import pytest

from txl_keras.data.corpora import enwik8
from txl_keras.data.corpora import text8

SMALL = b" anarchism originated as a term of abuse" * 20


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Makes text8 small, with 10 bytes in each of valid and test."""
    monkeypatch.setattr(enwik8, "LENGTH", len(SMALL))
    monkeypatch.setattr(enwik8, "HELD_OUT", 10)
    digest = hashlib.md5(SMALL).hexdigest()
    monkeypatch.setattr(text8.Text8Corpus, "DIGEST", ("md5", digest))


def test_it_is_split_in_order(tmp_path):
    with zipfile.ZipFile(tmp_path / "text8.zip", "w") as archive:
        archive.writestr("text8", SMALL)
    corpus = text8.Text8Corpus.load(str(tmp_path))
    assert corpus.read("train") == SMALL[:-20]
    assert corpus.read("valid") == SMALL[-20:-10]
    assert corpus.read("test") == SMALL[-10:]
    assert (corpus.name, corpus.encoding) == ("text8", "latin-1")
    assert corpus.identity["builder"] == "text8_corpus/1.0.0"


@pytest.mark.parametrize(
    "text, message",
    [
        (SMALL[:-1], "800 bytes.*799 bytes"),
        (SMALL[:-1] + b"E", "letters a-z and space. Received: byte 0x45"),
        (SMALL[:-1] + b"x", "Expected: md5"),
    ],
)
def test_another_text_is_refused(tmp_path, text, message):
    (tmp_path / "text8").write_bytes(text)
    with pytest.raises(ValueError, match=message) as error:
        text8.Text8Corpus.load(str(tmp_path))
    assert "http://mattmahoney.net/dc/text8.zip" in str(error.value)
    assert not list(tmp_path.glob("text8_corpus/*"))
