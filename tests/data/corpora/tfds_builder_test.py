"""What all corpora prepared by TFDS have in common, shown on a small one."""

import gzip
import http.server
import os
import pathlib
import tempfile
import threading
import time
import zipfile

import pytest
import requests

from txl_keras.data.corpora.published_files import read_chunks
from txl_keras.data.corpora.tfds_builder import TextBuilder
from txl_keras.data.corpora.tfds_builder import tfds

TEXTS = {
    "train": bytes(range(256)) * 20 + b"\0\0",
    "valid": b"\0 \xff\n",
    "test": b"\n\n\x80",
}


class AnyBytesCorpus(TextBuilder, skip_registration=True):
    """Any bytes, in records of 7."""

    URLS = ("http://a.example/any.zip", "http://b.example/mirror.zip")
    MANUAL_DOWNLOAD_INSTRUCTIONS = "any.zip or the *.bin"
    MEMBERS = {split: f"any/{split}.bin" for split in TEXTS}
    ENCODING = "latin-1"

    def check(self, sources):
        for split, source in sources.items():
            length = sum(map(len, read_chunks(source)))
            if length != len(TEXTS[split]):
                raise self.mismatch_error(
                    source, f"{len(TEXTS[split])}", f"{length}"
                )

    def records(self, source, split):
        text = b"".join(read_chunks(source))
        for start in range(0, len(text), 7):
            yield text[start : start + 7]


def write_zip(folder, texts=TEXTS):
    path = folder / "any.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for split, text in texts.items():
            archive.writestr(f"any/{split}.bin", text)
    return path


def write_files(folder, suffix=""):
    folder.mkdir(exist_ok=True)
    pack = gzip.compress if suffix else bytes
    for split, text in TEXTS.items():
        (folder / f"{split}.bin{suffix}").write_bytes(pack(text))


def prepared(folder):
    """The folders of datasets, finished or not."""
    return sorted(path.name for path in folder.glob("any_bytes_corpus/*"))


def load(*folders):
    return AnyBytesCorpus.load(*map(str, folders))


def forbid_network(monkeypatch, error=requests.ConnectionError):
    asked = []

    def get(session, url, **kwargs):
        asked.append(url)
        raise error("long story", request=requests.Request("GET", url))

    monkeypatch.setattr(requests.Session, "get", get)
    return asked


# === What is read back ===


def test_text_comes_back_byte_for_byte_each_time(tmp_path):
    write_zip(tmp_path)
    corpus = load(tmp_path)
    for _ in range(2):
        assert {split: corpus.read(split) for split in TEXTS} == TEXTS
    assert corpus.name == "any_bytes"
    assert corpus.encoding == "latin-1"


def test_a_split_is_one_document_or_as_many_as_it_has_records(
    tmp_path, monkeypatch
):
    write_zip(tmp_path)
    (document,) = load(tmp_path).documents("test")
    assert list(document) == [TEXTS["test"]]
    monkeypatch.setattr(AnyBytesCorpus, "ONE_DOCUMENT", False)
    documents = list(load(tmp_path).documents("train"))
    assert len(documents) == -(-len(TEXTS["train"]) // 7)
    assert b"".join(documents) == TEXTS["train"]


def test_order_is_kept_across_files(tmp_path, monkeypatch):
    write_zip(tmp_path)
    config = tfds.download.DownloadConfig
    monkeypatch.setattr(
        tfds.download,
        "DownloadConfig",
        lambda **options: config(num_shards=3, **options),
    )
    monkeypatch.setattr(
        AnyBytesCorpus,
        "records",
        lambda self, source, split: [b"%d " % i for i in range(500)],
    )
    corpus = load(tmp_path)
    assert len(list(tmp_path.glob("any_bytes_corpus/1.0.0/*train*"))) == 3
    assert corpus.read("train").split() == [b"%d" % i for i in range(500)]


def test_the_identity_tells_versions_and_texts_apart(tmp_path, monkeypatch):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        write_zip(tmp_path / name)
    first = load(tmp_path / "a")
    assert first.identity["builder"] == "any_bytes_corpus/1.0.0"
    assert first.identity["splits"]["test"][0] == 1
    assert load(tmp_path / "a").fingerprint() == first.fingerprint()
    assert load(tmp_path / "b").fingerprint() == first.fingerprint()
    monkeypatch.setattr(AnyBytesCorpus, "VERSION", tfds.core.Version("1.0.1"))
    assert load(tmp_path / "c").fingerprint() != first.fingerprint()


# === Unpacked files ===


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("folder", ["", "any"])
def test_unpacked_files_will_do(tmp_path, folder, suffix):
    write_files(tmp_path / folder, suffix)
    corpus = load(tmp_path / "prepared", tmp_path)
    assert corpus.read("train") == TEXTS["train"]


# === Refusals ===


def test_another_text_is_refused_and_nothing_is_left(tmp_path):
    path = write_zip(tmp_path, {**TEXTS, "valid": b"other"})
    with pytest.raises(ValueError) as error:
        load(tmp_path)
    for part in (f"{path}/any/valid.bin", *AnyBytesCorpus.URLS, "4", "5"):
        assert part in str(error.value)
    assert prepared(tmp_path) == []
    write_zip(tmp_path)
    assert load(tmp_path).read("valid") == TEXTS["valid"]


@pytest.mark.parametrize("damage", ["truncated", "altered", "incomplete"])
def test_a_damaged_archive_is_refused(tmp_path, damage):
    path = write_zip(tmp_path)
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        path.write_bytes(content[:-30])
    elif damage == "altered":
        content[60] ^= 1
        path.write_bytes(content)
    else:
        write_zip(tmp_path, {"train": TEXTS["train"]})
    with pytest.raises(ValueError, match="any.zip") as error:
        load(tmp_path)
    expected = "must contain" if damage == "incomplete" else "damaged"
    assert expected in str(error.value)
    assert prepared(tmp_path) == []


def test_a_manual_dir_must_be_there(tmp_path):
    with pytest.raises(ValueError, match="`manual_dir` must be a folder"):
        load(tmp_path, tmp_path / "nowhere")


def test_a_data_dir_must_be_writable(tmp_path, monkeypatch):
    write_zip(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ValueError, match="`data_dir`.*`manual_dir`"):
        load(tmp_path / "file", tmp_path)
    # Tests may run as root, who may write anywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ValueError, match="written to.*--data_dir"):
        load(tmp_path / "other", tmp_path)


# === Downloads ===


def test_without_network_the_error_says_what_to_put_where(
    tmp_path, monkeypatch
):
    asked = forbid_network(monkeypatch)
    with pytest.raises(ConnectionError) as error:
        load(tmp_path)
    assert asked == list(AnyBytesCorpus.URLS)
    message = str(error.value)
    for part in (*asked, str(tmp_path), "any.zip or the *.bin", "manual_dir"):
        assert part in message
    assert "long story" not in message
    assert prepared(tmp_path) == []


def test_without_network_it_fails_at_once(tmp_path, monkeypatch):
    closed = ("http://127.0.0.1:9/any.zip",)
    monkeypatch.setattr(AnyBytesCorpus, "URLS", closed)
    start = time.time()
    with pytest.raises(ConnectionError, match="127.0.0.1"):
        load(tmp_path)
    assert time.time() - start < 10


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Serves a dict of path to `bytes`, cut short for the paths in a set."""
    files, cut = {}, set()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = files.get(self.path)
            self.send_response(403 if body is None else 200)
            length = len(body or b"")
            if self.path in cut:
                length += 1
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *args):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        urls = (f"{address}/any.zip", f"{address}/mirror.zip")
        monkeypatch.setattr(AnyBytesCorpus, "URLS", urls)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield files, cut
        server.shutdown()
        thread.join()


def zip_bytes(texts=TEXTS):
    with tempfile.TemporaryDirectory() as folder:
        return write_zip(pathlib.Path(folder), texts).read_bytes()


def test_a_mirror_is_asked_where_the_source_is_closed(tmp_path, server):
    files, _ = server
    files["/mirror.zip"] = zip_bytes()
    assert load(tmp_path).read("train") == TEXTS["train"]
    # And the download is kept.
    assert list(tmp_path.glob("downloads/any_bytes_corpus/*.zip"))


def test_a_download_that_breaks_off_is_not_used(tmp_path, server):
    files, cut = server
    files["/any.zip"] = zip_bytes()
    cut.add("/any.zip")
    with pytest.raises(ConnectionError, match="any.zip .*Error.*HTTP code"):
        load(tmp_path)
    cut.clear()
    assert load(tmp_path).read("train") == TEXTS["train"]


def test_a_wrong_download_is_not_kept(tmp_path, server):
    files, _ = server
    files["/any.zip"] = zip_bytes({**TEXTS, "test": b""})
    with pytest.raises(ValueError, match="another file"):
        load(tmp_path)
    assert prepared(tmp_path) == []
    files["/any.zip"] = zip_bytes()
    assert load(tmp_path).read("test") == TEXTS["test"]


# === What was prepared ===


def test_what_is_prepared_is_used_without_the_source(tmp_path, monkeypatch):
    write_zip(tmp_path)
    load(tmp_path)
    (tmp_path / "any.zip").unlink()
    asked = forbid_network(monkeypatch)
    assert load(tmp_path).read("train") == TEXTS["train"]
    assert not asked


def test_a_run_after_one_that_was_stopped_starts_clean(tmp_path, monkeypatch):
    write_zip(tmp_path)

    def stop(self, source, split):
        yield b"begun"
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(AnyBytesCorpus, "records", stop)
        with pytest.raises(KeyboardInterrupt):
            load(tmp_path)
    assert prepared(tmp_path) == []
    # As a killed process leaves it.
    left = tmp_path / "any_bytes_corpus" / "incomplete.ABCDEF_1.0.0"
    left.mkdir(parents=True)
    (left / "any_bytes_corpus-train.tfrecord").write_bytes(b"begun")
    assert load(tmp_path).read("train") == TEXTS["train"]
    assert prepared(tmp_path) == ["1.0.0"]


def test_an_incomplete_folder_is_refused(tmp_path):
    write_zip(tmp_path)
    (tmp_path / "any_bytes_corpus" / "1.0.0").mkdir(parents=True)
    with pytest.raises(ValueError, match="not a complete dataset. Delete it"):
        load(tmp_path)


def test_two_runs_may_prepare_the_same(tmp_path, monkeypatch):
    write_zip(tmp_path)
    records = AnyBytesCorpus.records
    others = []

    def prepare_meanwhile(self, source, split):
        if not others:
            others.append(None)
            others[0] = load(tmp_path)
        return records(self, source, split)

    monkeypatch.setattr(AnyBytesCorpus, "records", prepare_meanwhile)
    corpus = load(tmp_path)
    assert corpus.read("train") == others[0].read("train") == TEXTS["train"]
    assert prepared(tmp_path) == ["1.0.0"]
