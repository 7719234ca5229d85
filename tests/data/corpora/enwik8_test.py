import gzip
import hashlib
import pathlib
import zipfile

import pytest

from txl_keras.data.corpora import enwik8

REAL = pathlib.Path(__file__).parents[4] / "shared" / "data" / "enwik8.gz"
SMALL = bytes(range(256)) * 40


@pytest.fixture
def small(monkeypatch):
    """Makes enwik8 small, with 10 bytes in each of valid and test."""
    monkeypatch.setattr(enwik8, "LENGTH", len(SMALL))
    monkeypatch.setattr(enwik8, "HELD_OUT", 10)
    digest = hashlib.sha256(SMALL).hexdigest()
    monkeypatch.setattr(enwik8.Enwik8Corpus, "DIGEST", ("sha256", digest))


def write(folder, form, text=SMALL):
    if form == "enwik8.zip":
        with zipfile.ZipFile(folder / form, "w") as archive:
            archive.writestr("enwik8", text)
    elif form == "enwik8.gz":
        (folder / form).write_bytes(gzip.compress(text))
    else:
        (folder / form).write_bytes(text)


@pytest.mark.parametrize("form", ["enwik8", "enwik8.gz", "enwik8.zip"])
def test_it_is_split_in_order(tmp_path, small, form):
    write(tmp_path, form)
    corpus = enwik8.Enwik8Corpus.load(str(tmp_path))
    assert corpus.read("train") == SMALL[:-20]
    assert corpus.read("valid") == SMALL[-20:-10]
    assert corpus.read("test") == SMALL[-10:]
    assert (corpus.name, corpus.encoding) == ("enwik8", "latin-1")
    for split in ("train", "valid", "test"):
        assert len(list(corpus.documents(split))) == 1


@pytest.mark.parametrize("form", ["enwik8", "enwik8.gz", "enwik8.zip"])
def test_what_is_too_short_is_refused(tmp_path, small, form):
    write(tmp_path, form, SMALL[:-1])
    with pytest.raises(ValueError, match="10,240 bytes.*10,239 bytes") as error:
        enwik8.Enwik8Corpus.load(str(tmp_path))
    assert str(tmp_path / form) in str(error.value)
    assert "http://mattmahoney.net/dc/enwik8.zip" in str(error.value)


def test_what_is_altered_is_refused(tmp_path, small):
    write(tmp_path, "enwik8", SMALL[:-1] + b"x")
    with pytest.raises(ValueError, match="Expected: sha256 .*sha256"):
        enwik8.Enwik8Corpus.load(str(tmp_path))
    assert not list(tmp_path.glob("enwik8_corpus/*"))


@pytest.mark.skipif(not REAL.exists(), reason=f"needs {REAL}")
def test_the_real_one(tmp_path):
    corpus = enwik8.Enwik8Corpus.load(str(tmp_path), str(REAL.parent))
    lengths, digest = {}, hashlib.sha256()
    for split in ("train", "valid", "test"):
        lengths[split] = 0
        for block in corpus.blocks(split):
            lengths[split] += len(block.text)
            digest.update(block.text)
    assert lengths == {
        "train": 90_000_000,
        "valid": 5_000_000,
        "test": 5_000_000,
    }
    assert digest.hexdigest() == enwik8.Enwik8Corpus.DIGEST[1]
