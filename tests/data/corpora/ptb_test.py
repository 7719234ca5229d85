import hashlib
import io
import tarfile

import pytest

from txl_keras.data.corpora import ptb

TEXTS = {
    "train": b" aer banknote <unk> \n no it was n't black monday \n",
    "valid": b" consumers may want \n",
    "test": b" no it \n",
}
TOKENS = {"train": 11, "valid": 4, "test": 3}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(ptb.PtbCorpus, "TOKENS", TOKENS)


@pytest.fixture
def archive(tmp_path, monkeypatch):
    path = tmp_path / "simple-examples.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for split, text in TEXTS.items():
            info = tarfile.TarInfo(f"./simple-examples/data/ptb.{split}.txt")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
    digest = hashlib.md5(path.read_bytes()).hexdigest()
    monkeypatch.setattr(ptb.PtbCorpus, "ARCHIVE_DIGEST", ("md5", digest))
    return path


def write_files(folder, texts=TEXTS):
    folder.mkdir(parents=True, exist_ok=True)
    for split, text in texts.items():
        (folder / f"ptb.{split}.txt").write_bytes(text)


def test_a_split_is_one_document(tmp_path, archive):
    corpus = ptb.PtbCorpus.load(str(tmp_path))
    assert {split: corpus.read(split) for split in TEXTS} == TEXTS
    assert len(list(corpus.documents("train"))) == 1
    assert (corpus.name, corpus.encoding) == ("ptb", "utf-8")


@pytest.mark.parametrize("folder", [".", "simple-examples/data"])
def test_unpacked_files_will_do(tmp_path, folder):
    write_files(tmp_path / folder)
    assert ptb.PtbCorpus.load(str(tmp_path)).read("valid") == TEXTS["valid"]


def test_another_archive_is_refused(tmp_path, archive):
    archive.write_bytes(archive.read_bytes()[:-1])
    with pytest.raises(ValueError, match="Expected: md5") as error:
        ptb.PtbCorpus.load(str(tmp_path))
    for part in (str(archive), "fit.vutbr.cz", "bcebos.com"):
        assert part in str(error.value)
    assert not list(tmp_path.glob("ptb_corpus/*"))


@pytest.mark.parametrize("damage", [b"<!DOCTYPE html>", None])
def test_what_cannot_be_unpacked_is_refused(tmp_path, archive, damage):
    archive.write_bytes(damage or archive.read_bytes()[:80])
    digest = hashlib.md5(archive.read_bytes()).hexdigest()
    ptb.PtbCorpus.ARCHIVE_DIGEST = ("md5", digest)
    with pytest.raises(ValueError, match="truncated or damaged"):
        ptb.PtbCorpus.load(str(tmp_path))


def test_another_text_is_refused(tmp_path):
    write_files(tmp_path, {**TEXTS, "test": b" no it was \n"})
    with pytest.raises(ValueError, match="ptb.test.txt .*Expected: 3 .*: 4"):
        ptb.PtbCorpus.load(str(tmp_path))
