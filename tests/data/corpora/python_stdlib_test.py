import pathlib
import sysconfig

import pytest
from text_files_test import write_files

from txl_keras.data import load_corpus
from txl_keras.data.corpora import python_stdlib
from txl_keras.data.corpora.corpus import SPLITS


@pytest.fixture(scope="module")
def stdlib_corpus():
    return load_corpus("python_stdlib")


def test_python_stdlib_has_its_size_and_its_proportions(stdlib_corpus):
    sizes = {split: stdlib_corpus.text(split).num_bytes for split in SPLITS}
    total = sum(sizes.values())
    assert 5_000_000 < total < 30_000_000
    for split in ("valid", "test"):
        assert 0.025 * total <= sizes[split] < 0.04 * total
    for documents in stdlib_corpus.splits.values():
        assert all(data.decode().endswith("\n") for data in documents)


def test_python_stdlib_keeps_each_package_in_one_split(stdlib_corpus):
    stdlib = pathlib.Path(sysconfig.get_path("stdlib"))
    texts = {name: {*found} for name, found in stdlib_corpus.splits.items()}
    split_of = {}
    for path, text in python_stdlib.read_documents(stdlib).items():
        text = text.removesuffix(b"\n") + b"\n"
        (found,) = [split for split in SPLITS if text in texts[split]]
        group = python_stdlib.group_name(path)
        assert split_of.setdefault(group, found) == found
    assert "encodings" in split_of


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
    corpus = python_stdlib.load(tmp_path)
    text = b"".join(corpus.read(split) for split in SPLITS)
    assert text.splitlines().count(b"one = 1") == 1
