import itertools
import random
import struct
from concurrent import futures

import keras
import numpy as np
import pytest
from sentence_pieces import NAMES
from sentence_pieces import TEXT
from sentence_pieces import build_subwords as build
from sentence_pieces import train_foreign

from txl_keras.data import Corpus
from txl_keras.data import build_tokenizer
from txl_keras.data.tokenizers.sentence_piece_tokenizer import (
    SentencePieceTokenizer,
)
from txl_keras.lazy import import_extra

sentencepiece = pytest.importorskip("sentencepiece")
pytest.importorskip("tensorflow_text")

ODD_PARTS = (
    *"▁⁇▅\0\t\r\n \ufeff\ufffd\u2028\u00a0\u200b\U0010ffff",
    *("\r\n", "  ", " ⁇ ", "e\u0301", "👩‍👩‍👧", "漢字", "עברית"),
    *("<unk>", "<s>", "<0x0A>", "<eos>", "the cat ", " mat"),
)


@pytest.fixture
def lossless():
    return build("bpe")


def random_text(generator):
    characters = (generator.randrange(0x110000) for _ in range(9))
    valid = [chr(i) for i in characters if not 0xD800 <= i < 0xE000]
    return "".join(generator.choices([*ODD_PARTS, *valid, "c", "a"], k=20))


def test_nothing_is_lost(lossless):
    generator = random.Random(0)
    for _ in range(100):
        text = random_text(generator)
        ids = lossless.encode(text)
        assert lossless.decode(ids) == text
        assert lossless.decode_bytes(ids) == text.encode()
        assert lossless.unknown_id not in ids


def test_the_first_pieces_are_unknown_newline_and_bytes(lossless):
    assert lossless.vocabulary_size == 295
    assert lossless.unknown_id == 0
    assert lossless.encode(TEXT).dtype == np.uint16
    assert len(lossless.encode(TEXT)) < len(TEXT) * 2 / 3
    assert lossless.encode("\n\n").tolist() == [1, 1]
    expected = [2 + byte for byte in "▁é😀\0".encode()]
    assert lossless.encode("▁é😀\0").tolist() == expected
    assert lossless.decode_bytes(np.arange(2, 258)) == bytes(range(256))


@pytest.mark.parametrize("name", NAMES)
def test_text_can_be_cut_after_newlines(name):
    tokenizer = build(name)
    text = TEXT + "".join(random_text(random.Random(i)) for i in range(9))
    lines = [line + "\n" for line in text.split("\n")[:-1]]
    text = "".join(lines)
    ids = [tokenizer.encode(line) for line in lines]
    np.testing.assert_array_equal(np.concatenate(ids), tokenizer.encode(text))


def test_a_published_model_treats_newlines_in_its_own_way():
    like_xlnet, like_llama = build("like XLNet"), build("like Llama")
    text = "The cat sat\n\n on the ﬁ mat.\nthe"
    ids = like_xlnet.encode(text)
    assert like_xlnet.unknown_id in ids  # There is no f.
    assert like_xlnet.decode(ids) == "The cat sat on the <unk>i mat. the"
    processor = sentencepiece.SentencePieceProcessor(
        model_proto=like_xlnet.model
    )
    lines = map(processor.encode, text.split("\n"))
    assert ids.tolist() == list(itertools.chain(*lines))
    text = "\n the\n\n  ▁ cat\n"
    expected = text.replace("▁", " ")
    assert like_llama.decode(like_llama.encode(text)) == expected


@pytest.mark.parametrize(
    "changed",
    [{}, {"normalization_rule_name": "nfkc"}, {"byte_fallback": False}],
)
def test_only_a_model_that_keeps_all_text_is_lossless(changed):
    options = {
        "vocab_size": 310,
        "normalization_rule_name": "identity",
        "byte_fallback": True,
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": False,
        **changed,
    }
    if "byte_fallback" in changed:
        options["vocab_size"] = 60
    tokenizer = SentencePieceTokenizer(train_foreign(**options))
    text = " the ﬁ\ncat"
    is_kept = tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.is_lossless == is_kept == (not changed)


@pytest.mark.parametrize(
    "first,second",
    [("the c", "at sat\non it"), ("the", " cat\nsat"), ("the", "\ncat")],
)
@pytest.mark.parametrize("name", NAMES[1:])
def test_a_line_that_goes_on_gets_no_space(name, first, second):
    foreign = build(name)
    whole = foreign.decode(foreign.encode(first + second))
    ids = [*foreign.encode(first), *foreign.encode(second, False)]
    assert foreign.decode(ids) == whole
    ids = [*foreign.encode(first), *foreign.encode(second)]
    assert foreign.decode(ids) != whole or second[0] in " \n"


def test_models_are_read_from_files(tmp_path):
    path = tmp_path / "spiece.model"
    with pytest.raises(FileNotFoundError, match=f"There is no file {path}"):
        SentencePieceTokenizer.from_file(path)
    path.write_bytes(b"[PAD]\n[UNK]\n")
    message = f"{path}: `model` is not a SentencePiece model.* Take a publ"
    with pytest.raises(ValueError, match=message):
        SentencePieceTokenizer.from_file(path)
    other = tmp_path / "other.model"
    other.write_bytes(build("bpe").model)
    assert SentencePieceTokenizer.from_file(other).model == build("bpe").model


def test_blocks_of_text_are_one_text(lossless):
    lines = TEXT.splitlines(keepends=True)
    assert SentencePieceTokenizer.train(lines, 295).model == lossless.model


def test_a_sample_of_a_long_text_is_the_same_again():
    lines = [f"{line}{i % 7}\n" for i in range(9) for line in TEXT.split("\n")]
    splits = {"train": "".join(lines).encode(), "valid": b"a", "test": b"a"}
    corpus = Corpus("c", splits)
    models = [
        build_tokenizer(
            "sentencepiece", corpus, vocabulary_size=295, sample_bytes=2000
        ).model
        for _ in range(2)
    ]
    everything = SentencePieceTokenizer.train(lines, 295).model
    assert models[0] == models[1] != everything


def test_threads_encode_at_once_whatever_keras_resets(lossless):
    expected = lossless.encode(TEXT).tolist()
    for _ in range(2):
        keras.utils.set_random_seed(0)
        with futures.ThreadPoolExecutor(4) as pool:
            for ids in pool.map(lossless.encode, [TEXT] * 8):
                assert ids.tolist() == expected


def test_long_lines_and_reserved_characters_are_learned_from():
    text = "hat " * 9000 + "⁇" + "mat " * 9000 + "x" * 70000 + "\0end"
    text += " end" * 9000
    tokenizer = SentencePieceTokenizer.train([text], 280)
    pieces = {tokenizer.decode([i]) for i in range(258, 280)}
    assert {" hat", " mat", " end"} <= pieces


def test_the_default_size_suits_any_text():
    short = SentencePieceTokenizer.train([TEXT])
    assert 260 < short.vocabulary_size < 600
    # As many characters as Chinese has, once to many times each.
    symbols = [chr(0x4E00 + i) for i in range(3000)]
    text = "".join(random.Random(0).choices(symbols, range(3000), k=60_000))
    large = SentencePieceTokenizer.train([text])
    assert 3000 < large.vocabulary_size < 4000
    assert len(large.encode(text)) <= 1.01 * len(text)


def test_spaces_at_the_start_of_a_line_are_one_token(capfd):
    lines = ["a cat\n", "    if a b\n", "        b if cat\n"]
    text = "".join(random.Random(0).choices(lines, k=200))
    tokenizer = SentencePieceTokenizer.train([text], 278)
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode(text)]
    assert "".join(pieces) == text
    spaces = [len(piece) - len(piece.lstrip(" ")) for piece in pieces]
    assert max(spaces) >= 7
    # Native code would print something for each model.
    assert "charsmap" not in capfd.readouterr().err


def test_wrong_arguments_are_errors(lossless):
    for size, bound in ((0, ""), (10, r".* 10 vs \d+"), (999, r".* <= \d+")):
        message = f"`vocabulary_size` must .*vocabulary_size={size}{bound}"
        with pytest.raises(ValueError, match=message):
            SentencePieceTokenizer.train([TEXT], size)
    for texts in ([], [""], ["\n\0\n"]):
        with pytest.raises(ValueError, match="`texts` must contain text"):
            SentencePieceTokenizer.train(texts, 300)
    message = r"`model` must be the bytes.*from_file\(path\)`.*str"
    with pytest.raises(ValueError, match=message):
        SentencePieceTokenizer("spiece.model")
    for model in (b"", b"no model", lossless.model[:-1], b"\n\0"):
        with pytest.raises(ValueError, match="`model` is not a SentencePiece"):
            SentencePieceTokenizer(model)


def message_of(number, data):
    """A field of a serialized message, of up to 2**14 bytes."""
    size = len(data)
    length = [size & 127 | 128, size >> 7] if size > 127 else [size]
    return bytes([number << 3 | 2, *length]) + data


def charsmap(units, strings=b"a\0"):
    return struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + strings


@pytest.mark.parametrize(
    "characters",
    [
        charsmap([2**32 - 1] * 10),
        charsmap([1 << 30] + [0] * 255),  # a step out of the trie
        charsmap([1 << 8 | 3 << 10] + [9] * 255),  # a leaf behind the strings
        charsmap([0] * 256, b"a"),
        b"\xff",
    ],
    ids=["no trie", "step", "leaf", "no end", "no size"],
)
def test_a_map_that_leads_out_of_itself_is_refused(characters):
    # Native code would follow it out of its memory.
    for number in (3, 5):
        model = train_foreign() + message_of(number, message_of(2, characters))
        with pytest.raises(ValueError, match="its character map is damaged"):
            SentencePieceTokenizer(model)


def test_missing_packages_are_named():
    with pytest.raises(ImportError, match="no_package.*pip install no_package"):
        import_extra("no_package.module")
