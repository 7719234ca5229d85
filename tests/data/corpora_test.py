import gzip
import pathlib
import sysconfig
import zipfile

import pytest

from txl_keras.data.corpora import Corpus
from txl_keras.data.corpora import enwik8
from txl_keras.data.corpora import load_corpus
from txl_keras.data.corpora import python_stdlib
from txl_keras.data.corpora import text8
from txl_keras.data.corpora.splitting import split_groups
from txl_keras.data.corpora.splitting import split_text


def write_files(folder, files):
    """Writes a dict of relative path to bytes."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


# === load_corpus and Corpus ===


@pytest.mark.parametrize("name", ["wikipedia", "", "no/such/file.txt"])
def test_an_unknown_name_is_refused_with_the_known_ones(name):
    with pytest.raises(FileNotFoundError, match="no such path") as error:
        load_corpus(name)
    for known in ("python_stdlib", "enwik8", "text8", repr(name)):
        assert known in str(error.value)


def test_a_corpus_needs_three_splits_with_text():
    full = {"train": b"a", "valid": b"b", "test": b"c"}
    assert Corpus("tiny", full).encoding == "utf-8"
    with pytest.raises(ValueError, match=r"'tiny' with no text in \['valid'\]"):
        Corpus("tiny", {**full, "valid": b""})
    with pytest.raises(ValueError, match=r"keys .*Received: \['train'\]"):
        Corpus("tiny", {"train": b"a"})
    with pytest.raises(ValueError, match="`encoding`.*'ascii'"):
        Corpus("tiny", full, "ascii")


# === Splitting ===


def test_groups_are_split_by_size_and_by_nothing_but_their_names():
    sizes = {f"module{i}": 10 + i % 7 for i in range(200)}
    splits = split_groups(sizes)
    assert sorted(sum(splits.values(), [])) == sorted(sizes)
    total = sum(sizes.values())
    for split in ("valid", "test"):
        size = sum(sizes[name] for name in splits[split])
        assert 0.05 * total <= size < 0.06 * total
    backwards = dict(reversed(sizes.items()))
    assert split_groups(backwards) == splits


@pytest.mark.parametrize(
    "sizes",
    [
        [1, 1, 1],
        [1, 1, 1000],
        [1000, 1, 1],
        [500, 600, 700, 800],
        [1] * 100 + [100_000],
        [1] * 40,
        [1, 2, 3000, 3000, 3000],
        [1, 100, 5000, 5000],
    ],
)
def test_each_split_gets_a_group_whatever_the_sizes(sizes):
    sizes = {str(i): size for i, size in enumerate(sizes)}
    splits = split_groups(sizes)
    assert all(splits.values())
    assert sorted(sum(splits.values(), [])) == sorted(sizes)
    largest = max(sizes.values())
    assert largest in [sizes[name] for name in splits["train"]]


def test_two_groups_are_refused():
    with pytest.raises(ValueError, match="at least 3 groups.*Received: 2"):
        split_groups({"a": 1, "b": 2})


def test_a_text_is_cut_at_line_ends():
    lines = [b"%03d\n" % i for i in range(100)]
    splits = split_text(b"".join(lines))
    # A place right at the start of a line is moved to the next.
    assert splits["train"] == b"".join(lines[:91])
    assert splits["valid"] == b"".join(lines[91:96])
    assert splits["test"] == b"".join(lines[96:])


def test_a_text_without_lines_is_cut_between_characters():
    text = "€" * 100
    for end in ("", "\n"):  # a line end after the last cut does not count
        splits = split_text((text + end).encode())
        pieces = [splits[name].decode() for name in ("train", "valid", "test")]
        assert "".join(pieces) == text + end
        assert [len(piece) for piece in pieces] == [90, 5, 5 + len(end)]


# === python_stdlib ===


@pytest.fixture(scope="module")
def stdlib_corpus():
    return load_corpus("python_stdlib")


def test_python_stdlib_has_its_size_and_its_proportions(stdlib_corpus):
    sizes = {name: len(data) for name, data in stdlib_corpus.splits.items()}
    total = sum(sizes.values())
    assert 5_000_000 < total < 30_000_000
    assert 0.025 * total <= sizes["test"] < 0.04 * total
    assert 0.025 * total <= sizes["valid"] < 0.04 * total


def test_python_stdlib_is_the_same_each_time(stdlib_corpus):
    assert python_stdlib.load().splits == stdlib_corpus.splits


def test_python_stdlib_is_utf8_and_ends_with_a_newline(stdlib_corpus):
    for data in stdlib_corpus.splits.values():
        assert data.decode("utf-8").endswith("\n")


def test_python_stdlib_leaves_out_tests_and_installed_packages():
    stdlib = pathlib.Path(sysconfig.get_path("stdlib"))
    documents = python_stdlib.read_documents(stdlib)
    assert "ast.py" in documents and "json/decoder.py" in documents
    for path in documents:
        parts = path.split("/")
        for part in ("test", "tests", "idle_test", "site-packages"):
            assert part not in parts[:-1]
    assert len(set(documents.values())) == len(documents)


def test_python_stdlib_keeps_each_package_in_one_split(stdlib_corpus):
    stdlib = pathlib.Path(sysconfig.get_path("stdlib"))
    split_of = {}
    for path, text in python_stdlib.read_documents(stdlib).items():
        if len(text) < 1000:  # may be part of another file by chance
            continue
        found = [s for s, data in stdlib_corpus.splits.items() if text in data]
        assert len(found) == 1
        split_of.setdefault(python_stdlib.group_name(path), set()).add(found[0])
    assert all(len(splits) == 1 for splits in split_of.values())
    assert len(split_of["encodings"]) == 1


def test_python_stdlib_skips_what_is_no_source_of_its_own(tmp_path):
    # 0.3 MB, of lines that differ from file to file
    modules = {
        f"module{i}.py": b"".join(b"x%d = %d\n" % (i, j) for j in range(30_000))
        for i in range(4)
    }
    files = {
        "package/one.py": b"one = 1",
        "package/copy.py": b"one = 1",
        "package/empty.py": b"",
        "package/latin.py": b"# \xe9\n",
        "package/notes.txt": b"notes\n",
        "package/test/helper.py": b"import test\n",
        "site-packages/other.py": b"other = 1\n",
        "config-3.11/build.py": b"build = 1\n",
        "_sysconfigdata_linux.py": b"prefix = '/root'\n",
    }
    write_files(tmp_path, {**modules, **files})
    documents = python_stdlib.read_documents(tmp_path)
    assert sorted(documents) == sorted([*modules, "package/copy.py"])
    text = b"".join(python_stdlib.load(tmp_path).splits.values())
    assert text.splitlines().count(b"one = 1") == 1


def test_python_stdlib_without_sources_is_refused(tmp_path):
    write_files(tmp_path, {"ast.py": b"tiny = 1\n"})
    with pytest.raises(ValueError, match="--corpus=PATH.*Received: 9 bytes"):
        python_stdlib.load(tmp_path)


# === enwik8 and text8 ===


@pytest.mark.parametrize("name", ["enwik8", "text8"])
def test_a_missing_benchmark_file_is_named_with_its_source(name, tmp_path):
    source = f"http://mattmahoney.net/dc/{name}.zip"
    with pytest.raises(ValueError, match=f"--data_dir.*{source}"):
        load_corpus(name)
    with pytest.raises(FileNotFoundError, match=source) as error:
        load_corpus(name, tmp_path)
    assert str(tmp_path) in str(error.value)
    assert f"{name}.gz" in str(error.value)


@pytest.mark.parametrize("suffix", ["", ".gz", ".zip"])
def test_an_incomplete_benchmark_file_is_refused(suffix, tmp_path):
    path = tmp_path / f"enwik8{suffix}"
    if suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("enwik8", "abc")
    else:
        path.write_bytes(gzip.compress(b"abc") if suffix else b"abc")
    message = "Expected: 100,000,000 bytes. Received: 3 bytes"
    with pytest.raises(ValueError, match=message):
        load_corpus("enwik8", tmp_path)


def test_a_damaged_archive_is_named(tmp_path):
    packed = gzip.compress(bytes(range(256)) * 100)
    path = tmp_path / "enwik8.gz"
    for damaged in (packed[:-20], b"not gzip", packed[:30] + b"?" * 99):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="enwik8.gz is truncated or damag"):
            load_corpus("enwik8", tmp_path)
    (tmp_path / "text8.zip").write_bytes(b"not zip")
    with pytest.raises(ValueError, match="text8.zip is truncated or damaged"):
        load_corpus("text8", tmp_path)
    with zipfile.ZipFile(tmp_path / "text8.zip", "w") as archive:
        archive.writestr("another", "abc")
    with pytest.raises(ValueError, match="must contain a file 'text8'"):
        load_corpus("text8", tmp_path)


def test_another_text_of_the_right_length_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(enwik8, "LENGTH", 40)
    monkeypatch.setattr(enwik8, "HELD_OUT", 2)
    (tmp_path / "enwik8").write_bytes(b"x" * 40)
    with pytest.raises(ValueError, match="Expected: sha256 2b49720e.*Received"):
        load_corpus("enwik8", tmp_path)
    (tmp_path / "text8").write_bytes(b"a z" * 13 + b"A")
    with pytest.raises(ValueError, match="Received: byte 0x41"):
        load_corpus("text8", tmp_path)


def test_text8_is_split_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(enwik8, "LENGTH", 40)
    monkeypatch.setattr(enwik8, "HELD_OUT", 2)
    (tmp_path / "text8").write_bytes(b"a" * 36 + b"bc" + b"d ")
    corpus = text8.load(tmp_path)
    assert corpus.encoding == "latin-1"
    assert corpus.splits == {"train": b"a" * 36, "valid": b"bc", "test": b"d "}


# === Text of the user's own ===


@pytest.mark.parametrize("name", ["book.txt", "book.txt.gz"])
def test_a_file_is_cut_in_three(name, tmp_path):
    text = b"".join(b"line %d\n" % i for i in range(1000))
    packed = gzip.compress(text) if name.endswith(".gz") else text
    (tmp_path / name).write_bytes(packed)
    corpus = load_corpus(str(tmp_path / name))
    splits = corpus.splits
    assert splits["train"] + splits["valid"] + splits["test"] == text
    assert all(data.startswith(b"line") for data in splits.values())
    assert 0.89 < len(splits["train"]) / len(text) < 0.91
    assert corpus.name == str(tmp_path / name)
    assert corpus.encoding == "utf-8"


def test_a_folder_with_named_splits_is_used_as_it_is(tmp_path):
    files = {"train.txt": b"one", "valid.txt": b"two", "test.txt": b"three"}
    write_files(tmp_path, {**files, "other.txt": b"other"})
    splits = load_corpus(tmp_path).splits
    assert splits == {"train": b"one", "valid": b"two", "test": b"three"}


def test_a_folder_with_two_of_three_named_splits_is_refused(tmp_path):
    write_files(tmp_path, {"train.txt": b"one", "valid.txt": b"two"})
    with pytest.raises(ValueError, match="only train.txt and valid.txt"):
        load_corpus(tmp_path)


def test_files_of_a_folder_stay_whole(tmp_path):
    files = {
        f"part{i % 3}/{i:02}.txt": b"text %02d\n" % i * 20 for i in range(60)
    }
    write_files(tmp_path, files)
    write_files(tmp_path, {".hidden": b"\xff", ".git/config": b"\xff"})
    splits = load_corpus(tmp_path).splits
    assert sum(map(len, splits.values())) == sum(map(len, files.values()))
    for name, text in files.items():
        assert sum(text in data for data in splits.values()) == 1, name
    order = [splits["train"].find(files[name]) for name in sorted(files)]
    order = [place for place in order if place >= 0]
    assert order == sorted(order)
    assert len(splits["valid"]) == len(splits["test"]) == 3 * 160


def test_a_folder_of_two_files_is_cut_like_one(tmp_path):
    write_files(tmp_path, {"b.txt": b"b\n" * 50, "a.txt": b"a\n" * 49 + b"a"})
    splits = load_corpus(tmp_path).splits
    joined = splits["train"] + splits["valid"] + splits["test"]
    assert joined == b"a\n" * 50 + b"b\n" * 50
    assert all(splits.values())


def test_a_file_that_is_not_utf8_is_named_with_its_byte(tmp_path):
    write_files(tmp_path, {"a.txt": b"fine\n", "b.txt": b"caf\xe9\n"})
    message = "b.txt is not UTF-8: byte 0xe9 at offset 3.*iconv"
    with pytest.raises(ValueError, match=message):
        load_corpus(tmp_path)


def test_too_little_text_is_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one file with text"):
        load_corpus(tmp_path)
    path = tmp_path / "tiny.txt"
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="tiny.txt is empty"):
        load_corpus(path)
    with pytest.raises(ValueError, match="at least one file with text"):
        load_corpus(tmp_path)
    path.write_bytes(b"ab\n")
    with pytest.raises(ValueError, match="too small.*Received: 3 bytes"):
        load_corpus(path)
