"""Published texts: small ones in their place, and the real enwik8."""

import dataclasses
import gzip
import hashlib
import http.server
import io
import os
import tarfile
import threading
import zipfile

import pytest
import tensorflow as tf
from text_files_test import texts_of

from txl_keras.data.corpora import files
from txl_keras.data.corpora import load_corpus
from txl_keras.data.corpora import published
from txl_keras.data.corpora.corpus import SPLITS
from txl_keras.data.corpora.published import split_articles

BYTES = {
    "enwik8": bytes(range(256)) * 40,
    "text8": b" anarchism originated as a term of abuse" * 20,
}
FIRST = (
    " \n = Homarus gammarus = \n \n Homarus , known as the lobster , café \n"
    " = = Description = = \n \n = x + 1 = \n It is large . \n \n"
)
SECOND = " = E = MC ² = \n \n An album . \n = = = Songs = = = \n \n One . \n \n"
ARTICLES = {
    "train": (FIRST + SECOND).encode(),
    "valid": FIRST.encode(),
    "test": SECOND.encode(),
}
# By name, the texts and the words, and one more for each line.
WORDS = {
    "wikitext103": (ARTICLES, (60, 35, 25)),
    "wikitext2": (ARTICLES, (60, 35, 25)),
    "ptb": (
        {
            "train": b" aer banknote <unk> \n no it was n't black monday \n",
            "valid": b" consumers may want \n",
            "test": b" no it \n",
        },
        (11, 4, 3),
    ),
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Makes texts small; returns a function that changes one more."""

    def change(name, **fields):
        old = published.PUBLISHED[name]
        new = dataclasses.replace(old, **fields)
        monkeypatch.setitem(published.PUBLISHED, name, new)

    for name, text in BYTES.items():
        algorithm = published.PUBLISHED[name].algorithm
        digest = hashlib.new(algorithm, text).hexdigest()
        change(name, bounds=(len(text), 10), digest=digest)
    for name, (_, counts) in WORDS.items():
        change(name, tokens=dict(zip(SPLITS, counts, strict=True)))
    return change


def parts_of(text):
    parts = text[:-20], text[-20:-10], text[-10:]
    return dict(zip(SPLITS, parts, strict=True))


def write_bytes(folder, form, text):
    name = form.partition(".")[0]
    if form.endswith(".zip"):
        with zipfile.ZipFile(folder / form, "w") as archive:
            archive.writestr(name, text)
    elif form.endswith(".gz"):
        (folder / form).write_bytes(gzip.compress(text))
    else:
        (folder / form).write_bytes(text)


def archived(name, folder, small):
    """Writes the archive of a text of words, whose digest is the right one."""
    text = published.PUBLISHED[name]
    path = folder / os.path.basename(text.urls[0])
    if name == "ptb":
        with tarfile.open(path, "w:gz") as archive:
            for split, content in WORDS[name][0].items():
                info = tarfile.TarInfo(f"./{text.members[split]}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            for split, content in WORDS[name][0].items():
                archive.writestr(text.members[split], content)
    digest = hashlib.new(text.algorithm, path.read_bytes()).hexdigest()
    small(name, digest=digest)
    return path


def write_files(name, folder, suffix="", bare=False, **changed):
    for split, content in WORDS[name][0].items():
        content = changed.get(split, content)
        path = folder / (published.PUBLISHED[name].members[split] + suffix)
        path = folder / path.name if bare else path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(content) if suffix else content)


# === Texts of bytes ===


@pytest.mark.parametrize("suffix", ["", ".gz", ".zip"])
@pytest.mark.parametrize("name", BYTES)
def test_bytes_are_split_in_order(name, suffix, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "CHUNK_BYTES", 100)
    write_bytes(tmp_path, name + suffix, BYTES[name])
    corpus = load_corpus(name, str(tmp_path))
    for _ in range(2):
        assert texts_of(corpus) == parts_of(BYTES[name])
    assert (corpus.name, corpus.encoding) == (name, "latin-1")
    for split, text in parts_of(BYTES[name]).items():
        assert corpus.text(split).num_bytes == len(text)
        assert len(list(corpus.text(split))) == 1


@pytest.mark.parametrize("suffix", ["", ".gz", ".zip"])
@pytest.mark.parametrize("change", ["shorter", "altered"])
@pytest.mark.parametrize("name", BYTES)
def test_other_bytes_are_refused(name, change, suffix, tmp_path):
    end = b"" if change == "shorter" else b"E"
    write_bytes(tmp_path, name + suffix, BYTES[name][:-1] + end)
    with pytest.raises(
        ValueError, match=r"Expected: (sha256|md5) \w+. Received: \w+"
    ) as error:
        load_corpus(name, str(tmp_path)).read("test")
    for part in (str(tmp_path / f"{name}{suffix}"), f"/dc/{name}.zip"):
        assert part in str(error.value)


# === Texts of words ===


@pytest.mark.parametrize("name", WORDS)
def test_an_archive_is_read(name, tmp_path, small):
    archived(name, tmp_path, small)
    corpus = load_corpus(name, str(tmp_path))
    assert texts_of(corpus) == WORDS[name][0]
    assert (corpus.name, corpus.encoding) == (name, "utf-8")
    documents = list(corpus.text("train"))
    assert len(documents) == (1 if name == "ptb" else 2)
    if name != "ptb":  # an article is a document
        assert documents == [FIRST.encode(), SECOND.encode()]


@pytest.mark.parametrize("suffix, bare", [("", True), (".gz", False)])
@pytest.mark.parametrize("name", WORDS)
def test_unpacked_files_will_do(name, suffix, bare, tmp_path):
    write_files(name, tmp_path / "a", suffix, bare)
    corpus = load_corpus(name, str(tmp_path / "b"), str(tmp_path / "a"))
    assert texts_of(corpus) == WORDS[name][0]


@pytest.mark.parametrize("name", WORDS)
def test_another_archive_is_refused(name, tmp_path, small):
    path = archived(name, tmp_path, small)
    with path.open("ab") as file:
        file.write(b"x")
    with pytest.raises(ValueError, match="Expected: (sha256|md5)") as error:
        load_corpus(name, str(tmp_path)).read("valid")
    for part in (str(path), *published.PUBLISHED[name].urls):
        assert part in str(error.value)


@pytest.mark.parametrize(
    "name, damage",
    [("ptb", b"<!DOCTYPE html>"), ("ptb", None), ("wikitext2", b"no.tokens")],
)
def test_what_cannot_be_unpacked_is_refused(name, damage, tmp_path, small):
    path = archived(name, tmp_path, small)
    data = path.read_bytes()
    path.write_bytes(damage or data[:80])
    if name == "wikitext2":  # an archive of other texts
        path.write_bytes(data.replace(b".train.", b".traim."))
    small(name, digest=hashlib.md5(path.read_bytes()).hexdigest())
    with pytest.raises(ValueError, match="truncated or damaged"):
        load_corpus(name, str(tmp_path)).read("train")


@pytest.mark.parametrize(
    "text, message",
    [
        (FIRST.encode()[:-2], "Expected: words and line ends 35. Received: 34"),
        (FIRST.encode() + b"\xff \n", "is not text in UTF-8: byte 0xff at"),
    ],
)
def test_another_text_is_refused(text, message, tmp_path):
    write_files("wikitext103", tmp_path, valid=text)
    with pytest.raises(ValueError, match=message) as error:
        load_corpus("wikitext103", str(tmp_path)).read("train")
    assert "wiki.valid.tokens" in str(error.value)


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


# === Where files are found ===


def test_the_identity_is_that_of_the_published_text(tmp_path):
    names = [*BYTES, *WORDS]
    corpora = [load_corpus(name, str(tmp_path)) for name in names]
    assert len({corpus.fingerprint() for corpus in corpora}) == len(names)
    again = load_corpus(names[0], str(tmp_path / "other"))
    assert again.fingerprint() == corpora[0].fingerprint()


@pytest.mark.parametrize("folder", ["nowhere", "empty"])
def test_a_manual_dir_must_be_there(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="`manual_dir` must be a folder"):
        load_corpus("ptb", None, str(tmp_path / folder))


# === Downloads ===


@pytest.fixture
def server(tmp_path, small, monkeypatch):
    """Serves a dict of path to `bytes`, cut short for the paths in a set."""
    served, cut = {}, set()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = served.get(self.path)
            self.send_response(403 if body is None else 200)
            length = len(body or b"") + (self.path in cut)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *args):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        small("enwik8", urls=(f"{address}/enwik8.zip", f"{address}/mirror.zip"))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield served, cut
        server.shutdown()
        thread.join()


def zipped(text):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("enwik8", text)
    return buffer.getvalue()


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_a_mirror_is_asked_and_its_file_is_kept(
    place, tmp_path, server, capsys
):
    served, _ = server
    served["/mirror.zip"] = zipped(BYTES["enwik8"])
    folder = "ram://published/data" if place == "bucket" else str(tmp_path)
    corpus = load_corpus("enwik8", folder)
    for again in (corpus, load_corpus("enwik8", folder)):
        assert texts_of(again) == parts_of(BYTES["enwik8"])
        served.clear()
    assert capsys.readouterr().out == ""
    assert tf.io.gfile.listdir(folder) == ["enwik8.zip"]


@pytest.mark.parametrize("kind", ["cut", "altered", "no zip"])
def test_a_download_that_is_wrong_is_not_kept(kind, tmp_path, server):
    served, cut = server
    whole = zipped(BYTES["enwik8"])
    altered = zipped(BYTES["enwik8"][:-1] + b"x")
    served["/enwik8.zip"] = {"altered": altered, "no zip": b"<html>"}.get(
        kind, whole
    )
    if kind == "cut":
        cut.add("/enwik8.zip")
    corpus = load_corpus("enwik8", str(tmp_path))
    expected = ConnectionError if kind == "cut" else ValueError
    with pytest.raises(expected, match="enwik8.zip"):
        corpus.read("train")
    assert list(tmp_path.iterdir()) == []
    served["/enwik8.zip"] = whole
    cut.clear()
    assert corpus.read("train") == BYTES["enwik8"][:-20]


def test_without_network_the_error_says_what_to_put_where(tmp_path, small):
    closed = tuple(f"http://127.0.0.1:9/{name}.zip" for name in ("a", "b"))
    small("enwik8", urls=closed)
    with pytest.raises(ConnectionError) as error:
        load_corpus("enwik8", str(tmp_path)).read("train")
    for part in (*closed, str(tmp_path), "end in .gz", "manual_dir"):
        assert part in str(error.value)


def test_a_data_dir_must_be_writable(tmp_path, server):
    served, _ = server
    served["/enwik8.zip"] = zipped(BYTES["enwik8"])
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ValueError, match="`data_dir` must be.*`manual_dir`"):
        load_corpus("enwik8", str(tmp_path / "file")).read("train")
