import itertools

import numpy as np
import pytest
from sentence_pieces import build_subwords

from txl_keras.data import ByteTokenizer
from txl_keras.data import CharacterTokenizer
from txl_keras.data import Corpus
from txl_keras.data import IdTokenizer
from txl_keras.data import Tokenizer
from txl_keras.data import WordTokenizer
from txl_keras.data import build_tokenizer
from txl_keras.data import load_tokenizer
from txl_keras.data import prepare
from txl_keras.data import save_tokenizer
from txl_keras.data.corpora import corpus as corpus_module
from txl_keras.data.tokenizers import building
from txl_keras.data.tokenizers import saving


def corpus_of(train, valid="a", test="a", encoding="utf-8"):
    splits = {"train": train, "valid": valid, "test": test}
    return Corpus(
        "tiny", {name: text.encode() for name, text in splits.items()}, encoding
    )


def test_characters_go_by_frequency_then_by_code_point():
    corpus = corpus_of("ccb\n", "ba€", "z")
    tokenizer = build_tokenizer("characters", corpus)
    assert tokenizer.vocabulary.symbols == ("b", "c", "\n", "a", "z", "€")
    assert tokenizer.vocabulary_size == 6
    assert tokenizer.encode("a€b").tolist() == [3, 5, 0]
    assert tokenizer.decode([3, 5, 0]) == "a€b"
    with pytest.raises(ValueError, match=r"'é' \(U\+00E9\) at position 3 is"):
        tokenizer.encode("a\nbéé")


def test_only_what_is_learned_needs_a_train_split():
    whole = Corpus("book.txt", {"all": b"b ab\n"})
    for name in ("words", "sentencepiece"):
        with pytest.raises(ValueError, match=r"train split.*book\.txt"):
            build_tokenizer(name, whole)
    characters = build_tokenizer("characters", whole)
    assert characters.vocabulary.symbols == ("b", "\n", " ", "a")
    words = build_tokenizer("words", whole, vocabulary=["<eos>", "b", "ab"])
    assert words.encode(whole.read("all")).tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    "size, dtype", [(256, np.uint8), (257, np.uint16), (65537, np.int32)]
)
def test_ids_have_the_smallest_dtype_that_holds_the_vocabulary(size, dtype):
    symbols = [chr(i + 0x10000) for i in range(size)]
    words = WordTokenizer(symbols, line_end=None)
    for tokenizer in (CharacterTokenizer(symbols), words):
        for text, ids in ((symbols[-1], [size - 1]), ("", [])):
            assert tokenizer.encode(text).dtype == dtype
            assert tokenizer.encode(text).tolist() == ids
            assert tokenizer.decode(ids) == text


def test_a_symbol_of_a_latin_1_corpus_is_a_byte():
    corpus = corpus_of("né", encoding="latin-1")
    tokenizer = build_tokenizer("characters", corpus)
    assert tokenizer.vocabulary_size == 4  # a, n and the two bytes of é
    ids = tokenizer.encode("né")
    assert ids.tolist() == tokenizer.encode("né".encode()).tolist()
    assert len(ids) == 3
    assert tokenizer.decode(ids) == "né"
    assert tokenizer.decode_bytes(ids[:2]) == b"n\xc3"
    assert tokenizer.decode(ids[:2]) == "n\N{REPLACEMENT CHARACTER}"


def test_newlines_can_be_dropped():
    corpus = corpus_of("b\n\nbc\n")  # "a" twice in valid and test
    dropped = build_tokenizer("characters", corpus, drop_newlines=True)
    assert dropped.decode(dropped.encode(corpus.splits["train"])) == "bbc"
    assert dropped.vocabulary.symbols == ("a", "b", "c")


TOKENIZERS = {
    "bytes": lambda: ByteTokenizer(),
    "characters": lambda: CharacterTokenizer("ab é\n"),
    "latin-1": lambda: CharacterTokenizer("ab \n\xc3\xa9", "latin-1"),
    "words": lambda: WordTokenizer(["<eos>", "a", "é"]),
    "sentencepiece": lambda: build_subwords("bpe"),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_bytes_and_strings_are_the_same_text_and_nothing_else_is(name):
    tokenizer = TOKENIZERS[name]()
    for text in ("a", "a a\n\né a\n", ""):
        ids = tokenizer.encode(text)
        assert ids.shape == (len(ids),) and bool(text) == bool(len(ids))
        for kind in (bytes, bytearray):
            again = tokenizer.encode(kind(text.encode()))
            np.testing.assert_array_equal(again, ids, strict=True)
    # `bytes` would make zeros of 5, and what lies in memory of an array.
    for wrong in (5, True, 1.5, None, ["a"], [97], np.array([97])):
        with pytest.raises(
            ValueError, match="`text` must be `bytes` or `str`. Received"
        ):
            tokenizer.encode(wrong)
    # What Python makes of a file name or a flag that is not UTF-8.
    with pytest.raises(ValueError, match=r"dcff.*position 1"):
        tokenizer.encode("a\udcff")
    if name != "bytes":
        with pytest.raises(ValueError, match=r"0xff at position 1|FF.* 1"):
            tokenizer.encode(b"a\xff")


@pytest.mark.parametrize("name", TOKENIZERS)
def test_wrong_ids_are_refused(name):
    tokenizer = TOKENIZERS[name]()
    with pytest.raises(ValueError, match="`ids` must hold .* from 0 to 300"):
        tokenizer.decode([0, 300])
    with pytest.raises(ValueError, match="from -1 to"):
        tokenizer.decode([-1])
    for wrong in ([0.5], [2**40], ["1"], [None], 1.5, "a", b"a", None):
        with pytest.raises(ValueError, match="`ids` must"):
            tokenizer.decode(wrong)
    with pytest.raises(ValueError, match=r"shape \(2, 3\)"):
        tokenizer.decode(np.zeros((2, 3), int))
    assert tokenizer.decode([]) == ""


@pytest.mark.parametrize(
    "tokenizer",
    [
        lambda: ByteTokenizer(),
        lambda: CharacterTokenizer('a\n"\\€🙂\u2028', drop_newlines=True),
        lambda: CharacterTokenizer(map(chr, range(256)), encoding="latin-1"),
        lambda: WordTokenizer(["<S>", '"\\é"', "🙂"], "🙂", "<S>", None),
        lambda: build_subwords("bpe"),
        lambda: IdTokenizer(300),
    ],
    ids=itertools.count(),
)
def test_a_saved_tokenizer_loads_as_the_same(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer = tokenizer()
    save_tokenizer(tokenizer, path)
    loaded = load_tokenizer(path)
    assert type(loaded) is type(tokenizer)
    assert loaded.get_config() == tokenizer.get_config()


@pytest.mark.parametrize(
    "content, message",
    [
        ('{"class_name": "ByteTokenizer"}', "`config` must be an object"),
        (
            '{"class_name": "SentencePieceTokenizer", "config": {}}',
            "does not describe a SentencePieceTokenizer: KeyError: 'model'",
        ),
        ('{"class_name": "Words", "config": {}}', "Received: 'Words'"),
        (
            '{"class_name": "ByteTokenizer", "config": {"size": 3}}',
            "does not describe a ByteTokenizer",
        ),
    ],
)
def test_a_wrong_tokenizer_file_is_refused(content, message, tmp_path):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(FileNotFoundError, match="tokenizer.json"):
        load_tokenizer(path)
    path.write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        load_tokenizer(path)
    assert str(path) in str(error.value)
    assert len(str(error.value)) < 700


def test_wrong_symbols_are_refused():
    with pytest.raises(ValueError, match="`encoding`.*'ascii'"):
        CharacterTokenizer("ab", encoding="ascii")
    for symbols, encoding, received in (
        (["a", "ab"], "utf-8", "'ab'"),
        ("a\ud800", "utf-8", r"'\\ud800'"),
        ("a漢", "latin-1", "'漢'"),
    ):
        with pytest.raises(ValueError, match=f"Received: {received}"):
            CharacterTokenizer(symbols, encoding)


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("words", {"vocabulary": "f", "min_count": 9}, "min_count.*left out"),
        ("words", {"drop_newlines": True}, "without.*drop_newlines=True"),
        ("bytes", {"min_count": 2}, "without.*min_count=2"),
        ("sentencepiece", {"line_end": "<eos>"}, "without.*line_end='<eos>'"),
        ("hugging_face", {}, "`vocabulary` must be.*json"),
        ("w", {}, "'bytes', 'char.*Received: tokenizer='w'"),
    ],
)
def test_wrong_options_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        build_tokenizer(name, corpus_of("b"), **options)


class LineTokenizer(Tokenizer):
    """Encodes a line as the number of its bytes."""

    vocabulary_size = 9

    def encode(self, text, begins_line=True):
        return np.array([len(line) for line in text.splitlines()], np.uint8)

    def decode_bytes(self, ids):
        return b"".join(b"-" * i + b"\n" for i in ids)


def test_two_methods_make_a_tokenizer(tmp_path):
    tokenizer = LineTokenizer.from_config(LineTokenizer().get_config())
    corpus = Corpus("c", {"train": b"ab\nc\n", "valid": b"d", "test": b"\n"})
    splits = prepare(corpus, tokenizer, str(tmp_path))
    assert splits["train"].tokens.tolist() == [2, 1]
    assert splits["train"].metadata["num_unknown"] == 0
    assert tokenizer.decode([2, 1]) == "--\n-\n"
    with pytest.raises(ValueError, match="cannot be saved.*LineTokenizer"):
        save_tokenizer(tokenizer, tmp_path / "tokenizer.json")


def test_what_could_not_be_loaded_is_not_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "_MAX_BYTES", 200)
    words = [f"word {i}" for i in range(20)]
    with pytest.raises(ValueError, match="at most 200 bytes .*--min_count=2"):
        save_tokenizer(
            WordTokenizer(words, None, line_end=None), tmp_path / "a.json"
        )
    save_tokenizer(
        WordTokenizer(words[:5], None, line_end=None), tmp_path / "b.json"
    )
    assert not (tmp_path / "a.json").exists()


def test_ids_stay_as_they_are_and_are_written_as_numbers():
    tokenizer = IdTokenizer(300)
    ids = np.array([7, 299, 0], ">i8")
    assert tokenizer.decode(ids) == "7 299 0"
    encoded = tokenizer.encode(ids)
    assert encoded.tolist() == [7, 299, 0] and encoded.dtype == np.uint16
    assert tokenizer.encode("7,299\n 0").tolist() == [7, 299, 0]
    assert tokenizer.encode(b"").tolist() == []
    # The bytes of parts are the parts of the bytes, for `TextStream`.
    parts = tokenizer.decode_bytes([7, 299]) + tokenizer.decode_bytes(0)
    assert parts == tokenizer.decode_bytes([7, 299, 0])
    # What is written after a prompt is another number.
    assert tokenizer.encode(b"60" + parts).tolist() == [60, 7, 299, 0]


@pytest.mark.parametrize(
    "ids, message",
    [
        (np.array([1, 9, 300]), "300 at position 2"),
        (np.array([1, -1]), "-1 at position 1"),
        ("5 8 4000", "4000 at position 2"),
        ("5 -8", "'-8'"),
        (f"5 {10**30}", "100000000"),
        ([1, 2], "`text` must be"),
        (np.array([1.0, 2.7]), "`text` must hold integers.*float64"),
    ],
)
def test_what_is_no_id_is_refused(ids, message):
    with pytest.raises(ValueError, match=message):
        IdTokenizer(300).encode(ids)


def test_rare_words_are_forgotten_beyond_a_number(monkeypatch):
    monkeypatch.setattr(building, "MAX_STRINGS", 12)
    lines = [f"often {'some ' * (i % 2)}{i}\n".encode() for i in range(40)]
    corpus = Corpus("c", {"train": lines, "valid": b"a", "test": b"a"})
    monkeypatch.setattr(corpus_module, "BLOCK_BYTES", 9)
    tokenizer = build_tokenizer("words", corpus)
    assert tokenizer.vocabulary.symbols[2:4] == ("often", "some")
    assert tokenizer.vocabulary_size < 16
