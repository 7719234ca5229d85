"""Token ids in .npy and .npz files as a corpus."""

import io
import itertools
import pathlib
import zipfile

import numpy as np
import pytest

from txl_keras.data import IdTokenizer
from txl_keras.data import build_tokenizer
from txl_keras.data import load_corpus
from txl_keras.data import prepare
from txl_keras.data.corpora import corpus as corpus_module
from txl_keras.data.corpora.corpus import SPLITS
from txl_keras.data.corpora.corpus import Corpus
from txl_keras.data.corpora.id_files import open_ids

IDS = np.random.default_rng(0).integers(0, 300, 1000)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few ids, so that documents go on in the next one."""
    monkeypatch.setattr(corpus_module, "BLOCK_BYTES", 56)


def splits_of(path, folder, **options):
    corpus = load_corpus(path)
    tokenizer = build_tokenizer("ids", corpus, **options)
    return prepare(corpus, tokenizer, str(folder / "ids"))


def joined(splits):
    return np.concatenate([splits[name].tokens for name in SPLITS])


@pytest.mark.parametrize("dtype", ["uint16", ">i4", "int64", "uint64"])
def test_a_file_is_cut_in_three(dtype, small_blocks, tmp_path):
    path = tmp_path / "ids.npy"
    if dtype in ("uint16", ">i4"):
        np.save(path, IDS.astype(dtype))
    else:
        path = path.with_suffix(".npz")
        np.savez_compressed(path, tokens=IDS.astype(dtype))
    splits = splits_of(path, tmp_path)
    assert [len(splits[name].tokens) for name in SPLITS] == [900, 50, 50]
    np.testing.assert_array_equal(joined(splits), IDS)
    train = splits["train"]
    assert isinstance(train.tokens, np.memmap)
    assert train.tokens.dtype == np.uint16
    assert train.documents.tolist() == [0]
    assert train.metadata["vocabulary_size"] == IDS.max() + 1
    assert train.metadata["num_unknown"] == 0


def test_rows_are_documents_that_no_cut_divides(small_blocks, tmp_path):
    np.save(tmp_path / "ids.npy", IDS[:966].reshape(69, 14))
    splits = splits_of(tmp_path / "ids.npy", tmp_path)
    np.testing.assert_array_equal(joined(splits), IDS[:966])
    for split in splits.values():
        starts = list(range(0, len(split.tokens), 14))
        assert split.documents.tolist() == starts
    # The last rows that begin within 90 % and 95 % end train and valid.
    assert [len(splits[n].documents) for n in SPLITS] == [63, 3, 3]


def test_documents_of_an_archive_may_differ_in_length(small_blocks, tmp_path):
    lengths = [120, 3, 0, 400, 1, 380, 2, 41, 40, 13]
    starts = np.cumsum([0, *lengths[:-1]])
    assert sum(lengths) == len(IDS)
    np.savez(tmp_path / "ids.npz", tokens=IDS, documents=starts)
    splits = splits_of(tmp_path / "ids.npz", tmp_path)
    np.testing.assert_array_equal(joined(splits), IDS)
    assert splits["train"].documents.tolist() == [0, 120, 123, 523, 524]
    assert splits["valid"].documents.tolist() == [0, 2, 43]
    assert splits["test"].documents.tolist() == [0]
    assert [len(splits[n].tokens) for n in SPLITS] == [904, 83, 13]


def test_a_folder_has_named_files_or_whole_ones(tmp_path):
    named, many = tmp_path / "named", tmp_path / "many"
    named.mkdir(), many.mkdir()
    for i, name in enumerate(SPLITS):
        np.save(named / f"{name}.npy", IDS[: 10 + i])
    splits = splits_of(named, tmp_path)
    assert [len(splits[name].tokens) for name in SPLITS] == [10, 11, 12]
    for i in range(20):
        np.save(many / f"{i:02}.npy", IDS[50 * i : 50 * (i + 1)])
    splits = splits_of(many, tmp_path)
    assert [len(splits[n].documents) for n in SPLITS] == [18, 1, 1]
    assert sorted(joined(splits)) == sorted(IDS)


def test_a_whole_corpus_is_one_split(tmp_path):
    np.save(tmp_path / "ids.npy", IDS)
    corpus = load_corpus(tmp_path / "ids.npy", whole=True)
    tokenizer = IdTokenizer(300)
    (split,) = prepare(corpus, tokenizer, str(tmp_path), ["all"]).values()
    np.testing.assert_array_equal(split.tokens, IDS)


# === Errors ===


def archive_of(**entries):
    buffer = io.BytesIO()
    np.savez(buffer, **entries)
    return buffer.getvalue()


def array_of(ids, **options):
    buffer = io.BytesIO()
    np.save(buffer, ids, **options)
    return buffer.getvalue()


def damaged_archive():
    data = bytearray(archive_of(tokens=IDS))
    data[400] ^= 1
    return bytes(data)


@pytest.mark.parametrize(
    "name, data, message",
    [
        ("a.npy", array_of(IDS / 2), "integers.* dtype float64"),
        ("a.npy", array_of(IDS > 2), "integers.* dtype bool"),
        ("a.npy", array_of(IDS.reshape(10, 10, 10)), r"\(10, 10, 10\)"),
        ("a.npy", array_of(np.int64(3)), r"shape \(\)"),
        ("a.npy", array_of(np.array([{}, 1])), "as np.save.* write them"),
        ("a.npy", array_of(IDS)[:-1], "as np.save.* write them"),
        ("a.npy", array_of(IDS)[:70], "as np.save.* write them"),
        ("a.npy", array_of(IDS).replace(b"}", b"{"), "TokenError"),
        ("a.npy", b"60 64 67", "as np.save.* write them"),
        ("a.npy", array_of(IDS - 7), r"from 0 to .*: -\d at \d"),
        ("a.npy", array_of(2**31 - 1 + 0 * IDS), "2147483647 at 0"),
        ("a.npy", array_of(10**8 + IDS), "`vocabulary_size` must be given"),
        ("a.npz", b"60 64 67", "as np.save.* write them"),
        ("a.npz", archive_of(ids=IDS), "tokens"),
        ("a.npz", damaged_archive(), "as np.save.*CRC"),
        ("a.npz", archive_of(tokens=IDS, documents=[1, 5]), "`documents`"),
        ("a.npz", archive_of(tokens=IDS, documents=[0, 5, 4]), "`documents`"),
        ("a.npz", archive_of(tokens=IDS, documents=[0, 1001]), "`documents`"),
        ("a.npz", archive_of(tokens=IDS, documents=[[0]]), "`documents`"),
        ("a.npz", archive_of(tokens=IDS, documents=[]), "dtype float64"),
    ],
    ids=itertools.count(),
)
def test_a_file_that_has_no_ids_is_refused(name, data, message, tmp_path):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message) as caught:
        splits_of(tmp_path / name, tmp_path)
    assert str(tmp_path / name) in str(caught.value)


def test_ids_and_text_are_not_confused(tmp_path):
    np.save(tmp_path / "ids.npy", IDS)
    ids = load_corpus(tmp_path / "ids.npy")
    text = Corpus("t", {"train": b"1 2", "valid": b"3", "test": b"4"})
    assert ids.encoding == "ids"
    with pytest.raises(ValueError, match="`tokenizer` must be ids .*ids.npy"):
        build_tokenizer("bytes", ids)
    with pytest.raises(ValueError, match="`tokenizer` must not be ids .*text"):
        build_tokenizer("ids", text)
    with pytest.raises(ValueError, match="`tokenizer` must not be ids .*text"):
        prepare(text, IdTokenizer(5), str(tmp_path / "folder"))
    (tmp_path / "note.txt").write_text("read me")
    with pytest.raises(ValueError, match=r"ids\.npy and .*note\.txt"):
        load_corpus(tmp_path)
    with pytest.raises(ValueError, match="no `document_separator`"):
        load_corpus(tmp_path / "ids.npy", document_separator="\n")


def test_an_archive_runs_no_code_and_reads_no_other_entry(tmp_path):
    touched = tmp_path / "touched"
    payload = array_of(np.array([_Touch(touched)], object), allow_pickle=True)
    (tmp_path / "a.npy").write_bytes(payload)
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:
        archive.writestr("tokens.npy", array_of(IDS))
        archive.writestr("other.npy", payload)
        archive.writestr("../outside.npy", array_of(IDS))
    with pytest.raises(ValueError, match="as np.save.* write them"):
        splits_of(tmp_path / "a.npy", tmp_path)
    np.testing.assert_array_equal(
        joined(splits_of(tmp_path / "b.npz", tmp_path)), IDS
    )
    assert not touched.exists()


def test_more_than_memory_may_hold_is_refused(tmp_path):
    path = str(tmp_path / "a.npz")
    documents = np.zeros(2 * 10**7, np.uint8)
    np.savez_compressed(path, tokens=IDS, documents=documents)
    with pytest.raises(ValueError, match=r"a\.npz .*not unpack to more than"):
        open_ids(path)


class _Touch:
    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return pathlib.Path.touch, (self._path,)
