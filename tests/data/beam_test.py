import gzip
import json
import os
import pathlib
import random
import signal
import sys
import threading
import time

import numpy as np
import pytest
from small_texts import SmallTexts

from txl_keras.data import CharacterTokenizer
from txl_keras.data import Corpus
from txl_keras.data import WordTokenizer
from txl_keras.data import prepare
from txl_keras.data import prepare_tokenizer
from txl_keras.data.corpora import corpus as corpus_module
from txl_keras.data.corpora import load_corpus
from txl_keras.data.tokenizers import building

pytest.importorskip("apache_beam")
from txl_keras.data import beam as beam_module  # noqa: E402
from txl_keras.data.beam import Beam  # noqa: E402

# Repeats a bundle that fails, as the runners of clusters do.
RETRYING = "apache_beam.runners.direct.direct_runner.BundleBasedDirectRunner"
PROCESSES = "--direct_num_workers=2 --direct_running_mode=multi_processing"


class ManyTexts(SmallTexts):
    """A TFDS dataset, `many_texts`, of several sections."""

    SPLITS = {"train": 60, "validation": 3, "test": 4}


@pytest.fixture(autouse=True)
def small_sections(monkeypatch):
    """Sections and blocks so small that a short text has many."""
    monkeypatch.setattr(corpus_module, "SECTION_BYTES", 700)
    monkeypatch.setattr(corpus_module, "BLOCK_BYTES", 90)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Texts of all kinds: arguments of `load_corpus` by name."""
    folder = tmp_path_factory.mktemp("texts")
    generator = random.Random(3)
    words = ["a", "Bé", "c\td", "𝄞", "<eos>", "zwölf", " "]

    def line():
        size = generator.randint(0, 9)
        return " ".join(generator.choices(words, range(7, 0, -1), k=size))

    def lines(number):
        return "".join(line() + "\n" for _ in range(number))

    file = folder / "one.txt"
    file.write_text(lines(150) + "x" * 2500 + "\n" + lines(90) + "no newline")
    many = folder / "many"
    many.mkdir()
    for i in range(7):
        (many / f"{i}.txt").write_text(lines(5 + 13 * i))
    (many / "empty.txt").write_text("")
    with gzip.open(many / "z.txt.gz", "wt") as packed:
        packed.write(lines(60))
    records = folder / "records.jsonl"
    documents = [lines(generator.randint(0, 4)) for _ in range(160)]
    records.write_text(
        "".join(json.dumps({"body": text}) + "\n" for text in documents)
    )
    datasets = {"name": "tfds:many_texts", "data_dir": folder / "datasets"}
    return {
        "file": {"name": file},
        "folder": {"name": many},
        "separated": {"name": file, "document_separator": "\n"},
        "records": {"name": records, "text_key": "body"},
        "dataset": datasets,
    }


def files_in(folder):
    """The bytes of all files but locks, by path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in pathlib.Path(folder).rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }


def same_files(one, other):
    """Checks that two folders have the same files, byte for byte."""
    assert files_in(one) == files_in(other)
    assert any("train" in name for name in files_in(one))


def prepare_both(corpus, name, folder, runner="DirectRunner", **options):
    """Prepares a text with and without Beam, in two folders of `folder`."""
    prepared = {}
    for place, beam in (("local", None), ("beam", Beam(runner))):
        path = str(folder / place)
        tokenizer = prepare_tokenizer(name, corpus, path, beam, **options)
        prepared[place] = prepare(corpus, tokenizer, path, beam=beam)
    return prepared


@pytest.mark.parametrize(
    "text,name,options",
    [
        ("file", "words", {"min_count": 3, "line_start": "<s>"}),
        ("folder", "words", {"vocabulary_size": 5}),
        ("records", "words", {}),
        ("separated", "characters", {"drop_newlines": True}),
        ("folder", "bytes", {}),
        ("folder", "sentencepiece", {"vocabulary_size": 290}),
        ("dataset", "words", {"min_count": 2}),
    ],
)
def test_beam_writes_the_files_that_one_machine_writes(
    text, name, options, texts, tmp_path, monkeypatch
):
    monkeypatch.setattr(building, "SAMPLE_BYTES", 2000)  # of more
    corpus = load_corpus(**texts[text])
    prepared = prepare_both(corpus, name, tmp_path, **options)
    same_files(tmp_path / "local", tmp_path / "beam")
    train = prepared["beam"]["train"]
    assert len(train.paths) >= 4
    local = prepared["local"]["train"]
    np.testing.assert_array_equal(train.tokens[:], local.tokens[:])


def test_ids_and_text_in_memory_are_prepared_by_beam(tmp_path):
    splits = {"train": [b"to be\n", b"or not\n"], "valid": b"to\n"}
    corpus = Corpus("c", {**splits, "test": b"be\n"})
    prepared = prepare_both(corpus, "words", tmp_path)["beam"]["train"]
    assert prepared.documents[:].tolist() == [0, 3]
    for split, size in (("train", 5), ("valid", 1), ("test", 2)):
        (tmp_path / "ids" / split).mkdir(parents=True)
        for i in range(size):
            ids = np.arange(i, 300 + i * 7)
            np.save(tmp_path / "ids" / split / f"{i}.npy", ids)
    corpus = load_corpus(tmp_path / "ids")
    train = prepare_both(corpus, "ids", tmp_path)["beam"]["train"]
    same_files(tmp_path / "local", tmp_path / "beam")
    assert train.metadata["vocabulary_size"] == 328
    assert train.metadata["num_documents"] == 5


def test_a_bucket_has_the_files_of_a_disk(texts, tmp_path):
    corpus = load_corpus(**texts["file"])
    beam = Beam("DirectRunner")
    tokenizer = prepare_tokenizer("words", corpus, "ram://ids", beam)
    remote = prepare(corpus, tokenizer, "ram://ids", beam=beam)["train"]
    local = prepare(corpus, tokenizer, str(tmp_path))["train"]
    np.testing.assert_array_equal(remote.tokens[:], local.tokens[:])
    assert remote.metadata == local.metadata


class FailsOnce:
    """A function that fails in the middle the first time it is called."""

    def __init__(self, function, marker):
        self.function = function
        self.marker = marker

    def __call__(self, *arguments):
        if not os.path.exists(self.marker):
            pathlib.Path(self.marker).touch()
            raise OSError("a disk that was away for a moment")
        return self.function(*arguments)


@pytest.mark.parametrize("place", ["write_shard", "write_text"])
def test_work_that_beam_repeats_gives_the_same_files(
    place, texts, tmp_path, monkeypatch
):
    corpus = load_corpus(**texts["file"])
    inner = getattr(beam_module, place)

    def write_half(blocks, dtype, path):
        blocks = iter(blocks)
        if not (tmp_path / "marker").exists():
            inner([next(blocks)], dtype, path)
        return FailsOnce(inner, tmp_path / "marker")(blocks, dtype, path)

    failing = FailsOnce(inner, tmp_path / "marker")
    if place == "write_shard":
        failing = write_half
    monkeypatch.setattr(beam_module, place, failing)
    options = {"vocabulary_size": 7, "min_count": 2}
    prepare_both(corpus, "words", tmp_path, RETRYING, **options)
    assert (tmp_path / "marker").exists()
    same_files(tmp_path / "local", tmp_path / "beam")


def test_a_run_that_beam_gave_up_continues(texts, tmp_path, monkeypatch):
    corpus = load_corpus(**texts["file"])
    tokenizer = WordTokenizer(["<eos>", "<unk>", "a", "𝄞"])
    beam = Beam("DirectRunner")
    folder = str(tmp_path / "beam")
    encoded = []
    inner = beam_module.write_shard

    def write_some(blocks, dtype, path):
        encoded.append(path)
        if len(encoded) == 3:
            raise OSError("no machines")
        return inner(blocks, dtype, path)

    monkeypatch.setattr(beam_module, "write_shard", write_some)
    with pytest.raises(RuntimeError, match="no machines(.|\n)*same command"):
        prepare(corpus, tokenizer, folder, beam=beam)
    prepare(corpus, tokenizer, folder, beam=beam)
    sections = sum(
        len(corpus.text(split).sections()) for split in corpus.splits
    )
    assert len(encoded) == sections + 1  # none of them twice but the failed one
    prepare(corpus, tokenizer, str(tmp_path / "local"))
    same_files(tmp_path / "local", tmp_path / "beam")


def test_one_machine_begins_again_after_beam(texts, tmp_path, monkeypatch):
    corpus = load_corpus(**texts["folder"])
    tokenizer = WordTokenizer(["<eos>", "<unk>", "a", "𝄞"])
    folder = str(tmp_path / "beam")
    with monkeypatch.context() as context:
        context.setattr(beam_module, "write_shard", None)
        with pytest.raises(RuntimeError, match="run the same command again"):
            prepare(corpus, tokenizer, folder, beam=Beam("DirectRunner"))
    for place in (folder, str(tmp_path / "local")):
        prepare(corpus, tokenizer, place)
    same_files(tmp_path / "local", tmp_path / "beam")


@pytest.mark.parametrize("step", ["words", "sentencepiece", "ids"])
def test_a_damaged_text_is_named_and_nothing_is_kept(step, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(4):
        text = random.Random(i).randbytes(9000).hex()
        packed = gzip.compress(text.encode())
        (folder / f"{i}.txt.gz").write_bytes(packed[:-99] if i == 3 else packed)
    corpus = load_corpus(folder)
    beam = Beam("DirectRunner")
    ids = str(tmp_path / "ids")
    with pytest.raises(ValueError, match="3.txt.gz is truncated or damaged"):
        if step == "ids":
            tokenizer = CharacterTokenizer("0123456789abcdef\n")
            prepare(corpus, tokenizer, ids, beam=beam)
        else:
            prepare_tokenizer(step, corpus, ids, beam)
    assert not files_in(ids)


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (("Nonsense",), "=Nonsense, .*Direct"),
        (("no.such.Runner",), "=no.such.Runner, "),
        (("DirectRunner", "--direct_num_workers=many"), "many.*invalid int"),
        (("DirectRunner", "--job_name='x"), "quotation"),
    ],
)
def test_a_runner_or_an_option_that_beam_refuses_is_named(arguments, reason):
    with pytest.raises(ValueError, match=f"`beam_runner`.*options.*{reason}"):
        Beam(*arguments)


def dies(item):
    """Fails in Beam's thread for a worker process, as if that had ended."""

    def run():
        raise RuntimeError("exited with return code -9")

    threading.Thread(target=run, name="run_worker").start()
    time.sleep(30)


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)
def test_a_worker_that_dies_is_not_waited_for(tmp_path):
    (tmp_path / "beam").mkdir()
    beam = Beam("DirectRunner", folder=str(tmp_path / "beam"))
    with pytest.raises(RuntimeError, match="return code -9") as error:
        beam.map("step", dies, [1])
    assert "run the same command again" in str(error.value)


def killed_once(marker):
    path = pathlib.Path(marker)
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return path.name


@pytest.mark.large
def test_a_run_whose_worker_was_killed_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    (tmp_path / "beam").mkdir()
    beam = Beam("DirectRunner", PROCESSES, str(tmp_path / "beam"))
    items = [str(tmp_path / "marker")] * 4
    with pytest.raises(RuntimeError, match="run the same command again"):
        beam.map("step", killed_once, items)
    assert list(beam.map("step", killed_once, items)) == ["marker"] * 4


@pytest.mark.large
def test_processes_write_the_files_that_one_machine_writes(
    texts, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    corpus = load_corpus(**texts["folder"])
    beam = Beam("DirectRunner", PROCESSES)
    tokenizer = prepare_tokenizer("words", corpus, str(tmp_path / "beam"), beam)
    prepare(corpus, tokenizer, str(tmp_path / "beam"), beam=beam)
    again = prepare_tokenizer("words", corpus, str(tmp_path / "local"))
    prepare(corpus, again, str(tmp_path / "local"))
    same_files(tmp_path / "local", tmp_path / "beam")
