import gzip
import json
import os

import pytest
import tensorflow as tf

from txl_keras.data import load_corpus
from txl_keras.data.corpora.corpus import SPLITS
from txl_keras.data.corpora.loading import corpus_path


def write_files(folder, files):
    """Writes a dict of relative path to bytes."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def texts_of(corpus):
    return {split: corpus.read(split) for split in SPLITS}


def documents_of(corpus, split):
    """Documents of a split, each in one piece."""
    documents = corpus.text(split)
    return [d if isinstance(d, bytes) else b"".join(d) for d in documents]


@pytest.mark.parametrize("name", ["book.txt", "book.txt.gz", "ram://b/a.txt"])
def test_a_file_is_cut_in_three(name, tmp_path):
    text = b"".join(b"line %d\n" % i for i in range(1000))[:-1]
    path = name if "://" in name else str(tmp_path / name)
    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(gzip.compress(text) if name.endswith(".gz") else text)
    corpus = load_corpus(path)
    splits = texts_of(corpus)
    assert splits["train"] + splits["valid"] + splits["test"] == text
    assert all(data.startswith(b"line") for data in splits.values())
    assert 0.89 < len(splits["train"]) / len(text) < 0.91
    assert corpus.name == path
    if not name.endswith(".gz"):
        assert corpus.text("train").num_bytes == len(splits["train"])
    assert corpus.encoding == "utf-8"
    assert len(documents_of(corpus, "train")) == 1


def test_a_named_split_without_text_is_refused(tmp_path):
    """Otherwise the end of train would be taken for it."""
    write_files(tmp_path, {"train.txt": b"one" * 99, "valid.txt": b""})
    os.mkfifo(tmp_path / "test.txt")
    with pytest.raises(ValueError, match=r"empty files.*\['valid', 'test'\]"):
        load_corpus(tmp_path)
    (tmp_path / "test.txt").unlink()
    (tmp_path / "valid.txt").unlink()
    write_files(tmp_path, {"valid-0.txt": b"two", "test.txt": b"three"})
    assert texts_of(load_corpus(tmp_path))["valid"] == b"two"


@pytest.mark.parametrize("pattern", ["", "part*/*.txt", "*/*"])
def test_files_of_a_folder_stay_whole(pattern, tmp_path):
    files = {
        f"part{i % 3}/{i:02}.txt": b"text %02d\n" % i * 20 for i in range(60)
    }
    write_files(tmp_path, files)
    write_files(tmp_path, {".hidden": b"\xff", ".git/config": b"\xff"})
    corpus = load_corpus(tmp_path / pattern)
    splits = texts_of(corpus)
    assert sum(map(len, splits.values())) == sum(map(len, files.values()))
    for name, text in files.items():
        assert sum(text in data for data in splits.values()) == 1, name
    order = [splits["train"].find(files[name]) for name in sorted(files)]
    order = [place for place in order if place >= 0]
    assert order == sorted(order)
    assert len(splits["valid"]) == len(splits["test"]) == 3 * 160
    assert len(documents_of(corpus, "valid")) == 3


def test_files_do_not_run_together_and_copies_count_once(tmp_path):
    files = {f"{i}.txt": b"line %d" % i for i in range(40)}
    more = {"copy.txt": b"line 7", "empty.txt": b""}
    more["windows.txt"] = b"\xef\xbb\xbfline 7"  # its mark is no text
    write_files(tmp_path, {**files, **more})
    splits = texts_of(load_corpus(tmp_path))
    lines = b"".join(splits.values()).splitlines()
    assert sorted(lines) == sorted([*files.values(), b"line 7"])


def test_each_of_two_files_is_cut_like_one(tmp_path):
    write_files(tmp_path, {"b.txt": b"b\n" * 50, "a.txt": b"a\n" * 49 + b"a"})
    corpus = load_corpus(tmp_path)
    splits = texts_of(corpus)
    assert splits["train"] == b"a\n" * 45 + b"b\n" * 46
    assert splits["test"].count(b"a") and splits["test"].count(b"b")
    assert b"".join(splits.values()).count(b"a\n") == 50
    assert [len(documents_of(corpus, split)) for split in SPLITS] == [2, 2, 2]


def test_a_few_books_beside_tiny_files_are_cut(tmp_path):
    tiny = {f"note{i}.txt": b"note %d\n" % i for i in range(3)}
    books = {f"{x}.txt": x.encode() + b"\n" * 999 for x in "ab"}
    write_files(tmp_path, tiny | books)
    for text in texts_of(load_corpus(tmp_path)).values():
        assert text.count(b"\n") >= 100


def test_large_files_of_one_document_are_held_out_whole(tmp_path):
    lines = [json.dumps({"text": str(i)}) for i in range(60)]
    notes = {"notes.jsonl": "\n".join(lines).encode()}
    books = {
        f"{x}.jsonl": json.dumps({"text": x * (30_000 + ord(x))}).encode()
        for x in "abc"
    }
    write_files(tmp_path, notes | books)
    splits = texts_of(load_corpus(tmp_path))
    # Cut, valid and test would be the last few lines of the notes.
    assert all(len(text) > 30_000 for text in splits.values())


def test_separators_part_documents_and_are_no_part_of_them(tmp_path):
    documents = [f"document {i}\n\nof é\n" for i in range(60)]
    path = tmp_path / "all.txt"
    path.write_text("<|end|>".join(documents), "utf-8")
    corpus = load_corpus(path, document_separator="<|end|>")
    found = [d for split in SPLITS for d in documents_of(corpus, split)]
    assert [text.decode() for text in found] == documents
    assert len(documents_of(corpus, "test")) == 3
    with pytest.raises(ValueError, match=r"each split.*\['valid', 'test'\]"):
        load_corpus(path, document_separator="a separator that is not there")


@pytest.mark.parametrize("key", ["text", "body"])
def test_lines_of_json_are_documents(key, tmp_path):
    documents = [f"number {i}\nnaïve" for i in range(60)]
    lines = [json.dumps({key: text, "id": 3}) for text in documents]
    path = tmp_path / "all.jsonl"
    path.write_text("\n".join(lines) + "\n\n", "utf-8")
    corpus = load_corpus(path, text_key=None if key == "text" else key)
    found = [d for split in SPLITS for d in documents_of(corpus, split)]
    assert [text.decode() for text in found] == [d + "\n" for d in documents]
    with pytest.raises(ValueError, match="line 1: .*`text_key`.*'title'"):
        documents_of(load_corpus(path, text_key="title"), "train")


def test_a_line_of_json_takes_little_memory(tmp_path):
    line = '{"text": "a", "x": [' + "[]," * (1 << 20) + "0]}\n"
    (tmp_path / "a.jsonl").write_text(line)
    with pytest.raises(ValueError, match="commas and opening brackets"):
        load_corpus(tmp_path / "a.jsonl", whole=True).read("all")


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"text": 3}', "null", "[" * 99_999]
)
def test_a_line_that_is_no_such_json_is_named(line, tmp_path):
    good = '{"text": "a"}\n'
    (tmp_path / "a.jsonl").write_text(good * 2 + line + "\n" + good * 97)
    corpus = load_corpus(tmp_path / "a.jsonl")
    with pytest.raises(ValueError, match="a.jsonl, line 3: .*Received: b"):
        documents_of(corpus, "train")


@pytest.mark.parametrize(
    "text, reason",
    [
        (b"a" * (2**20 - 1) + b"\xc3\xa9\xff", "after byte 1048576"),
        (b"a" * 50 + b"\xe2\x82", "unexpected end of data after byte 52"),
        ("text\n".encode("utf-16-le"), "has a zero byte after byte 0"),
    ],
)
def test_what_is_no_text_in_utf8_is_named(text, reason, tmp_path):
    for name in ("valid.txt", "test.txt"):
        (tmp_path / name).write_bytes(b"fine")
    (tmp_path / "train.txt").write_bytes(text)
    with pytest.raises(ValueError, match=f"train.txt .*{reason}.*iconv"):
        load_corpus(tmp_path).read("train")


def test_the_size_of_packed_text_is_estimated(tmp_path):
    text = b"".join(b"line %d, " % i for i in range(9000))
    for name in ("train", "train_2", "valid", "test"):
        packed = gzip.compress(text + name.encode())
        (tmp_path / f"{name}.txt.gz").write_bytes(packed)
    train = load_corpus(tmp_path).text("train")
    assert train.num_bytes < len(text) / 2
    assert train.num_text_bytes == pytest.approx(2 * len(text), rel=0.01)
    cut = load_corpus(tmp_path / "train.txt.gz").text("train")
    assert cut.num_text_bytes == pytest.approx(0.9 * len(text), rel=0.01)


def test_a_damaged_gz_is_named(tmp_path):
    packed = gzip.compress(os.urandom(3000).hex().encode())
    for name in ("valid.txt.gz", "test.txt.gz"):
        (tmp_path / name).write_bytes(packed)
    for damaged in (packed[:-20], b"not gzip", packed[:30] + b"?" * 999):
        (tmp_path / "train.txt.gz").write_bytes(damaged)
        corpus = load_corpus(tmp_path)
        assert corpus.text("train").num_text_bytes > 0
        with pytest.raises(
            ValueError, match="train.txt.gz is truncated or dam"
        ):
            corpus.read("train")


def test_a_link_to_a_folder_above_is_named(tmp_path):
    write_files(tmp_path, {f"{i}.txt": b"text %d\n" % i for i in range(5)})
    write_files(tmp_path, {"other/5.txt": b"text 5\n"})
    (tmp_path / "again").symlink_to(tmp_path / "other")  # only a copy
    assert len(load_corpus(tmp_path, whole=True).read("all")) == 6 * 7
    (tmp_path / "other" / "up").symlink_to(tmp_path)
    (tmp_path / "other" / "here").symlink_to(".")  # without end, in two ways
    with pytest.raises(ValueError, match="must not be a link to"):
        load_corpus(tmp_path)


def test_what_is_no_text_file_is_left_out_or_named(tmp_path):
    write_files(tmp_path, {f"{i}.txt": b"text %d\n" % i for i in range(5)})
    os.mkfifo(tmp_path / "pipe.txt")  # would be waited for
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "endless.txt").symlink_to("/dev/zero")
    for place in (tmp_path, tmp_path / "*.txt"):
        text = load_corpus(place, whole=True).read("all")
        assert text == b"".join(b"text %d\n" % i for i in range(5))
    write_files(tmp_path, {".train.txt.swp": b"\xff", ".git/a.txt": b"\xff"})
    texts = texts_of(load_corpus(tmp_path))
    assert sorted(b"".join(texts.values())) == sorted(text)
    for name in ("gone", "loop"):
        link = tmp_path / f"{name}.txt"
        link.symlink_to(tmp_path / "loop.txt")  # one of them to itself
        for place in (tmp_path, tmp_path / "*.txt"):
            with pytest.raises(OSError, match=rf"links.*{name}\.txt"):
                load_corpus(place)
        link.unlink()


def test_a_file_that_became_shorter_is_named(tmp_path):
    path = tmp_path / "book.txt.gz"
    path.write_bytes(gzip.compress(b"line\n" * 2000))
    corpus = load_corpus(path)
    begun = iter(corpus.text("test"))
    next(begun)
    path.write_bytes(gzip.compress(b"line\n" * 1990))
    for documents in (begun, corpus.text("test")):
        with pytest.raises(ValueError, match="book.* was changed while it was"):
            list(documents)


def test_options_that_do_nothing_and_deep_patterns_are_refused(tmp_path):
    for options in ({"whole": True}, {"document_separator": "|"}):
        with pytest.raises(ValueError, match="the path of your own text"):
            load_corpus("python_stdlib", **options)
    with pytest.raises(ValueError, match="must not have .* pass the folder"):
        load_corpus(tmp_path / "**" / "*.txt")


def test_too_little_text_is_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one file with text"):
        load_corpus(tmp_path)
    path = tmp_path / "tiny.txt"
    path.write_bytes(b"")
    (tmp_path / "zero.txt").symlink_to("/dev/zero")
    for place in (path, tmp_path / "zero.txt", tmp_path):
        with pytest.raises(ValueError, match=f"{place} must be.*pipes and dev"):
            load_corpus(place)
    (tmp_path / "zero.txt").unlink()
    path.write_bytes(b"ab\n")
    with pytest.raises(
        ValueError, match=r"for each split.*no text in \['valid'\]"
    ):
        load_corpus(path)


def test_a_changed_file_is_another_corpus(tmp_path):
    path = tmp_path / "book.txt"
    path.write_bytes(b"line\n" * 100)
    before = load_corpus(path).fingerprint()
    assert load_corpus(path).fingerprint() == before
    assert load_corpus(path, document_separator="\n").fingerprint() != before
    os.utime(path, ns=(1, 1))
    assert load_corpus(path).fingerprint() != before


def test_paths_are_absolute_and_names_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    assert corpus_path("books") == str(tmp_path / "books")
    assert corpus_path("~/books") == "/home/someone/books"
    for name in ("enwik8", "tfds:lm1b", "gs://bucket/books"):
        assert corpus_path(name) == name


def test_shards_of_a_data_set_hub_stay_in_their_splits(tmp_path):
    """Many shards of train; texts differ, and none is left out."""
    texts = {}
    for split, count in (("train", 10), ("validation", 1), ("test", 2)):
        shards = [f"{split} {i}\n".encode() * 7 for i in range(count)]
        for i, text in enumerate(shards):
            name = f"data/{split}-{i:05}-of-{count:05}.txt"
            write_files(tmp_path, {name: text})
        texts[split.removesuffix("ation")] = b"".join(shards)
    write_files(tmp_path, {"README.md": b"# About\n", "infos.json": b"{}\n"})
    corpus = load_corpus(tmp_path)
    assert texts_of(corpus) == texts
    assert corpus.description == (
        "valid is data/validation-00000-of-00001.txt; test is "
        "data/test-00000-of-00002.txt and data/test-00001-of-00002.txt "
        "(by name); left out: README.md and infos.json"
    )


def test_splits_do_not_depend_on_where_the_folder_lies(tmp_path):
    files = {f"{i}.txt": b"text %d\n" % i * 20 for i in range(40)}
    for place in ("here", "there/and/there"):
        write_files(tmp_path / place, files)
    (tmp_path / "link").symlink_to(tmp_path / "here")
    splits = texts_of(load_corpus(tmp_path / "here"))
    for place in ("there/and/there", "link", "here/*.txt"):
        assert texts_of(load_corpus(tmp_path / place)) == splits
