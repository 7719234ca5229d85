import functools
import random
from concurrent import futures

import keras
import numpy as np
import pytest
import tensorflow as tf
from sentence_pieces import NAMES as SUBWORDS
from sentence_pieces import TEXT
from sentence_pieces import build_subwords

from txl_keras.data import ByteTokenizer
from txl_keras.data import CharacterTokenizer
from txl_keras.data import IdTokenizer
from txl_keras.data import WordTokenizer
from txl_keras.serving.graph_tokenizers import GraphTokenizer

TEXTS = [
    *("", "\n", "\n\n", "\n \n", " ", "\0", "cat\0", "the cat", "\nthe\n cat"),
    *("The  cat\n\nsat \n", "naïve café\r\n", "e\u0301\u3000漢字 漢\u2028字"),
    *("👩‍👩‍👧 😀\n", "\ufeffthe\ufeff", "\u2581 \u2047\ufffd", "ﬁ ΑΣ ΣΑ\u200b"),
    *("İ", "<eos> <unk>", "a\\1b \\", "\x1c\x85a\xa0b\u1680"),
    *("\U0010ffff\uffff", "cat the b\n" * 9),
]  # fmt: skip
CHARACTERS = sorted({*"".join(TEXTS)})
WORDS = ["<eos>", "<unk>", "the", "cat", "naïve", "漢", "cat\0", "\\1", "b"]
# Bytes that begin no character, unfinished, overlong, surrogate and too large
# ones.
INVALID = [
    *(b"\xff", b"\xc3", b"\x80", b"\xe6\xbc", b"\xc0\xaf", b"\xed\xa0\x80"),
    *(b"\xf4\x90\x80\x80", b"a\xf0\x9f\x98", b"\xf8\x88\x80\x80\x80"),
]


def words_tokenizer(**options):
    vocabulary = [*WORDS, "<S>", "i̇", "ας", "σα"]
    return WordTokenizer(vocabulary, **options)


BUILDERS = {
    "bytes": ByteTokenizer,
    "characters": lambda: CharacterTokenizer(CHARACTERS[::-1]),
    "characters without newlines": lambda: CharacterTokenizer(
        [c for c in CHARACTERS if c != "\n"], drop_newlines=True
    ),
    "latin-1": lambda: CharacterTokenizer(
        map(chr, reversed(range(256))), "latin-1"
    ),
    "words": words_tokenizer,
    "words of lines": lambda: words_tokenizer(line_start="<S>", line_end="<S>"),
    "words with starts": lambda: words_tokenizer(line_start="\\1"),
    "words without ends": lambda: words_tokenizer(
        line_start="the", line_end=None
    ),
    "words without lines": lambda: words_tokenizer(line_end=None),
}


@functools.cache
def build(name):
    return build_subwords(name) if name in SUBWORDS else BUILDERS[name]()


@functools.cache
def build_graph(name):
    return GraphTokenizer(build(name))


def padded(rows):
    ids = np.zeros((len(rows), max(map(len, rows), default=0)), np.int32)
    for row, values in zip(ids, rows, strict=True):
        row[: len(values)] = values
    return ids


def check_same(graph, tokenizer, texts):
    """Both encode and decode alike, all texts in one batch."""
    expected = [tokenizer.encode(text) for text in texts]
    ids, lengths = graph.encode(tf.constant(texts, tf.string))
    assert ids.dtype == lengths.dtype == tf.int32
    assert lengths.numpy().tolist() == [len(row) for row in expected]
    np.testing.assert_array_equal(ids, padded(expected), strict=True)
    check_same_bytes(graph, tokenizer, expected)


def check_same_bytes(graph, tokenizer, rows):
    for length in {len(row) for row in rows}:
        alike = [row for row in rows if len(row) == length]
        decoded = graph.decode(padded(alike)).numpy().tolist()
        assert decoded == [tokenizer.decode_bytes(row) for row in alike]


def error_of(function, *arguments):
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        function(*arguments)
    return str(caught.value)


@pytest.fixture(params=[*BUILDERS, *SUBWORDS])
def name(request):
    return request.param


def test_ids_and_bytes_are_those_of_python(name):
    graph = build_graph(name)
    generator = random.Random(0)
    parts = [*CHARACTERS, *"\n\n  tΣΑ", "the cat", "the", " \n"]
    drawn = ["".join(generator.choices(parts, k=k)) for k in range(99)]
    alone = [[text] for text in TEXTS]
    for texts in (TEXTS, ["", *TEXTS[::-1], ""], drawn, *alone):
        check_same(graph, build(name), texts)


def test_any_ids_have_the_bytes_of_python(name):
    tokenizer = build(name)
    every = np.arange(tokenizer.vocabulary_size)
    rows = [every, every[::-1], every[:0], every[1:3], *every[:, None]]
    check_same_bytes(build_graph(name), tokenizer, rows)


def test_batches_may_be_empty(name):
    graph = build_graph(name)
    ids, lengths = graph.encode(tf.constant([], tf.string))
    assert ids.shape == (0, 0) and lengths.shape == (0,)
    assert graph.encode(["", ""])[0].shape == (2, 0)
    ids, lengths = graph.after_line_end(*graph.encode(["", ""]))
    assert ids.shape[0] == 2 and lengths.shape == (2,)
    for rows in (0, 2):
        decoded = graph.decode(np.zeros((rows, 0), int))
        assert decoded.numpy().tolist() == [b""] * rows


def test_text_that_is_no_utf8_is_as_in_python(name):
    graph, tokenizer = build_graph(name), build(name)
    texts = [
        b"the" * i + wrong + b"cat" * i for i in (0, 1) for wrong in INVALID
    ]
    if name.startswith(("bytes", "latin-1")):
        check_same(graph, tokenizer, texts)
        return
    for text in texts:
        with pytest.raises(ValueError, match="must be UTF-8"):
            tokenizer.encode(text)
        message = error_of(graph.encode, ["the", text, "the"])
        assert "`text` of row 1 is not valid UTF-8." in message


def test_a_symbol_that_is_unknown_is_named_with_its_row():
    graph = GraphTokenizer(CharacterTokenizer("an\n", drop_newlines=True))
    message = error_of(graph.encode, ["an", "a\nbé", "", "é"])
    assert "The symbol b of row 1 is not in the vocabulary." in message
    message = error_of(graph.encode, ["", "n", "\n\né"])
    assert "symbol é of row 2" in message
    bytes_of_a = GraphTokenizer(CharacterTokenizer("ab", "latin-1"))
    message = error_of(bytes_of_a.encode, ["a", "bé"])
    assert "symbol Ã of row 1" in message


def test_a_word_that_is_unknown_is_named_with_its_row():
    for unknown in (None, "<unk>"):
        graph = GraphTokenizer(WordTokenizer(["<eos>", "a"], unknown))
        message = error_of(graph.encode, ["a", "a\na\n漢字 b", "c"])
        assert "The symbol 漢字 of row 1 is not in the vocab" in message
    tokenizer = WordTokenizer(["?", "<eos>"], "?")
    check_same(GraphTokenizer(tokenizer), tokenizer, ["a <eos>\n?"])


def test_spaces_are_those_of_python():
    tokenizer = WordTokenizer(["<unk>", "a", "b"], line_end=None)
    characters = [*range(0x3100), *range(0xE000, 0x110000, 997)]
    texts = [f"a{chr(i)}b" for i in characters]
    check_same(GraphTokenizer(tokenizer), tokenizer, texts)
    assert [1, 2] in [tokenizer.encode(text).tolist() for text in texts]


@pytest.fixture(scope="module")
def save(tmp_path_factory):
    """Function that returns the path of a tokenizer, saved once."""

    @functools.cache
    def save(name):
        path = str(tmp_path_factory.mktemp("saved") / name)
        tf.saved_model.save(build_graph(name), path)
        return path

    return save


def test_threads_may_call_it_at_once(save):
    name, texts = "like XLNet", [TEXT] * 3
    for graph in (
        GraphTokenizer(build(name)),
        tf.saved_model.load(save(name)),
    ):
        with futures.ThreadPoolExecutor(4) as pool:
            results = list(pool.map(graph.encode, [texts] * 16))
        expected = padded([build(name).encode(text) for text in texts])
        for ids, _ in results:
            np.testing.assert_array_equal(ids, expected)


def test_loaded_tokenizers_are_told_apart(save):
    names = ["bpe", "like XLNet", "words", "words of lines"]
    loaded = {n: tf.saved_model.load(save(n)) for n in names}
    for _ in range(2):
        for name, graph in loaded.items():
            check_same(graph, build(name), TEXTS)
        keras.utils.set_random_seed(0)


def test_a_tokenizer_without_a_graph_is_refused():
    for tokenizer, received in ((IdTokenizer(9), "IdTokenizer"), ("b", "str")):
        message = f"`tokenizer` must define .*without.*Received: {received}$"
        with pytest.raises(ValueError, match=message):
            GraphTokenizer(tokenizer)
