import numpy as np
import pytest

from txl_keras.data.tokenizers.word_piece_tokenizer import WordPieceTokenizer

pytest.importorskip("tensorflow_text")

WORDS = (
    *("[EOS]", "[UNK]", "the", "un", "##aff", "##able", "##a", ".", "'"),
    *("cafe", "café", "Cat", "cat", "漢", "##", "#"),
)


@pytest.fixture(scope="module")
def tokenizer():
    return WordPieceTokenizer(WORDS)


def test_words_are_spelled_by_their_longest_parts(tokenizer):
    ids = tokenizer.encode("the unaffable.\n\n una\tcat\n")
    assert ids.tolist() == [2, 3, 4, 5, 7, 0, 0, 3, 6, 12, 0]
    assert ids.dtype == np.uint8
    assert tokenizer.decode(ids) == "the unaffable .\n\nuna cat\n"
    assert tokenizer.vocabulary_size == 16


def test_unknown_words_have_one_id(tokenizer):
    assert tokenizer.unknown_id == 1
    for word in ("dog", "undog", "a" * 101, "😀"):
        assert tokenizer.encode(word).tolist() == [1]
    # Marks are not read as such.
    assert tokenizer.encode("[UNK] [EOS]").tolist() == [1] * 6
    assert tokenizer.encode("##").tolist() == [15, 15]


def test_case_and_accents_matter_unless_text_is_read_in_lower_case(tokenizer):
    assert tokenizer.encode("Cat\ncat café 漢").tolist() == [11, 0, 12, 10, 13]
    lower = WordPieceTokenizer(WORDS, lower_case=True)
    assert lower.encode("Cat CAT CAFÉ").tolist() == [12, 12, 9]


def test_newlines_are_spaces_without_a_line_end():
    tokenizer = WordPieceTokenizer(WORDS, line_end=None)
    assert tokenizer.encode("the\n\ncat\n").tolist() == [2, 12]


def test_single_tokens_are_shown_as_all_at_once(tokenizer):
    ids = tokenizer.encode("the unaffable cat.\nthe 漢 dog")
    whole = tokenizer.decode_bytes(ids)
    assert whole == " the unaffable cat .\n the 漢 [UNK]".encode()
    assert b"".join(tokenizer.decode_bytes(i) for i in ids) == whole
    assert tokenizer.decode_bytes(14) == b""


def test_text_can_be_cut_between_words(tokenizer):
    ids = [
        *tokenizer.encode("The cat\nunable"),
        *tokenizer.encode(" una\n", begins_line=False),
        *tokenizer.encode("the cafe."),
    ]
    expected = tokenizer.encode("The cat\nunable una\nthe cafe.")
    assert ids == expected.tolist()


def test_vocabularies_are_read_from_files(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\n[UNK]\n[SEP]\nthe\n\u2028\n", encoding="utf-8")
    tokenizer = WordPieceTokenizer.from_file(path, line_end="[SEP]")
    assert tokenizer.vocabulary.symbols[4:] == ("\u2028",)
    assert tokenizer.encode("the\nthe").tolist() == [3, 2, 3]
    text = path.read_text("utf-8")
    for end in ("\r", "\r\n"):
        path.write_bytes(text.replace("\n", end).encode("utf-8-sig"))
        again = WordPieceTokenizer.from_file(path, line_end="[SEP]")
        assert again.vocabulary.symbols == tokenizer.vocabulary.symbols
    path.write_bytes(text.encode("utf-16"))
    with pytest.raises(ValueError, match=f"{path} .*iconv -f UTF-16LE"):
        WordPieceTokenizer.from_file(path)
    with pytest.raises(ValueError, match="`symbols` must be a list of words"):
        WordPieceTokenizer(str(path))


def test_wrong_arguments_are_errors():
    with pytest.raises(ValueError, match="`unknown` must be.*'<unk>'"):
        WordPieceTokenizer(WORDS, unknown="<unk>")
    with pytest.raises(ValueError, match="`line_end` must be.*'</s>'"):
        WordPieceTokenizer(WORDS, line_end="</s>")
    with pytest.raises(ValueError, match="`suffix_indicator` must.*'_'"):
        WordPieceTokenizer(WORDS, suffix_indicator="_")
    with pytest.raises(ValueError, match="must be distinct"):
        WordPieceTokenizer([*WORDS, "the"])
