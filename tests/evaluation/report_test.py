import importlib.util
import math

import numpy as np
import pytest

from txl_keras.data import ByteTokenizer
from txl_keras.data import CharacterTokenizer
from txl_keras.data import Segments
from txl_keras.data import WordTokenizer
from txl_keras.data.token_files import open_tokens
from txl_keras.evaluation.report import complete
from txl_keras.evaluation.report import describe
from txl_keras.evaluation.report import position_curve

WORDS = WordTokenizer(["<eos>", "<unk>", "a"])


def scores_of(bits, num_tokens):
    return {
        "nll": bits * math.log(2),
        "bits_per_token": bits,
        "num_tokens": num_tokens,
    }


def test_bits_of_all_tokens_are_those_of_the_bytes_that_were_scored(tmp_path):
    tokenizer = CharacterTokenizer("a€")
    tokens = tokenizer.encode("a€" * 50)  # 200 bytes
    for name, part in (("a", tokens[:70]), ("b", tokens[70:])):
        part.astype(np.uint8).tofile(tmp_path / name)
    paths = [str(tmp_path / name) for name in "ab"]
    files = open_tokens(paths, [70, 30], np.uint8)
    for ids, first in ((tokens, 1), (tokens[::-1], 3), (files, 1)):
        scores = complete(scores_of(3.0, 99), tokenizer, ids, ids)
        assert scores["bits_per_byte"] == pytest.approx(3 * 99 / (200 - first))
        assert scores["num_tokens"] == 99
        # They find the repetition.
        limits = {"gzip -9": 2, "xz -9": 4}
        if importlib.util.find_spec("pyppmd"):
            limits["PPMd order 8"] = 2
        compressors = scores["compressors"]
        assert compressors.keys() == limits.keys()
        assert all(0 < compressors[k] < limits[k] for k in limits)


def test_of_bytes_the_number_printed_is_the_number_written():
    text, tokenizer = list(b"one"), ByteTokenizer()
    scores = complete(scores_of(3.0, 2), tokenizer, text, [*text, 7])
    assert scores["bits_per_byte"] == pytest.approx(scores["bits_per_token"])
    assert describe(scores, tokenizer).startswith(
        "3.000 bits per byte over the first 2 of 3 tokens (gzip"
    )
    scores = scores_of(3.0, 1)  # firsts of documents are not scored
    assert complete(scores, tokenizer, text, text) == scores


def test_a_tokenizer_that_loses_text_has_no_bits_per_byte():
    scores = scores_of(3.0, 2)
    assert complete(scores, WORDS, [1, 1, 0], [1, 1, 0]) == scores
    assert describe({"nll": 2.0}, WORDS) == "7.39 ppl"


@pytest.mark.parametrize(
    "tokenizer, expected",
    [
        (ByteTokenizer(), "3.000 bits per byte over 1,234 tokens (xz 2.500)"),
        (
            CharacterTokenizer("a"),
            "3.000 bpc over 1,234 tokens, 2.000 bits per byte (xz 2.500)",
        ),
        (
            WORDS,
            "8.00 ppl over 1,234 tokens, 2.000 bits per byte (xz 2.500)",
        ),
    ],
)
def test_scores_are_said_in_the_units_of_the_field(tokenizer, expected):
    scores = scores_of(3.0, 1234)
    scores |= {"bits_per_byte": 2.0, "compressors": {"xz": 2.5}}
    assert describe(scores, tokenizer) == expected


# === Positions in documents ===


def test_a_position_curve_has_the_means_of_its_buckets():
    generator = np.random.default_rng(2)
    nll = generator.random(150).astype(np.float32)
    nll[[0, 60]] = np.nan
    documents = np.array([0, 1, 20, 60, 61, 77])
    ends = [*documents[1:], 150]
    positions = np.concatenate(
        [
            np.arange(end - start)
            for start, end in zip(documents, ends, strict=True)
        ]
    )
    curve = position_curve(nll, documents)
    bounds = [0, 1, 2, 4, 8, 16, 32, 64, 128]
    assert [b["start"] for b in curve] == bounds[:-1]  # the longest has 73
    assert [b["stop"] for b in curve] == bounds[1:]
    for bucket in curve:
        is_in = (bucket["start"] <= positions) & (positions < bucket["stop"])
        scored = nll[is_in & ~np.isnan(nll)].astype(float)
        assert bucket["num_tokens"] == len(scored) > 0
        assert bucket["nll"] == pytest.approx(scored.mean(), abs=1e-12)
        assert bucket["bits_per_token"] == pytest.approx(
            scored.mean() / math.log(2)
        )
    whole = sum(b["nll"] * b["num_tokens"] for b in curve)
    assert whole == pytest.approx(np.nansum(nll, dtype=float))


def test_buckets_without_a_score_are_left_out():
    nll = np.array([np.nan, 1.0, np.nan, np.nan, 3.0])
    curve = position_curve(nll)  # one document
    assert [(b["start"], b["num_tokens"], b["nll"]) for b in curve] == [
        (1, 1, 1.0), (4, 1, 3.0)
    ]  # fmt: skip
    assert position_curve(np.array([np.nan])) == []
    assert position_curve(np.array([2.0]))[0]["stop"] == 1


def test_positions_of_no_text_are_refused():
    with pytest.raises(ValueError, match=r"`nll`.*\(3, 2\)"):
        position_curve(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="`documents` must be"):
        position_curve(np.zeros(5), [0, 5])


@pytest.mark.parametrize("batch_size, warmup", [(1, 0), (3, 2)])
def test_losses_by_position_are_means_over_the_segments(batch_size, warmup):
    nll = np.random.default_rng(3).uniform(1, 9, 23).astype("float32")
    nll[0] = np.nan
    segments = Segments(
        np.arange(23), batch_size, 4, drop_remainder=False,
        warmup_segments=warmup,
    )  # fmt: skip
    # Segments begin at the multiples of 4; the last one has 2 targets.
    expected = [
        [nll[t] for t in range(1, 23) if (t - 1) % 4 in places]
        for places in ([0], [1, 2], [3])
    ]
    curve = position_curve(nll, segments=segments)
    assert [(b["start"], b["stop"]) for b in curve] == [(1, 2), (2, 4), (4, 8)]
    for bucket, losses in zip(curve, expected, strict=True):
        assert bucket["num_tokens"] == len(losses)
        assert bucket["nll"] == pytest.approx(np.mean(losses), rel=1e-5)
        error = np.std(losses) / len(losses) ** 0.5
        assert bucket["standard_error"] == pytest.approx(error, rel=1e-5)


def test_a_curve_may_have_finer_buckets():
    curve = position_curve(np.arange(20.0), bins_per_doubling=2)
    starts = [0, 1, 2, 3, 4, 6, 8, 12, 16]
    assert [bucket["start"] for bucket in curve] == starts
