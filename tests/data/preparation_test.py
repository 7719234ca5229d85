import os
import pathlib
from concurrent import futures

import numpy as np
import pytest

from txl_keras.data import CharacterTokenizer
from txl_keras.data import Corpus
from txl_keras.data import SentencePieceTokenizer
from txl_keras.data import WordTokenizer
from txl_keras.data import load_corpus
from txl_keras.data import preparation
from txl_keras.data import token_files
from txl_keras.data.corpora import corpus as corpus_module
from txl_keras.data.preparation import prepare
from txl_keras.data.preparation import prepare_tokenizer

SHARED_DATA = pathlib.Path(__file__).parents[3] / "shared" / "data"
WORDS = WordTokenizer(["<eos>", "<unk>", "the", "cat"])
TEXT = {
    "train": [b"the cat\nthe dog\n", b"cat\n", b"the the\ncat"],
    "valid": b"cat\n",
    "test": [b"dog the\n"],
}


class Text:
    """Documents that count how often they are read."""

    def __init__(self, documents):
        self.documents = documents
        self.num_bytes = sum(map(len, documents))
        self.times_read = 0

    def __iter__(self):
        self.times_read += 1
        return iter(self.documents)


def corpus_of(identity, **splits):
    return Corpus("c", {**TEXT, **splits}, identity=identity)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of a line or two, so that a few documents take many."""
    monkeypatch.setattr(corpus_module, "BLOCK_BYTES", 6)


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_ids_and_documents_of_a_corpus(place, tmp_path):
    folder = str(tmp_path) if place == "disk" else "ram://prepared"
    splits = prepare(corpus_of({"a": 1}), WORDS, folder)
    assert list(splits) == ["train", "valid", "test"]
    train = splits["train"]
    expected = [2, 3, 0, 2, 1, 0, 3, 0, 2, 2, 0, 3]
    assert train.tokens[:].tolist() == expected
    assert train.documents[:].tolist() == [0, 6, 8]
    sizes = {"num_unknown": 1, "num_bytes": 31, "num_documents": 3}
    facts = {**sizes, "vocabulary_size": 4}
    assert facts.items() <= train.metadata.items()
    assert train.fingerprint()["num_tokens"] == 12
    assert splits["test"].tokens[:].tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    "tokenizer",
    [
        CharacterTokenizer("aé𝄞 ", drop_newlines=True),
        # The mark of a newline in the text does not count.
        WordTokenizer(["a", "é", "𝄞"], None, line_end="𝄞"),
        # A line that goes on in the next block begins once.
        WordTokenizer(["<S>", "a", "é", "𝄞"], None, "<S>", "<S>"),
    ],
)
def test_many_blocks_give_the_ids_of_the_whole_text(tokenizer, tmp_path):
    generator = np.random.default_rng(3)
    end = "" if isinstance(tokenizer, CharacterTokenizer) else "\n"
    documents = [
        (" ".join(generator.choice(list("aé𝄞\n"), size)) + end).encode()
        for size in generator.integers(0, 30, 200)
    ]
    corpus = corpus_of({}, train=documents)
    train = prepare(corpus, tokenizer, str(tmp_path), ["train"])["train"]
    text = b"".join(documents)
    np.testing.assert_array_equal(train.tokens, tokenizer.encode(text))
    if getattr(tokenizer, "drop_newlines", False):
        text = text.replace(b"\n", b"")
    assert train.metadata["num_bytes"] == len(text)
    lengths = [len(tokenizer.encode(document)) for document in documents]
    starts = np.cumsum([0, *lengths[:-1]])[np.array(lengths) > 0]
    assert train.documents.tolist() == starts.tolist()


def test_what_was_prepared_is_used_again_and_only_where_all_is_the_same(
    tmp_path,
):
    folder = str(tmp_path)
    text = Text(TEXT["train"])

    def run(identity, tokenizer):
        corpus = corpus_of(identity, train=text)
        return prepare(corpus, tokenizer, folder, ["train"])["train"].folder

    first = run({"version": 1}, WORDS)
    assert run({"version": 1}, WordTokenizer(WORDS.vocabulary)) == first
    assert text.times_read == 1
    others = [
        run({"version": 2}, WORDS),
        run({"version": 1}, WordTokenizer(WORDS.vocabulary, line_end=None)),
        run({"version": 1}, WordTokenizer(["<eos>", "<unk>", "cat", "the"])),
    ]
    assert len({first, *others}) == 4
    assert text.times_read == 4


def test_a_tokenizer_is_built_once_for_the_same_options(tmp_path):
    text = Text(TEXT["train"])

    def run(identity, **options):
        corpus = corpus_of(identity, train=text)
        return prepare_tokenizer("words", corpus, str(tmp_path), **options)

    first = run({}, min_count=2)
    assert first.vocabulary.symbols == ("<eos>", "<unk>", "the", "cat")
    again = run({}, min_count=2, vocabulary_size=None)
    assert again.get_config() == first.get_config()
    assert text.times_read == 1
    assert "dog" in run({}, min_count=1).vocabulary
    assert run({"other": 1}, min_count=2).get_config() == first.get_config()
    assert text.times_read == 3


def test_a_given_vocabulary_is_read_each_time(tmp_path):
    path, corpus = tmp_path / "my.model", corpus_of({})
    for size in (270, 280):
        text = [b"the cat sat on the mat\n" * size]
        model = SentencePieceTokenizer.train(text, size).model
        path.write_bytes(model)
        found = prepare_tokenizer(
            "sentencepiece", corpus, tmp_path, vocabulary=path
        )
        assert found.model == model
    words = prepare_tokenizer(
        "words", corpus, tmp_path, vocabulary=WORDS.vocabulary
    )
    assert words.vocabulary.symbols == WORDS.vocabulary.symbols


def test_subwords_of_a_sample_are_not_learned_if_there_are_others(tmp_path):
    text = [b"".join(b"line %d\n" % (i * i) for i in range(90))]

    def run(identity, **options):
        corpus = corpus_of({"of": identity}, train=text)
        return prepare_tokenizer("sentencepiece", corpus, tmp_path, **options)

    sample = run(1, sample_bytes=300)
    assert run(1).vocabulary_size > sample.vocabulary_size
    assert run(1, sample_bytes=300).model == sample.model
    assert run(2).model == run(2, sample_bytes=300).model == run(1).model


class Break(Text):
    """Documents that end in an error the first time."""

    def __iter__(self):
        yield from super().__iter__()
        if self.times_read == 1:
            raise KeyboardInterrupt


def test_a_failed_preparation_leaves_nothing(tmp_path):
    corpus = corpus_of({}, train=Break(TEXT["train"]))
    with pytest.raises(KeyboardInterrupt):
        prepare(corpus, WORDS, str(tmp_path), ["train"])
    files = [name for _, _, names in os.walk(tmp_path) for name in names]
    assert [name for name in files if not name.endswith(".lock")] == []
    train = prepare(corpus, WORDS, str(tmp_path), ["train"])["train"]
    assert len(train.tokens) == 12


def test_two_at_a_time_prepare_once(tmp_path):
    text = Text(TEXT["train"])
    corpus = corpus_of({}, train=text)
    arguments = zip(*[(corpus, WORDS, str(tmp_path), ["train"])] * 3)  # noqa: B905
    with futures.ThreadPoolExecutor(3) as pool:
        list(pool.map(prepare, *arguments))
    assert text.times_read == 1


@pytest.fixture
def text_of_sections(tmp_path, monkeypatch):
    """A corpus of files, with sections of about 40 bytes, and its tokenizer."""
    monkeypatch.setattr(corpus_module, "SECTION_BYTES", 40)
    folder = tmp_path / "texts"
    for split in ("train", "valid", "test"):
        (folder / split).mkdir(parents=True)
        for i in range(3):
            lines = [f"the cat {split} {i}"] * (i * 4)
            lines += ["a " * 25, " the  cat"]
            (folder / split / f"{i}.txt").write_text("\n".join(lines))
    corpus = load_corpus(folder)
    return corpus, prepare_tokenizer("words", corpus, str(tmp_path / "ids"))


def test_ids_of_many_sections_are_those_of_the_whole_text(
    text_of_sections, tmp_path
):
    corpus, tokenizer = text_of_sections
    again = prepare_tokenizer("words", corpus, str(tmp_path), map)
    assert again.get_config() == tokenizer.get_config()
    train = prepare(corpus, tokenizer, "ram://s", section_map=map)["train"]
    assert len(train.metadata["lengths"]) == 3
    whole = prepare(corpus, tokenizer, str(tmp_path / "b"))["train"]
    np.testing.assert_array_equal(train.tokens[:], whole.tokens)
    np.testing.assert_array_equal(train.documents[:], whole.documents)
    assert train.fingerprint() == whole.fingerprint()


def test_sections_that_are_finished_are_kept(text_of_sections, tmp_path):
    corpus, tokenizer = text_of_sections
    called = []

    def fails(function, items):
        for item in items:
            if len(called) == 2:
                raise OSError("a machine is gone")
            called.append(item)
            yield function(item)

    folder = str(tmp_path / "a")
    with pytest.raises(OSError, match="gone"):
        prepare(corpus, tokenizer, folder, section_map=fails)
    for section, _ in called:
        for part in section.parts:  # is not read again
            os.rename(part.path, f"{part.path}.gone")
    train = prepare(corpus, tokenizer, folder, ["train"], map)["train"]
    assert len(train.tokens) == train.metadata["num_tokens"]
    assert not list(tmp_path.rglob("*.bin.json"))


def test_sections_are_kept_until_all_is_written(
    text_of_sections, tmp_path, monkeypatch
):
    corpus, tokenizer = text_of_sections

    def interrupt(*paths):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(token_files, "file_digest", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare(corpus, tokenizer, str(tmp_path), ["train"], map)
    for section in corpus.text("train").sections():
        for part in section.parts:  # is not read again
            os.rename(part.path, f"{part.path}.gone")
    prepare(corpus, tokenizer, str(tmp_path), ["train"], map)
    assert not list(tmp_path.rglob("*.bin.json"))


def test_ids_that_are_not_in_the_vocabulary_are_refused(tmp_path):
    class Larger(CharacterTokenizer):
        def encode(self, text, begins_line=True):
            return super().encode(text, begins_line) + 254

    for folder in (tmp_path, ""):
        message = "`encode` must .*The train" if folder else "`folder`"
        with pytest.raises(ValueError, match=message):
            prepare(corpus_of({}, train=b"ab"), Larger("ab\n"), folder)

    class Skips(Larger):
        def encode(self, text, begins_line=True):
            return np.array([])

    with pytest.raises(ValueError, match="must have at least one token"):
        prepare(corpus_of({}, train=b"ab"), Skips("ab\n"), tmp_path)


def test_other_documents_are_another_text():
    one = corpus_of({}, train=[b"the cat\n", b"cat\n"])
    joined = corpus_of({"joined": 1}, train=[b"the cat\ncat\n"])
    prints = [
        prepare(corpus, WORDS, "ram://documents", ["train"])["train"]
        for corpus in (one, joined)
    ]
    assert prints[0].tokens[:].tolist() == prints[1].tokens[:].tolist()
    assert prints[0].fingerprint() != prints[1].fingerprint()


def test_what_a_killed_preparation_left_is_made_again(tmp_path):
    train = prepare(corpus_of({}), WORDS, str(tmp_path))["train"]
    os.remove(os.path.join(train.folder, "metadata.json"))
    left = pathlib.Path(train.folder, "tokens.bin")
    left.unlink()
    left.symlink_to(tmp_path / "of another")  # is not written through
    again = prepare(corpus_of({}), WORDS, str(tmp_path))["train"]
    assert again.metadata == train.metadata
    assert not (tmp_path / "of another").exists()


def test_an_unknown_word_is_named(tmp_path):
    tokenizer = WordTokenizer(["<eos>", "the", "cat"], unknown=None)
    documents = [b"the cat\n"] * 100 + [b"cat dog\n"]
    corpus = corpus_of({}, train=documents)
    message = "train split of c has 'dog', which is not in the vocabulary"
    with pytest.raises(ValueError, match=message):
        prepare(corpus, tokenizer, str(tmp_path))


def test_a_split_without_tokens_is_refused(tmp_path):
    tokenizer = CharacterTokenizer("a", drop_newlines=True)
    corpus = corpus_of({}, valid=Text([b"\n\n"]), train=b"a")
    with pytest.raises(ValueError, match="valid split of c must have.*without"):
        prepare(corpus, tokenizer, str(tmp_path))


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ValueError, match="`data_dir`.*`manual_dir`"):
        prepare(corpus_of({}), WORDS, str(tmp_path / "file"))


@pytest.mark.large
@pytest.mark.skipif(
    not SHARED_DATA.is_dir(), reason="needs ../shared/data/enwik8.gz"
)
def test_enwik8_has_the_published_symbols(tmp_path, monkeypatch):
    monkeypatch.undo()
    folder = str(tmp_path)
    corpus = load_corpus("enwik8", folder, str(SHARED_DATA))
    tokenizer = prepare_tokenizer(
        "characters", corpus, folder, drop_newlines=True
    )
    splits = prepare(corpus, tokenizer, folder)
    lengths = {name: len(split.tokens) for name, split in splits.items()}
    assert lengths == {
        "train": 88_982_818,
        "valid": 4_945_742,
        "test": 4_943_417,
    }
    assert tokenizer.vocabulary_size == 204


def test_where_ids_are_kept(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    token_folder = preparation.token_folder
    assert token_folder("/data") == "/data/txl_keras_tokens"
    default = "/home/someone/tensorflow_datasets/txl_keras_tokens"
    assert token_folder() == default
    monkeypatch.setenv("TFDS_DATA_DIR", "gs://bucket/tfds")
    assert token_folder() == "gs://bucket/tfds/txl_keras_tokens"
