"""Published texts: small ones in their place, and the real enwik8."""

import dataclasses
import gzip
import hashlib
import http.server
import io
import pickle
import tarfile
import threading
import zipfile

import pytest
import tensorflow as tf
from text_files_test import texts_of

from txl_keras.data import load_corpus
from txl_keras.data.corpora import files
from txl_keras.data.corpora import published
from txl_keras.data.corpora.corpus import SPLITS

BYTES = {
    "enwik8": bytes(range(200)) * 4,
    "text8": b" anarchism originated as a term of abuse" * 20,
}
# The texts and the words, and one more for each line.
TEXTS = {
    "train": " aer banknote <unk> \n no it was n't black caf\u00e9 \n".encode(),
    "valid": b" consumers may want \n",
    "test": b" no it \n",
}
COUNTS = {"train": 11, "valid": 4, "test": 3}
WORDS = ("wikitext103", "wikitext2", "ptb")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Makes texts small; returns a function that changes one more."""

    def change(name, **fields):
        old = published.PUBLISHED[name]
        new = dataclasses.replace(old, **fields)
        monkeypatch.setitem(published.PUBLISHED, name, new)

    for name, text in BYTES.items():
        algorithm = "sha256" if name == "enwik8" else "md5"
        digest = hashlib.new(algorithm, text).hexdigest()
        change(name, expected={"train": digest})
    for name in WORDS:
        change(name, expected=COUNTS)
    monkeypatch.setattr(published, "NUM_BYTES", 800)
    monkeypatch.setattr(published, "HELD_OUT_BYTES", 10)
    return change


def parts_of(text):
    parts = text[:-20], text[-20:-10], text[-10:]
    return dict(zip(SPLITS, parts, strict=True))


def write_bytes(folder, form, text):
    packed = text
    if form.endswith(".zip"):
        packed = zipped(text, form.removesuffix(".zip"))
    elif form.endswith(".gz"):
        packed = gzip.compress(text)
    (folder / form).write_bytes(packed)


def zipped(text, name="enwik8"):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, text)
    return buffer.getvalue()


def archived(name, folder):
    """Writes the archive of a text of words."""
    text = published.PUBLISHED[name]
    path = folder / text.archive
    if name == "ptb":
        with tarfile.open(path, "w:gz") as archive:
            for split, content in TEXTS.items():
                info = tarfile.TarInfo(f"./{text.members[split]}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            for split, content in TEXTS.items():
                archive.writestr(text.members[split], content)
    return path


def write_files(name, folder, suffix="", bare=False, **changed):
    for split, content in {**TEXTS, **changed}.items():
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
        (section,) = pickle.loads(pickle.dumps(corpus.text(split).sections()))
        assert b"".join(map(b"".join, section)) == text


@pytest.mark.parametrize("form, end", [("enwik8", b""), ("text8.gz", b"E")])
def test_other_bytes_are_refused(form, end, tmp_path):
    name = form.removesuffix(".gz")
    write_bytes(tmp_path, form, BYTES[name][:-1] + end)
    with pytest.raises(
        ValueError, match=r"Expected: (sha256|md5) \w+. Received: \w+"
    ) as error:
        load_corpus(name, str(tmp_path)).read("test")
    assert f"/dc/{name}.zip" in str(error.value)


# === Texts of words ===


@pytest.mark.parametrize("name", WORDS)
def test_an_archive_is_unpacked(name, tmp_path):
    (tmp_path / "a").mkdir()
    archive = archived(name, tmp_path / "a")
    corpus = load_corpus(name, str(tmp_path / "b"), str(tmp_path / "a"))
    assert texts_of(corpus) == TEXTS
    assert (corpus.name, corpus.encoding) == (name, "utf-8")
    archive.rename(tmp_path / "a" / "other")
    again = load_corpus(name, str(tmp_path / "b"), str(tmp_path / "a"))
    assert texts_of(again) == TEXTS


@pytest.mark.parametrize("suffix, bare", [("", True), (".gz", False)])
def test_unpacked_files_will_do(suffix, bare, tmp_path):
    write_files("ptb", tmp_path / "a", suffix, bare)
    corpus = load_corpus("ptb", str(tmp_path / "b"), str(tmp_path / "a"))
    assert texts_of(corpus) == TEXTS


@pytest.mark.parametrize("name", ["ptb", "wikitext2"])
def test_what_cannot_be_unpacked_is_refused(name, tmp_path):
    path = archived(name, tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[:80])
    if name == "wikitext2":  # an archive of other texts
        path.write_bytes(data.replace(b".train.", b".traim."))
    with pytest.raises(OSError, match=f"{path.name} could not be .*unpacked"):
        load_corpus(name, str(tmp_path)).read("train")


@pytest.mark.parametrize(
    "text, message",
    [
        (b" consumers \n", "Expected: words and line ends 4. Received: 2"),
        (b" consumers \xff", "is not text in UTF-8: invalid start"),
    ],
)
def test_another_text_is_refused(text, message, tmp_path):
    write_files("wikitext103", tmp_path, valid=text)
    with pytest.raises(ValueError, match=message) as error:
        load_corpus("wikitext103", str(tmp_path)).read("train")
    assert "wiki.valid.tokens" in str(error.value)


# === Where files are found ===


def test_the_identity_is_that_of_the_published_text(tmp_path):
    names = [*BYTES, *WORDS]
    corpora = [load_corpus(name, str(tmp_path)) for name in names]
    assert len({corpus.fingerprint() for corpus in corpora}) == len(names)
    again = load_corpus(names[0], str(tmp_path / "other"))
    assert again.fingerprint() == corpora[0].fingerprint()


def test_a_manual_dir_must_be_there(tmp_path):
    for folder in (tmp_path / "nowhere", tmp_path):  # the second is empty
        with pytest.raises(ValueError, match="`manual_dir` must be a folder"):
            load_corpus("ptb", None, str(folder))


# === Downloads ===


@pytest.fixture
def server(tmp_path, small, monkeypatch):
    """Serves a dict of path to `bytes`."""
    served = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = served.get(self.path)
            self.send_response(403 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *args):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        small("enwik8", url=f"{address}/enwik8.zip")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield served
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_a_download_is_kept(place, tmp_path, server, capsys):
    server["/enwik8.zip"] = zipped(BYTES["enwik8"])
    folder = "ram://published/data" if place == "bucket" else str(tmp_path)
    corpus = load_corpus("enwik8", folder)
    for again in (corpus, load_corpus("enwik8", folder)):
        assert texts_of(again) == parts_of(BYTES["enwik8"])
        server.clear()
    assert capsys.readouterr().out == ""
    assert tf.io.gfile.listdir(folder) == ["enwik8"]


@pytest.mark.parametrize(
    "kind, expected", [("altered", ValueError), ("cut", ConnectionError)]
)
def test_a_download_that_is_wrong_is_not_kept(kind, expected, tmp_path, server):
    whole = zipped(BYTES["enwik8"])
    altered = zipped(BYTES["enwik8"][:-1] + b"x")
    server["/enwik8.zip"] = altered if kind == "altered" else whole[:-9]
    corpus = load_corpus("enwik8", str(tmp_path))
    with pytest.raises(expected, match="enwik8.zip"):
        corpus.read("train")
    assert list(tmp_path.iterdir()) == []
    server["/enwik8.zip"] = whole
    assert corpus.read("train") == BYTES["enwik8"][:-20]


def test_without_network_the_error_says_what_to_put_where(tmp_path, small):
    closed = "http://127.0.0.1:9/a.zip"
    small("enwik8", url=closed)
    with pytest.raises(ConnectionError) as error:
        load_corpus("enwik8", str(tmp_path)).read("train")
    for part in (closed, str(tmp_path), "end in .gz", "manual_dir"):
        assert part in str(error.value)


def test_a_data_dir_must_be_writable(tmp_path, server):
    server["/enwik8.zip"] = zipped(BYTES["enwik8"])
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ValueError, match="`data_dir` must be.*`manual_dir`"):
        load_corpus("enwik8", str(tmp_path / "file")).read("train")
