"""Asks a model what a visitor of the demo can ask for, without a browser."""

import json
import re

import pytest
from factories import byte_model

from txl_keras.data import ByteTokenizer
from txl_keras.extensions.compressive import CompressiveBackbone
from txl_keras.models import LSTMBackbone
from txl_keras.pages.playground import Playground
from txl_keras.samplers import Sampler

T = 7  # of `playground`
QUESTION = {
    "prompt": "<script>é",
    "max_tokens": 23,
    "temperature": 1.0,
    "top_k": None,
    "top_p": None,
    "repetition_penalty": None,
    "seed": 5,
    "other_memory_length": None,
}


def texts_of(events):
    """Returns the texts of an answer to `write`, which must be complete."""
    *events, end = events
    assert end == {"done": True}
    parts = [event["texts"] for event in events]
    return ["".join(texts) for texts in zip(*parts, strict=True)]


def error_of(events):
    *_, end = events
    return end["error"]


def written(model, **settings):
    return model.generate(
        QUESTION["prompt"], max_new_tokens=23, strip_prompt=True, **settings
    )


def test_a_text_is_that_of_the_model_with_the_same_settings(model, playground):
    settings = {
        "temperature": 0.7, "top_k": 50, "top_p": 0.9,
        "repetition_penalty": 1.5,
    }  # fmt: skip
    shorter = {"other_memory_length": 4}
    texts = [
        texts_of(playground.write({**QUESTION, **changed}))
        for changed in ({}, settings, {"temperature": 0}, {}, shorter)
    ]
    assert texts[3] == texts[0]
    assert texts[1] == [written(model, seed=5, sampler=Sampler(**settings))]
    assert texts[2] not in texts[:2]
    # With a shorter memory a second text is written beside the first.
    beside = written(model, seed=5, memory_length=4)
    assert texts[4] == [*texts[0], beside] and beside not in texts[0]


def test_surprise_is_that_of_the_page(reader, playground):
    text = "to <b>be</b> or not to be"
    *events, page, end = playground.surprise({"text": text})
    assert end == {"done": True}
    assert events[-1] == {"read": len(text), "of": len(text)}
    assert [event["read"] for event in events[:2]] == [T + 1, 2 * T + 1]
    content = re.search('id="data">(.*?)</script>', page["page"], re.DOTALL)[1]
    expected = json.loads(json.dumps(reader.read(reader.encode(text))))
    assert json.loads(content) == {**expected, "mode": "both"}


def test_a_wrong_text_is_a_message(playground):
    for wrong in ("", "a", "a" * 5001):
        message = error_of(playground.surprise({"text": wrong}))
        assert "`text` must have at least 2 and at most 5,000" in message
    assert "`text` must be a string" in error_of(playground.surprise({}))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"prompt": ""}, "`prompts` must have at least one token"),
        ({"prompt": 3}, "`prompt` must be a string"),
        ({"prompt": "a" * 5001}, "at most 5,000 tokens"),
        ({"max_tokens": 2001}, "`max_tokens` must be"),
        ({"temperature": float("nan")}, "`temperature` must be a number"),
        ({"top_k": 0}, "`top_k` must be"),
        ({"other_memory_length": 10**6}, "`other_memory_length` must be"),
    ],
)
def test_a_wrong_setting_is_a_message(playground, wrong, message):
    assert message in error_of(playground.write({**QUESTION, **wrong}))


def test_one_visitor_at_a_time_is_answered(playground):
    first = playground.write({**QUESTION, "max_tokens": 2000})
    assert "texts" in next(first)
    second = playground.write(QUESTION)
    assert next(second) == {"waiting": True}
    first.close()  # the first visitor leaves
    assert texts_of(second) == texts_of(playground.write(QUESTION))


def test_the_demo_survives_a_failure(model, playground, monkeypatch):
    def fail(*_):
        raise KeyError("an error of the program")

    with monkeypatch.context() as patch:
        patch.setattr(ByteTokenizer, "encode", fail)
        message = error_of(playground.write(QUESTION))
    assert message == "The server failed; its terminal shows the error."
    assert texts_of(playground.write(QUESTION))
    softmax = model.softmax.weights[0]
    value = softmax.numpy()
    softmax.assign(value * float("nan"))
    assert "finite" in error_of(playground.write(QUESTION))
    assert "finite" in error_of(playground.surprise({"text": "to be"}))
    softmax.assign(value)
    assert texts_of(playground.write(QUESTION))


def test_models_without_attention_or_memory_have_a_demo():
    playground = Playground(byte_model(make=LSTMBackbone))
    assert playground.describe()["other_memory_lengths"] == []
    assert len(texts_of(playground.write(QUESTION))) == 1
    *_, page, _ = playground.surprise({"text": "to be"})
    assert "<html" in page["page"]
    playground = Playground(byte_model(memory_length=0), memory_length=17)
    assert playground.describe()["other_memory_lengths"] == [0, 4, 16]
    compressive = byte_model(make=CompressiveBackbone)
    playground = Playground(compressive, memory_length=17)
    assert playground.describe()["other_memory_lengths"] == [4, 16]
