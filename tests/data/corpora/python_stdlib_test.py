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
    assert python_stdlib.load().splits == stdlib_corpus.splits


def test_python_stdlib_keeps_each_package_in_one_split(stdlib_corpus):
    stdlib = pathlib.Path(sysconfig.get_path("stdlib"))
    texts = {split: stdlib_corpus.read(split) for split in SPLITS}
    split_of = {}
    for path, text in python_stdlib.read_documents(stdlib).items():
        if len(text) < 1000:  # may be part of another file by chance
            continue
        found = [s for s, data in texts.items() if text in data]
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
    corpus = python_stdlib.load(tmp_path)
    text = b"".join(corpus.read(split) for split in SPLITS)
    assert text.splitlines().count(b"one = 1") == 1
