"""The last subword of a prompt is drawn again."""

import numpy as np
import pytest
from factories import assert_same
from factories import seed_weights
from factories import small_model

from txl_keras.data import Tokenizer
from txl_keras.samplers import BeamSampler
from txl_keras.samplers import Sampler

pytestmark = pytest.mark.every_backend
M = 30


class Pieces(Tokenizer):
    """Reads the longest piece that fits."""

    unit = "subword"
    is_lossless = True
    _texts = [
        text.encode()
        for text in ("a", "b", "c", " ", " a", " ab", " abc", "ab", "é", "\n")
    ]
    vocabulary_size = len(_texts)

    def encode(self, text, begins_line=True):
        data, ids = text if isinstance(text, bytes) else text.encode(), []
        while data:
            ids.append(max(self._fitting(data), key=lambda i: len(self[i])))
            data = data.removeprefix(self[ids[-1]])
        return np.array(ids, np.int32)

    def __getitem__(self, index):
        return self._texts[index]

    def _fitting(self, data):
        ids = range(self.vocabulary_size)
        return [i for i in ids if data.startswith(self[i])]


@pytest.fixture(scope="module")
def model():
    seed_weights(8)
    model = small_model(
        vocabulary_size=Pieces.vocabulary_size,
        num_layers=1,
        initializer_stddev=1.0,
        tie_embeddings=False,
        memory_length=M,
    )
    model.tokenizer = Pieces()
    return model


def ids_of(text):
    """Returns the ids that are read for a prompt, which begin a line."""
    return Pieces().encode("\n" + text)


def likeliest(model, text, among):
    """Returns the most likely of some tokens after a text."""
    log_probs, _ = model.log_probs(ids_of(text)[None])
    return max(among, key=lambda i: float(log_probs[0, -1, i]))


@pytest.mark.parametrize(
    ("text", "last", "pieces"),
    [
        ("cab ", " ", [" ", " a", " ab", " abc"]),
        ("éa", "a", ["a", "ab"]),
        ("cc\n", "\n", ["\n"]),
    ],
)
def test_the_last_piece_is_the_likeliest_that_begins_with_it(
    model, text, last, pieces
):
    tokenizer = model.tokenizer
    among = [tokenizer._texts.index(piece.encode()) for piece in pieces]
    assert tokenizer.ids_that_begin_with(last.encode()) == sorted(among)
    kept = text.removesuffix(last)
    first = likeliest(model, kept, among)
    options = {"max_new_tokens": 6, "sampler": "greedy"}
    ids = model.generate(np.append(ids_of(kept), first), **options)
    expected = tokenizer.decode(ids)[1:]
    assert expected.startswith(text)
    assert model.generate(text, **options) == expected
    options["sampler"] = BeamSampler(num_beams=1)
    assert model.generate(text, **options) == expected
    found, log_probs, memory = model.generate(
        text,
        sampler="greedy",
        max_new_tokens=6,
        return_log_probs=True,
        return_memory=True,
    )
    assert found == expected
    scores, _ = model.log_probs(ids_of(kept)[None])
    assert log_probs[0] == pytest.approx(float(scores[0, -1, first]), abs=1e-4)
    _, read = model.log_probs(ids[None])
    assert_same(memory.states, read.states, atol=1e-5)


def test_a_batch_and_its_stream_are_as_alone(model):
    prompts = ["cab ", "a", "b a", "ab ab\nc a"]
    options = {"max_new_tokens": 7, "sampler": Sampler(repetition_penalty=2)}

    def is_healed(prompt, text):
        ids = model.tokenizer.encode(prompt)
        return model.tokenizer.encode(text)[len(ids) - 1] != ids[-1]

    for seed in range(20):  # weights and draws differ by backend
        texts = model.generate(prompts, seed=seed, **options)
        if any(map(is_healed, prompts, texts)):
            break
    else:
        pytest.fail("no prompt was healed")
    parts = [*model.generate(prompts, seed=seed, stream=True, **options)]
    for i, prompt in enumerate(prompts):
        assert texts[i] == model.generate(prompt, seed=seed + i, **options)
        assert texts[i] == prompt + "".join(part[i] for part in parts)


def test_a_prompt_begins_a_line_unless_it_continues_a_text(model):
    options = {"max_new_tokens": 6, "sampler": "greedy"}
    text = model.generate("cab ", **options)
    assert model.generate("\ncab ", **options) == "\n" + text
    _, memory = model.generate("\n", max_new_tokens=0, return_memory=True)
    assert model.generate("cab ", memory=memory, **options) == text


def test_what_is_not_written_is_still_read(model):
    one = model.generate("cab ", max_new_tokens=1)
    assert len(model.tokenizer.encode(one)) > len(ids_of("cab ")) - 1
    for options in (
        {"max_new_tokens": 0},
        {"stop_token_ids": range(Pieces.vocabulary_size)},
    ):
        text, memory = model.generate("cab ", return_memory=True, **options)
        assert text == "cab "
        _, read = model.log_probs(ids_of("cab ")[None])
        assert_same(memory.states, read.states, atol=1e-5)


def test_the_last_piece_of_the_prompt_is_no_stop(model):
    options = {"max_new_tokens": 5, "sampler": "greedy"}
    whole = model.generate("b\n", **options)
    (newline,) = model.tokenizer.encode("\n")
    text = model.generate("b\n", stop_token_ids=[newline], **options)
    assert text == whole[: (whole + "\n").index("\n", 2)]
    assert len(text) > 2


def test_a_stop_inside_of_the_piece_ends_the_text(model):
    options = {"max_new_tokens": 5, "sampler": "greedy", "return_memory": True}
    whole, _ = model.generate("b a", **options)
    stop = whole[3:4]
    text, memory = model.generate("b a", stop=stop, **options)
    assert text == "b a"
    _, read = model.log_probs(ids_of("b a")[None])
    assert_same(memory.states, read.states, atol=1e-5)


@pytest.mark.parametrize(
    "change", [{"unit": "word"}, {"is_lossless": False}, None]
)
def test_words_lossy_texts_and_ids_are_read_as_they_are(
    model, change, monkeypatch
):
    for name, value in (change or {}).items():
        monkeypatch.setattr(Pieces, name, value)
    options = {"max_new_tokens": 6, "seed": 4}
    ids = model.generate(model.tokenizer.encode("cab "), **options)
    assert list(ids[:3]) == list(model.tokenizer.encode("cab "))
    if change:
        text = model.tokenizer.decode(ids)
        assert model.generate("cab ", **options) == text
