from concurrent import futures

import numpy as np
import pytest
from factories import small_model
from model_checks import segment_nll

from txl_keras.data import CharacterTokenizer
from txl_keras.data import WordTokenizer

pytestmark = pytest.mark.every_backend

TOKENIZER = CharacterTokenizer("abcdefg\n ")
# One token, less than a segment, one and its target, several; two batches.
TEXTS = [
    "b", "abc", "cab bed ab", "a bag, faded"[:5], "d a\n" * 8,
    "ef" * 4 + "g",
]  # fmt: skip
SIZES = {"batch_size": 3, "segment_length": 8, "memory_length": 40}


@pytest.fixture(scope="module")
def model():
    model = small_model(
        vocabulary_size=9, num_layers=1, memory_length=4, dropout=0.5
    )
    model.tokenizer = TOKENIZER
    return model


def score_alone(model, text):
    """All of a text in one segment."""
    ids = TOKENIZER.encode(text)[None]
    return np.array(model.score(ids[:, :-1], ids[:, 1:])[0][0])


def test_every_text_is_scored_as_if_it_were_alone(model):
    scores = model.score_texts(TEXTS, **SIZES)
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
    again = model.score_texts(TEXTS[4:5], **SIZES)
    np.testing.assert_allclose(again[0][1], scores[4][1], atol=1e-6)


def test_threads_do_not_share_memory(model):
    texts = ["ab" * 30, "fed" * 20, "g\n " * 20]

    def score(text):
        return [model.score_texts([text], **SIZES)[0][1] for _ in range(4)]

    expected = [*map(score, texts)]
    with futures.ThreadPoolExecutor() as pool:
        found = [*pool.map(score, texts)]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_with_a_context_all_tokens_are_scored_after_it(model):
    contexts = ["a", "", "fed a bad cab ", "g" * 20, "b", "c"]
    scores = model.score_texts(TEXTS, contexts, **SIZES)
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


def test_embeddings_are_the_hidden_states_of_each_text(model):
    states = model.embed_texts(TEXTS, **SIZES)
    for text, hidden in zip(TEXTS, states, strict=True):
        expected, _ = model.backbone(TOKENIZER.encode(text)[None])
        assert hidden.dtype == np.float32
        np.testing.assert_allclose(hidden, expected[0], atol=1e-5)
    for pooling, vectors in (
        ("mean", [state.mean(axis=0) for state in states]),
        ("last", [state[-1] for state in states]),
    ):
        found = model.embed_texts(TEXTS, pooling, **SIZES)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, vectors, atol=1e-5)
    assert model.embed_texts([], "mean").shape == (0, 8)
    with pytest.raises(ValueError, match="`pooling`.*pooling='max'"):
        model.embed_texts(["a"], pooling="max")


def test_the_models_own_memory_is_the_default(model):
    text, sizes = "d a\n" * 3, {"batch_size": 2, "segment_length": 5}
    [(_, nll)] = model.score_texts([text], **sizes)
    ids = TOKENIZER.encode(text)[None]
    (expected,) = segment_nll(model, ids, [5, 5, 1])
    np.testing.assert_allclose(nll[1:], expected, atol=1e-5)
    assert np.abs(nll[1:] - score_alone(model, text)).max() > 1e-4
    [hidden] = model.embed_texts(["abc"], **sizes)
    expected, _ = model.backbone(TOKENIZER.encode("abc")[None])
    np.testing.assert_allclose(hidden, expected[0], atol=1e-5)


def test_marks_of_lines_come_where_lines_begin():
    words = WordTokenizer(["<s>", "a", "b"], unknown=None, line_start="<s>",
                          line_end=None)  # fmt: skip
    model = small_model(vocabulary_size=3, num_layers=1)
    model.tokenizer = words
    sizes = {"batch_size": 3, "segment_length": 4}
    scores = model.score_texts(["a b"] * 3, ["", "b", "b\n"], **sizes)
    assert [ids.tolist() for ids, _ in scores] == [
        [0, 1, 2], [1, 2], [0, 1, 2]
    ]  # fmt: skip
    assert [int(np.isnan(nll).sum()) for _, nll in scores] == [1, 0, 0]


def test_what_cannot_be_scored_is_refused(model):
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
    for arguments, message in (
        ({"contexts": ["b", "c"]}, "2 contexts, 1 texts"),
        ({"contexts": "b"}, "`contexts` must be a list"),
        ({"segment_length": 0}, "segment_length=0"),
    ):
        with pytest.raises(ValueError, match=message):
            model.score_texts(["a"], **arguments)
    absolute = small_model(
        vocabulary_size=9, memory_length=0, attention_type="vaswani"
    )
    absolute.tokenizer = TOKENIZER
    with pytest.raises(ValueError, match="attention_type='vaswani'"):
        absolute.score_texts(["a"])
