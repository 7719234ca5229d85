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

from txl_keras.checks import import_extra
from txl_keras.data import Corpus
from txl_keras.data import build_tokenizer
from txl_keras.data.tokenizers import building
from txl_keras.data.tokenizers import sentence_piece_tokenizer
from txl_keras.data.tokenizers.sentence_piece_tokenizer import (
    SentencePieceTokenizer,
)

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


@pytest.fixture(params=["like XLNet", "like Llama"])
def foreign(request):
    return build(request.param)


@pytest.fixture(params=NAMES)
def tokenizer(request):
    return build(request.param)


def random_text(generator):
    characters = (generator.randrange(0x110000) for _ in range(9))
    valid = [chr(i) for i in characters if not 0xD800 <= i < 0xE000]
    return "".join(generator.choices([*ODD_PARTS, *valid, "c", "a"], k=20))


def test_nothing_is_lost(lossless):
    generator = random.Random(0)
    for _ in range(200):
        text = random_text(generator)
        ids = lossless.encode(text)
        assert lossless.decode(ids) == text
        assert lossless.decode_bytes(ids) == text.encode()
        assert lossless.unknown_id not in ids


def test_a_text_is_fewer_ids_of_the_smallest_dtype(lossless):
    ids = lossless.encode(TEXT)
    assert ids.dtype == np.uint16 and len(ids) < len(TEXT) * 2 / 3
    assert build("like XLNet").encode(TEXT).dtype == np.uint8


def test_the_first_pieces_are_unknown_newline_and_bytes(lossless):
    assert lossless.vocabulary_size == 295
    assert lossless.unknown_id == 0
    assert lossless.encode("\n\n").tolist() == [1, 1]
    expected = [2 + byte for byte in "▁é😀\0".encode()]
    assert lossless.encode("▁é😀\0").tolist() == expected
    assert lossless.decode_bytes(np.arange(2, 258)) == bytes(range(256))


def test_text_can_be_cut_after_newlines(tokenizer):
    text = TEXT + "".join(random_text(random.Random(i)) for i in range(9))
    lines = [line + "\n" for line in text.split("\n")[:-1]]
    text = "".join(lines)
    ids = [tokenizer.encode(line) for line in lines]
    np.testing.assert_array_equal(np.concatenate(ids), tokenizer.encode(text))


def test_text_can_be_cut_before_a_single_space(lossless):
    ids = [
        *lossless.encode("The cat sat"),
        *lossless.encode(" on\nthe mat.", begins_line=False),
    ]
    assert ids == lossless.encode("The cat sat on\nthe mat.").tolist()


def test_a_published_model_has_a_piece_for_newlines():
    like_xlnet = build("like XLNet")
    text = "The cat sat\n\n on the ﬁ mat.\nthe"
    ids = like_xlnet.encode(text)
    assert (ids == 3).sum() == 3
    assert like_xlnet.unknown_id in ids  # There is no f.
    assert like_xlnet.decode(ids) == "The cat sat\n\non the <unk>i mat.\nthe"
    processor = sentencepiece.SentencePieceProcessor(
        model_proto=like_xlnet.model
    )
    expected = [processor.encode(line) for line in text.split("\n")]
    assert ids.tolist() == [
        *expected[0], 3, 3, *expected[2], 3, *expected[3]
    ]  # fmt: skip


def test_without_a_piece_newlines_are_up_to_the_model():
    tokenizer = SentencePieceTokenizer(build("like XLNet").model)
    like_llama = build("like Llama")
    assert tokenizer.decode(tokenizer.encode("the\ncat\n")) == "the cat"
    text = "\n the\n\n  ▁ cat\n"
    expected = text.replace("▁", " ")
    assert like_llama.decode(like_llama.encode(text)) == expected


@pytest.mark.parametrize(
    "first,second",
    [("the c", "at sat\non it"), ("the", " cat\nsat"), ("the", "\ncat")],
)
def test_a_line_that_goes_on_gets_no_space(foreign, first, second):
    ids = [*foreign.encode(first), *foreign.encode(second, False)]
    assert foreign.decode(ids) == first + second
    ids = [*foreign.encode(first), *foreign.encode(second)]
    assert foreign.decode(ids) != first + second or second[0] in " \n"


def test_models_are_read_from_files(lossless, tmp_path):
    path = tmp_path / "spiece.model"
    path.write_bytes(lossless.model)
    tokenizer = SentencePieceTokenizer.from_file(path, line_end="\n")
    np.testing.assert_array_equal(tokenizer.encode(TEXT), lossless.encode(TEXT))


@pytest.mark.parametrize("content", [b"", b"[PAD]\n[UNK]\n", None])
def test_a_file_that_is_no_model_is_named(content, tmp_path):
    path = tmp_path / "spiece.model"
    with pytest.raises(FileNotFoundError, match=f"There is no file {path}"):
        SentencePieceTokenizer.from_file(path)
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    message = "`model` is not a SentencePiece model.* Take a published one"
    message = f"{path}: {message}|{path} must be a file.*a folder"
    with pytest.raises((ValueError, OSError), match=message):
        SentencePieceTokenizer.from_file(path)


def test_a_file_with_too_many_pieces_is_refused(monkeypatch):
    model = train_foreign()
    monkeypatch.setattr(sentence_piece_tokenizer, "_MAX_PIECES", 79)
    with pytest.raises(ValueError, match="must have 1 to 79 pieces"):
        SentencePieceTokenizer(model)


def test_blocks_of_text_are_one_text(lossless):
    lines = TEXT.splitlines(keepends=True)
    assert SentencePieceTokenizer.train(lines, 295).model == lossless.model


def test_a_sample_of_a_long_text_is_the_same_again(lossless, monkeypatch):
    monkeypatch.setattr(building, "SAMPLE_BYTES", 2000)
    lines = [f"{line}{i % 7}\n" for i in range(9) for line in TEXT.split("\n")]
    splits = {"train": "".join(lines).encode(), "valid": b"a", "test": b"a"}
    corpus = Corpus("c", splits)
    models = [
        build_tokenizer("sentencepiece", corpus, vocabulary_size=295).model
        for _ in range(2)
    ]
    everything = SentencePieceTokenizer.train(lines, 295).model
    assert models[0] == models[1] != everything


def test_threads_encode_at_once_whatever_keras_resets(lossless):
    expected = lossless.encode(TEXT).tolist()
    for _ in range(20):
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


def test_spaces_at_the_start_of_a_line_are_one_token():
    lines = ["a cat\n", "    if a b\n", "        b if cat\n"]
    text = "".join(random.Random(0).choices(lines, k=200))
    tokenizer = SentencePieceTokenizer.train([text], 278)
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode(text)]
    assert "".join(pieces) == text
    spaces = [len(piece) - len(piece.lstrip(" ")) for piece in pieces]
    assert max(spaces) >= 7


@pytest.mark.parametrize(
    "size,bound",
    [(0, "an integer of at least 1."), (10, "at least 2"), (999, "at most ")],
)
def test_impossible_sizes_are_errors(size, bound):
    message = f"`vocabulary_size` must be {bound}.*vocabulary_size={size}$"
    with pytest.raises(ValueError, match=message):
        SentencePieceTokenizer.train([TEXT], size)


def test_wrong_arguments_are_errors(lossless):
    for texts in ([], [""], ["\n\0\n"]):
        with pytest.raises(ValueError, match="`texts` must contain text"):
            SentencePieceTokenizer.train(texts, 300)
    message = r"`model` must be the bytes.*from_file\(path\)`.*str"
    with pytest.raises(ValueError, match=message):
        SentencePieceTokenizer("spiece.model")
    for model in (b"", b"no model", lossless.model[:-1], b"\n\0"):
        with pytest.raises(ValueError, match="`model` is not a SentencePiece"):
            SentencePieceTokenizer(model)
    with pytest.raises(ValueError, match="`line_end` must be.*'<eos>'"):
        SentencePieceTokenizer(lossless.model, line_end="<eos>")
    options = {"vocabulary_size": 300, "line_end": "<eos>"}
    with pytest.raises(ValueError, match="`line_end` must be left out.*'<eos"):
        build_tokenizer("sentencepiece", Corpus("c", {"all": b"a"}), **options)


def message_of(number, data):
    """A field of a serialized message, of up to 2**14 bytes."""
    size = len(data)
    length = [size & 127 | 128, size >> 7] if size > 127 else [size]
    return bytes([number << 3 | 2, *length]) + data


def charsmap(units, strings=b"a\0"):
    return struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + strings


@pytest.mark.parametrize("number", [3, 5])
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
def test_a_map_that_leads_out_of_itself_is_refused(number, characters):
    # Native code would follow it out of its memory.
    model = train_foreign() + message_of(number, message_of(2, characters))
    with pytest.raises(ValueError, match="its character map is damaged"):
        SentencePieceTokenizer(model)


def test_a_piece_without_text_is_no_model():
    piece_of_another_kind = message_of(1, b"\x08\x05")
    with pytest.raises(ValueError, match="not a SentencePiece model"):
        SentencePieceTokenizer(train_foreign() + piece_of_another_kind)


def test_fields_of_another_kind_are_ignored_as_native_code_does():
    map_of_another_kind = message_of(3, b"\x10\x05")
    model = train_foreign()
    changed = SentencePieceTokenizer(model + map_of_another_kind)
    np.testing.assert_array_equal(
        changed.encode("a cat"), SentencePieceTokenizer(model).encode("a cat")
    )


def test_missing_packages_are_named():
    with pytest.raises(ImportError, match="no_package.*pip install no_package"):
        import_extra("no_package.module")
