import pytest

from txl_keras.data import Corpus
from txl_keras.data import WordTokenizer
from txl_keras.data import build_tokenizer
from txl_keras.data import load_tokenizer
from txl_keras.data import save_tokenizer
from txl_keras.data.vocabulary import Vocabulary

WORDS = ["<eos>", "<unk>", "the", "cat", "naïve"]


def from_text(text, **options):
    splits = {"train": text.encode(), "valid": b"v", "test": b"t"}
    return build_tokenizer("words", Corpus("c", splits), **options)


def test_words_become_their_places_and_newlines_eos():
    tokenizer = WordTokenizer(WORDS)
    text = " the  cat \n\n\tnaïve the\r\n"
    assert tokenizer.encode(text).tolist() == [2, 3, 0, 0, 4, 2, 0]
    assert tokenizer.vocabulary_size == 5
    # A line without its newline is unfinished.
    assert tokenizer.encode("cat\nthe").tolist() == [3, 0, 2]
    assert tokenizer.encode("\n").tolist() == [0]


def test_lines_of_one_billion_word_lie_between_two_marks():
    tokenizer = WordTokenizer(
        ["<S>", "<UNK>", "a", "b"], "<UNK>", line_start="<S>", line_end="<S>"
    )
    ids = tokenizer.encode("a b\n\nx\n")
    assert ids.tolist() == [0, 2, 3, 0, 0, 0, 0, 1, 0]
    assert tokenizer.encode("a\nb").tolist() == [0, 2, 0, 0, 3]
    assert tokenizer.encode("\n").tolist() == [0, 0]
    assert tokenizer.encode("").tolist() == []
    assert tokenizer.decode(ids) == "\na b\n\n\n\n<UNK>\n"


def test_marks_are_optional():
    tokenizer = WordTokenizer(["<eos>", "<bos>", "a"], line_start="<bos>")
    ids = tokenizer.encode("a a\n\na\n")
    assert ids.tolist() == [1, 2, 2, 0, 1, 0, 1, 2, 0]
    assert tokenizer.decode(ids) == "a a\n\na\n"
    tokenizer = WordTokenizer(["a", "b"], line_end=None)
    assert tokenizer.encode("a\n\nb\n").tolist() == [0, 1]
    assert tokenizer.decode([0, 1]) == "a b"


def test_an_unknown_word_without_a_stand_in_is_named_with_its_position():
    for unknown in (None, "<unk>"):
        tokenizer = WordTokenizer(["<eos>", "a"], unknown)
        with pytest.raises(ValueError, match=r"'cat' at position 4 "):
            tokenizer.encode("a\na\ncat dog")


@pytest.mark.parametrize(
    "text, options, expected",
    [
        # By frequency, then by first appearance.
        ("z b b\na <unk> a\nc\n", {}, "<eos> b a z <unk> c"),
        # Marks, and an unknown that is missing, come first.
        ("a a\n<S> a\n", {}, "<eos> <unk> a <S>"),
        ("a a\n<S> a\n", {"unknown": ""}, "<eos> a <S>"),
        ("a\n<S>", {"line_end": "<S>", "line_start": "<S>"}, "<S> <unk> a"),
        ("a\n", {"line_start": "<b>", "unknown": "?"}, "<eos> <b> ? a"),
        # Rare words are left out.
        ("c b a b <unk>\nb c\n", {"min_count": 2}, "<eos> <unk> b c"),
        ("c b a b <unk>\nb\n", {"vocabulary_size": 3}, "<eos> <unk> b"),
        (
            "c b a b <unk>\nb c\n",
            {"min_count": 3, "vocabulary_size": 4},
            "<eos> <unk> b",
        ),
        # <unk> is as rare as b: it is kept, and b is not.
        ("a a b <unk>", {"vocabulary_size": 3}, "<eos> <unk> a"),
    ],
)
def test_marks_are_kept_and_rare_words_left_out(text, options, expected):
    symbols = from_text(text, **options).vocabulary.symbols
    assert " ".join(symbols) == expected


def test_a_corpus_gives_the_words_of_its_train_split():
    corpus = Corpus("t", {"train": b"b a b\n", "valid": b"c\n", "test": b"a\n"})
    tokenizer = build_tokenizer("words", corpus)
    assert tokenizer.vocabulary.symbols == ("<eos>", "<unk>", "b", "a")
    assert tokenizer.encode(corpus.splits["valid"]).tolist() == [1, 0]
    vocabulary = ["<eos>", "c", "?"]
    given = build_tokenizer("words", corpus, vocabulary=vocabulary, unknown="?")
    assert given.encode(corpus.splits["train"]).tolist() == [2, 2, 2, 0]
    # Empty strings turn marks off.
    tokenizer = build_tokenizer("words", corpus, unknown="", line_end="")
    assert tokenizer.vocabulary.symbols == ("b", "a")
    assert tokenizer.unknown_id is None


def test_words_of_neighbouring_documents_do_not_run_together():
    splits = dict.fromkeys(("train", "valid", "test"), [b"the cat", b"a dog"])
    tokenizer = build_tokenizer("words", Corpus("c", splits))
    assert {"cat", "a", "dog"} <= {*tokenizer.vocabulary}
    assert tokenizer.encode("a cat").min() > 1  # neither a mark nor unknown


def test_words_of_many_commas_are_loaded_again(tmp_path):
    words = [",".join(f"{i:06}") for i in range(290_000)]
    save_tokenizer(WordTokenizer(["<unk>", "<eos>", *words]), tmp_path / "t")
    assert load_tokenizer(tmp_path / "t").vocabulary_size == 290_002


@pytest.mark.parametrize(
    "function, arguments, message",
    [
        (WordTokenizer, {"vocabulary": ["a"]}, "`line_end` .*line_end='<eos>'"),
        (
            WordTokenizer,
            {"vocabulary": ["end of", "a"], "line_end": "end of"},
            "without spaces.*line_end='end of'",
        ),
        (from_text, {"text": "a", "min_count": 0}, "`min_count`.*count=0"),
        (from_text, {"text": "a", "min_count": 9}, "leave at least one.*=9"),
        (
            from_text,
            {"text": "a", "vocabulary_size": 2},
            "`vocabulary_size` must be .* 3.*vocabulary_size=2",
        ),
        (Vocabulary, {"symbols": ["a", ""]}, "at least one character.*''"),
        (Vocabulary, {"symbols": [b"a"]}, "Received: b'a'"),
        (Vocabulary, {"symbols": ["a", "c", "a"]}, "distinct.*'a' at index 2"),
        (Vocabulary, {"symbols": []}, "must not be empty"),
        (Vocabulary, {"symbols": "words.txt"}, "must be a list of words"),
    ],
)
def test_wrong_arguments_are_refused(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(**arguments)
