import hashlib
import zipfile

import pytest

from txl_keras.data.corpora.wikitext2 import Wikitext2Corpus
from txl_keras.data.corpora.wikitext103 import Wikitext103Corpus
from txl_keras.data.corpora.wikitext103 import split_articles

FIRST = (
    " \n = Homarus gammarus = \n \n Homarus , known as the lobster , café \n"
    " = = Description = = \n \n = x + 1 = \n It is large . \n \n"
)
SECOND = " = E = MC ² = \n \n An album . \n = = = Songs = = = \n \n One . \n \n"
TEXTS = {
    "train": (FIRST + SECOND).encode(),
    "valid": FIRST.encode(),
    "test": SECOND.encode(),
}
# Words, and one more for each line.
TOKENS = {"train": 60, "valid": 35, "test": 25}
BUILDERS = {
    "wikitext-103": Wikitext103Corpus,
    "wikitext-2": Wikitext2Corpus,
}


@pytest.fixture(params=BUILDERS)
def folder(request):
    return request.param


@pytest.fixture
def load(folder, monkeypatch):
    """The `load` of a corpus whose published text is `TEXTS`."""
    builder = BUILDERS[folder]
    monkeypatch.setattr(builder, "TOKENS", TOKENS)
    return lambda data_dir: builder.load(str(data_dir))


@pytest.fixture
def archive(folder, tmp_path, monkeypatch):
    """The published zip file, in tmp_path."""
    path = tmp_path / f"{folder}-v1.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for split, text in TEXTS.items():
            archive.writestr(f"{folder}/wiki.{split}.tokens", text)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(BUILDERS[folder], "ARCHIVE_DIGEST", ("sha256", digest))
    return path


def test_an_article_is_a_document(tmp_path, load, archive):
    corpus = load(tmp_path)
    documents = list(corpus.documents("train"))
    assert documents == [FIRST.encode(), SECOND.encode()]
    assert {split: corpus.read(split) for split in TEXTS} == TEXTS
    assert corpus.encoding == "utf-8"


def test_unpacked_files_will_do(tmp_path, load, folder):
    (tmp_path / folder).mkdir()
    for split, text in TEXTS.items():
        (tmp_path / folder / f"wiki.{split}.tokens").write_bytes(text)
    assert load(tmp_path).read("test") == TEXTS["test"]


def test_another_archive_is_refused(tmp_path, load, archive, folder):
    with archive.open("ab") as file:
        file.write(b"x")
    with pytest.raises(ValueError, match="Expected: sha256") as error:
        load(tmp_path)
    for part in (str(archive), f"wikitext.smerity.com/{folder}-v1.zip"):
        assert part in str(error.value)
    assert not list(tmp_path.glob("wikitext*_corpus/*"))


@pytest.mark.parametrize(
    "text, message",
    [
        (TEXTS["valid"][:-2], "35 words and line ends. Received: 34"),
        (TEXTS["valid"] + b"\xff \n", "Expected: UTF-8.*invalid start byte"),
    ],
)
def test_another_text_is_refused(tmp_path, load, text, message):
    for split in TEXTS:
        path = tmp_path / f"wiki.{split}.tokens"
        path.write_bytes(text if split == "valid" else TEXTS[split])
    with pytest.raises(ValueError, match=message) as error:
        load(tmp_path)
    assert "wiki.valid.tokens" in str(error.value)
    assert not list(tmp_path.glob("wikitext*_corpus/*"))


def test_the_two_are_told_apart():
    names = {builder.name for builder in BUILDERS.values()}
    assert names == {"wikitext103_corpus", "wikitext2_corpus"}


@pytest.mark.parametrize(
    "text, articles",
    [
        (" \n = A = \n \n b \n \n = C = \n \n d \n", 2),
        (" = A = \n \n b \n \n = C = \n", 2),
        (" \n = A = \n \n = = B = = \n \n c \n \n = = = D = = = \n \n", 1),
        ("no title \n at all \n", 1),
        (" \n \n \n = Late = \n \n a \n", 1),
        (" \n = A = \n \n = a formula \n \n = \n \n = = \n", 1),
        (" \n = A = \n \n b \n = C = \n \n", 1),  # no blank line before
        (" \n = A = \n \n b \n \n = C = \n d \n", 1),  # nor after
    ],
)
def test_articles_begin_at_titles(text, articles):
    lines = text.encode().splitlines(keepends=True)
    found = list(split_articles(lines))
    assert len(found) == articles
    assert b"".join(found).decode() == text
