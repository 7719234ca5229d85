import random

import pytest

from txl_keras.data import Corpus
from txl_keras.data import load_corpus
from txl_keras.data.corpora import corpus as corpus_module
from txl_keras.data.corpora.corpus import Block


@pytest.mark.parametrize("name", ["wikipedia", "", "no/such/file.txt"])
def test_an_unknown_name_is_refused_with_the_known_ones(name):
    with pytest.raises(FileNotFoundError, match="no such path") as error:
        load_corpus(name)
    for known in ("python_stdlib", "wikitext103", "tfds:", repr(name)):
        assert known in str(error.value)


def test_a_corpus_needs_three_splits_with_text():
    full = {"train": b"a", "valid": b"b", "test": b"c"}
    assert Corpus("tiny", full).encoding == "utf-8"
    for empty in (b"", [], [b""]):
        message = r"tiny must .* no text in \['valid'\]"
        with pytest.raises(ValueError, match=message):
            Corpus("tiny", {**full, "valid": empty})
    with pytest.raises(ValueError, match=r"keys .*Received: \['train'\]"):
        Corpus("tiny", {"train": b"a"})
    with pytest.raises(ValueError, match="`encoding`.*'ascii'"):
        Corpus("tiny", full, "ascii")


def test_splits_have_names_and_sizes():
    assert corpus_of([b"one", b"two"]).text("train").num_bytes == 6
    assert corpus_of(b"one").text("train").num_bytes == 3
    whole = Corpus("tiny", {"all": b"text"})
    for read in (whole.read, whole.text):
        with pytest.raises(ValueError, match=r"`split` .*all.*split='train'"):
            read("train")


def corpus_of(documents, **options):
    splits = {"train": documents, "valid": b"v", "test": b"t"}
    return Corpus("c", splits, **options)


def random_documents(generator):
    """Documents of characters of 1 to 4 bytes, some of them in chunks."""
    for _ in range(generator.randint(1, 5)):
        text = "".join(generator.choices("a€𝄞 \n", k=generator.randint(0, 30)))
        data = text.encode()
        cut = generator.randint(0, len(data))
        yield generator.choice([data, [data[:cut], data[cut:]]])


def joined(document):
    return document if isinstance(document, bytes) else b"".join(document)


def test_blocks_are_the_text_and_know_where_documents_begin(monkeypatch):
    monkeypatch.setattr(corpus_module, "BLOCK_BYTES", 7)
    generator = random.Random(5)
    for _ in range(300):
        documents = [b"first", *random_documents(generator)]
        blocks = list(corpus_of(documents).blocks("train"))
        found = []
        for block in blocks:
            for i, piece in enumerate(block.pieces):
                piece.decode()  # no character is cut
                if i == 0 and block.continues:
                    assert block.amid_line == (not found[-1].endswith(b"\n"))
                    found[-1] += piece
                else:
                    found.append(piece)
            assert block.continues or not block.amid_line
            assert block.num_bytes == len(block.text)
        expected = [joined(document) for document in documents]
        assert found == [text for text in expected if text]


def test_a_block_ends_with_a_line_or_a_word(monkeypatch):
    monkeypatch.setattr(corpus_module, "BLOCK_BYTES", 10)
    corpus = corpus_of(b"one two\nthree four five six\nseven")
    assert list(corpus.blocks("train")) == [
        Block([b"one two\n"], False, False),
        Block([b"three four"], True, False),
        Block([b" five six\n"], True, True),
        Block([b"seven"], True, False),
    ]


def test_a_corpus_is_recognised_by_its_text_or_by_what_it_says():
    text = corpus_of([b"one", b"two"]).fingerprint()
    assert corpus_of([b"one", b"two"]).fingerprint() == text
    others = [[b"onetwo"], [b"one", b"twO"], [b"two", b"one"]]
    assert len({corpus_of(o).fingerprint() for o in others} | {text}) == 4
    assert corpus_of([b"one", b"two"], encoding="latin-1").fingerprint() != text
    identity = {"version": "1.0.0"}
    told = corpus_of([b"one"], identity=identity).fingerprint()
    assert corpus_of([b"two"], identity=identity).fingerprint() == told
    assert corpus_of([b"one"], identity={"version": 2}).fingerprint() != told


@pytest.mark.parametrize("document", ["one", ["o", "ne"], [3]])
def test_documents_that_are_no_bytes_are_refused(document):
    corpus = corpus_of([b"fine", document])
    with pytest.raises(ValueError, match="must be `bytes`.*of type (str|int)"):
        list(corpus.blocks("train"))
