import gzip
import pathlib
import random

import numpy as np
import pytest
from small_texts import SmallTexts

from txl_keras.data import CharacterTokenizer
from txl_keras.data import load_corpus
from txl_keras.data import prepare
from txl_keras.data import prepare_tokenizer
from txl_keras.data.corpora import corpus as corpus_module
from txl_keras.data.tokenizers import building

pytest.importorskip("apache_beam")
from txl_keras.extensions.beam import BeamMap  # noqa: E402

# Repeats a bundle that fails, as the runners of clusters do.
RETRYING = "apache_beam.runners.direct.direct_runner.BundleBasedDirectRunner"


class ManyTexts(SmallTexts):
    """A TFDS dataset, `many_texts`, of several sections."""

    SPLITS = {"train": 60, "validation": 3, "test": 4}


@pytest.fixture(autouse=True)
def small_sections(monkeypatch):
    """Sections and blocks so small that a short text has many."""
    monkeypatch.setattr(corpus_module, "SECTION_BYTES", 700)
    monkeypatch.setattr(corpus_module, "BLOCK_BYTES", 90)


def write_texts(folder):
    """Writes files of different lengths, an empty and a packed one."""
    generator = random.Random(3)
    words = ["a", "Bé", "c\td", "𝄞", "<eos>", "zwölf", " "]

    def lines(number):
        sizes = (generator.randint(0, 9) for _ in range(number))
        rows = (generator.choices(words, range(7, 0, -1), k=n) for n in sizes)
        return "".join(" ".join(row) + "\n" for row in rows)

    folder.mkdir()
    for i in range(7):
        (folder / f"{i}.txt").write_text(lines(5 + 13 * i))
    (folder / "empty.txt").write_text("")
    with gzip.open(folder / "z.txt.gz", "wt") as packed:
        packed.write(lines(60))


def check_same(corpus, name, folder, runner="DirectRunner", **options):
    """Checks that ids are the same with and without Beam; returns those."""
    ids = str(folder / "beam")
    beam = BeamMap(runner, "", ids)
    tokenizer = prepare_tokenizer(name, corpus, ids, beam, **options)
    found = prepare(corpus, tokenizer, ids, section_map=beam)
    ids = str(folder / "local")
    local = prepare_tokenizer(name, corpus, ids, **options)
    assert local.get_config() == tokenizer.get_config()
    for split, expected in prepare(corpus, local, ids).items():
        np.testing.assert_array_equal(found[split].tokens[:], expected.tokens)
        np.testing.assert_array_equal(
            found[split].documents, expected.documents
        )
    left = [path.name for path in (folder / "beam").rglob("*.json")]
    assert {*left} <= {"metadata.json", "tokenizer.json"}
    return found


def test_beam_gives_the_ids_of_one_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(building, "SAMPLE_BYTES", 2000)  # of more
    write_texts(tmp_path / "texts")
    corpus = load_corpus(tmp_path / "texts")
    found = check_same(corpus, "sentencepiece", tmp_path, vocabulary_size=290)
    assert len(found["train"].metadata["lengths"]) >= 4


def test_work_that_beam_repeats_gives_the_same_ids(tmp_path, monkeypatch):
    marker, inner = tmp_path / "marker", building._count

    def count(*arguments, **options):
        if not marker.exists():
            marker.touch()
            raise OSError("a disk that was away for a moment")
        return inner(*arguments, **options)

    monkeypatch.setattr(building, "_count", count)
    corpus = load_corpus("tfds:many_texts", data_dir=tmp_path / "datasets")
    found = check_same(corpus, "words", tmp_path, RETRYING, min_count=2)
    assert len(found["train"].metadata["lengths"]) >= 4
    assert marker.exists()


def fails(item):
    raise OSError("no machines")


def test_a_failure_says_how_to_go_on(tmp_path):
    beam = BeamMap("DirectRunner", "", str(tmp_path))
    with pytest.raises(RuntimeError, match="no machines(.|\n)*same command"):
        list(beam(fails, [1]))
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_text_is_named_and_nothing_is_kept(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(4):
        text = random.Random(i).randbytes(9000).hex()
        packed = gzip.compress(text.encode())
        (folder / f"{i}.txt.gz").write_bytes(packed[:-99])
    ids = str(tmp_path / "ids")
    tokenizer = CharacterTokenizer("0123456789abcdef\n")
    with pytest.raises(ValueError, match=".txt.gz is truncated or damaged"):
        prepare(
            load_corpus(folder),
            tokenizer,
            ids,
            section_map=BeamMap("DirectRunner", "", ids),
        )
    kept = [path for path in pathlib.Path(ids).rglob("*") if path.is_file()]
    assert all(path.suffix == ".lock" for path in kept)


def test_an_unknown_runner_is_named_before_any_text_is_read():
    with pytest.raises(ValueError, match="Nonsense.*DirectRunner"):
        BeamMap("Nonsense", "", "ids")
