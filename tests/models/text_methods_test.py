import functools
import types

import numpy as np
import pytest
import tensorflow as tf
from factories import small_model
from model_checks import segment_nll

from txl_keras.data import CharacterTokenizer
from txl_keras.data import WordTokenizer

TOKENIZER = CharacterTokenizer("abcdefg\n ")
# One token, less than a segment, one and its target, several; two batches.
TEXTS = [
    "b", "abc", "cab bed ab", "a bag, faded"[:5], "d a\n" * 8,
    "ef" * 4 + "g",
]  # fmt: skip


@pytest.fixture(scope="module")
def model():
    tf.random.set_seed(3)
    return small_model(
        vocabulary_size=9, num_layers=1, memory_length=4, dropout=0.5
    )


@pytest.fixture(scope="module")
def scorer(model):
    return scorer_of(model, TOKENIZER, 3, 8, memory_length=40)


def scorer_of(model, tokenizer, batch_size=16, segment_length=128, **sizes):
    model.tokenizer = tokenizer
    sizes |= {"batch_size": batch_size, "segment_length": segment_length}
    return types.SimpleNamespace(
        score=functools.partial(model.score_texts, **sizes),
        embed=functools.partial(model.embed_texts, **sizes),
    )


def score_alone(model, text):
    """All of a text in one segment."""
    ids = TOKENIZER.encode(text)[None]
    return model.score(ids[:, :-1], ids[:, 1:])[0][0].numpy()


def test_every_text_is_scored_as_if_it_were_alone(model, scorer):
    scores = scorer.score(TEXTS)
    assert len(scores) == len(TEXTS)
    for text, (ids, nll) in zip(TEXTS, scores, strict=True):
        assert ids.dtype == np.int32
        assert nll.dtype == np.float32
        assert TOKENIZER.decode(ids) == text
        assert np.isnan(nll[0])
        if len(text) > 1:
            expected = score_alone(model, text)
            np.testing.assert_allclose(nll[1:], expected, atol=1e-5)
    # What was read before leaves nothing behind.
    again = scorer.score(TEXTS[4:5])
    np.testing.assert_allclose(again[0][1], scores[4][1], atol=1e-6)


def test_with_a_context_all_tokens_are_scored_after_it(model, scorer):
    contexts = ["a", "", "fed a bad cab ", "g" * 20, "b", "c"]
    scores = scorer.score(TEXTS, contexts)
    for text, context, (ids, nll) in zip(TEXTS, contexts, scores, strict=True):
        assert len(ids) == len(nll) == len(text)
        if not context:
            assert np.isnan(nll[0])
            np.testing.assert_allclose(
                nll[1:], score_alone(model, text), atol=1e-5
            )
            continue
        whole = score_alone(model, context + text)
        np.testing.assert_allclose(nll, whole[-len(text) :], atol=1e-5)
        # Log-probability of the text: of both, less that of the context.
        before = score_alone(model, context).sum() if len(context) > 1 else 0
        assert nll.sum() == pytest.approx(whole.sum() - before, abs=1e-4)


def test_embeddings_are_the_hidden_states_of_each_text(model, scorer):
    for text, hidden in zip(TEXTS, scorer.embed(TEXTS), strict=True):
        expected, _ = model.backbone(TOKENIZER.encode(text)[None])
        assert hidden.dtype == np.float32
        np.testing.assert_allclose(hidden, expected[0], atol=1e-5)


def test_a_scorer_takes_the_models_own_memory_by_default(model):
    text = "d a\n" * 3
    scorer = scorer_of(model, TOKENIZER, batch_size=2, segment_length=5)
    [(_, nll)] = scorer.score([text])
    ids = TOKENIZER.encode(text)[None]
    (expected,) = segment_nll(model, ids, [5, 5, 1])
    np.testing.assert_allclose(nll[1:], expected, atol=1e-5)
    assert np.abs(nll[1:] - score_alone(model, text)).max() > 1e-4
    [hidden] = scorer.embed(["abc"])
    expected, _ = model.backbone(TOKENIZER.encode("abc")[None])
    np.testing.assert_allclose(hidden, expected[0], atol=1e-5)


def test_methods_of_a_model_read_text_with_its_tokenizer(model, scorer):
    model.tokenizer = TOKENIZER
    sizes = {"segment_length": 8, "memory_length": 40}
    texts, contexts = TEXTS[:3], ["a", "", "fed"]
    for _ in range(2):  # made, then kept
        scores = model.score_texts(texts, contexts, **sizes)
        expected = scorer.score(texts, contexts)
        for (ids, nll), (same_ids, same_nll) in zip(
            scores, expected, strict=True
        ):
            np.testing.assert_array_equal(ids, same_ids)
            np.testing.assert_allclose(nll, same_nll, atol=1e-5)
    states = scorer.embed(texts)
    for pooling, vectors in (
        ("mean", [state.mean(axis=0) for state in states]),
        ("last", [state[-1] for state in states]),
    ):
        found = model.embed_texts(texts, pooling, **sizes)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, vectors, atol=1e-5)
    (found,) = model.embed_texts(texts[1:2], **sizes)
    np.testing.assert_allclose(found, states[1], atol=1e-5)
    assert model.embed_texts([], "mean").shape == (0, 8)
    with pytest.raises(ValueError, match="`pooling`.*pooling='max'"):
        model.embed_texts(["a"], pooling="max")


def test_marks_of_lines_come_where_lines_begin():
    words = WordTokenizer(["<s>", "a", "b"], unknown=None, line_start="<s>",
                          line_end=None)  # fmt: skip
    model = small_model(vocabulary_size=3, num_layers=1)
    scorer = scorer_of(model, words, batch_size=3, segment_length=4)
    scores = scorer.score(["a b", "a b", "a b"], ["", "b", "b\n"])
    assert [ids.tolist() for ids, _ in scores] == [
        [0, 1, 2], [1, 2], [0, 1, 2]
    ]  # fmt: skip
    assert [int(np.isnan(nll).sum()) for _, nll in scores] == [1, 0, 0]


def test_what_cannot_be_scored_is_refused(model, scorer):
    model.tokenizer = TOKENIZER
    for call in (model.score_texts, model.embed_texts):
        for texts, message in (
            (["a", ""], r"`texts`.*texts\[1\]=''"),
            ("abc", "`texts` must be a list.*'abc'"),
            ({"a": "b"}, "`texts` must be a list.*'a': 'b'"),
            (["ab", "ax"], "symbol 'x'.*position 1"),
            (None, "`texts` must be a list.*None"),
        ):
            with pytest.raises(ValueError, match=message):
                call(texts)
        assert call([]) == []
    absolute = small_model(
        vocabulary_size=9, memory_length=0, attention_type="vaswani"
    )
    for call, message in (
        (lambda: scorer.score(["a"], ["b", "c"]), "2 contexts, 1 texts"),
        (lambda: scorer.score(["a"], "b"), "`contexts` must be a list"),
        (
            lambda: model.score_texts(["a"], segment_length=0),
            "segment_length=0",
        ),
        (
            lambda: scorer_of(absolute, TOKENIZER).score(["a"]),
            "attention_type='vaswani'",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()
