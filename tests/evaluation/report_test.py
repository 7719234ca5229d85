import math

import pytest

from txl_keras.data import ByteTokenizer
from txl_keras.data import CharacterTokenizer
from txl_keras.data import WordTokenizer
from txl_keras.evaluation.plots import plot_learning_curve
from txl_keras.evaluation.report import add_bits_per_byte
from txl_keras.evaluation.report import compressed_bits_per_byte
from txl_keras.evaluation.report import describe

WORDS = WordTokenizer(["<eos>", "<unk>", "a"])


def scores_of(bits, num_tokens):
    return {
        "nll": bits * math.log(2),
        "bits_per_token": bits,
        "num_tokens": num_tokens,
    }


def test_compressors_find_repetition():
    bits = compressed_bits_per_byte(b"0123456789" * 1000)
    assert list(bits) == ["gzip -9", "xz -9"]
    assert all(0 < value < 0.2 for value in bits.values())


def test_bits_of_all_tokens_are_those_of_all_bytes():
    tokenizer = CharacterTokenizer("a€")
    tokens = tokenizer.encode("a€" * 50)  # 200 bytes
    scores = add_bits_per_byte(scores_of(3.0, 99), tokenizer, tokens)
    assert scores["bits_per_byte"] == pytest.approx(3 * 99 / 200)
    assert scores["num_tokens"] == 99


def test_a_tokenizer_that_loses_text_has_no_bits_per_byte():
    scores = add_bits_per_byte(scores_of(3.0, 99), WORDS, [1, 1, 0])
    assert scores == scores_of(3.0, 99)


@pytest.mark.parametrize(
    "tokenizer, expected",
    [
        (ByteTokenizer(), "3.0000 bits per byte over 1,234 tokens (xz 2.500)"),
        (
            CharacterTokenizer("a"),
            "3.0000 bpc over 1,234 tokens, 2.0000 bits per byte (xz 2.500)",
        ),
    ],
)
def test_scores_are_said_in_the_units_of_the_field(tokenizer, expected):
    scores = scores_of(3.0, 1234)
    scores |= {"bits_per_byte": 2.0, "compressors": {"xz": 2.5}}
    assert describe(scores, tokenizer) == expected


def test_words_are_scored_in_perplexity():
    assert describe(scores_of(3.0, 99), WORDS) == "8.00 ppl over 99 tokens"


def test_a_learning_curve_is_a_png(tmp_path):
    metrics = [
        {"step": 1, "bits_per_token": 5.0},
        {
            "step": 2,
            "bits_per_token": 4.0,
            "valid": {"bits_per_token": 4.5},
        },
    ]
    path = tmp_path / "curve.png"
    scores = {"bits_per_token": 4.5, "bits_per_byte": 3.0}
    scores["compressors"] = {"gzip -9": 2.5}
    plot_learning_curve(metrics, str(path), "word", scores)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 5000


def test_where_not_all_was_scored_there_are_no_bits_per_byte():
    tokens = list(b"one two three")
    scores = scores_of(3.0, len(tokens) - 4)  # firsts of documents are not
    assert add_bits_per_byte(scores, ByteTokenizer(), tokens) == scores
