"""Checks what `txl train` shows after a score: samples, and a page of text."""

import signal
import types

import numpy as np
import pytest
import tensorflow as tf
from factories import assert_same
from factories import byte_model
from factories import save_run

from txl_keras import extending
from txl_keras.data import ByteTokenizer
from txl_keras.scripts import samples as samples_module
from txl_keras.scripts.samples import Samples
from txl_keras.scripts.samples import legible_passage
from txl_keras.training.stopping import StopRequest

TEXT = "to be or not to be"


class Shown:
    """Takes the place of terminal and TensorBoard."""

    def __init__(self):
        self.samples, self.texts, self.numbers = {}, {}, {}

    def sample(self, step, text):
        self.samples[step] = text

    def write_text(self, name, text, step):
        self.texts[name, step] = text

    def write(self, metrics):
        self.numbers[metrics["step"]] = metrics["surprise"]


class Page:
    """Takes the place of the surprise page, which is an extension."""

    def __init__(self, model, tokenizer, segment_length):
        self.length = segment_length

    def read(self, ids):
        tokens = [{"bits": float(i), "cold": -float(i)} for i in ids]
        return {"tokens": tokens}

    def page(self, title, data):
        return f"{title}, {self.length}, {len(data['tokens'])}"


@pytest.fixture(scope="module")
def model():
    return byte_model()


@pytest.fixture
def shown():
    return Shown()


@pytest.fixture
def now(monkeypatch):
    """A clock that stands still unless a test moves it."""
    now = [0.0]
    clock = types.SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(samples_module, "time", clock)
    return now


@pytest.fixture
def make(model, tmp_path, now, monkeypatch):
    """Function that makes what shows samples of a run in `tmp_path`."""
    pages = {**extending.registered("page"), "surprise": Page}
    monkeypatch.setitem(extending._found, "page", pages)
    tokenizer = ByteTokenizer()
    flags = {"segment_length": 7}
    workdir = save_run(tmp_path / "run", model, 0, tokenizer, flags=flags)

    def make(num_replicas=1, max_tokens=9, stop=None):
        strategy = types.SimpleNamespace(num_replicas_in_sync=num_replicas)
        samples = Samples(
            tokenizer,
            prompt=tokenizer.encode("to be"),
            text=tokenizer.encode(TEXT),
            title="<mine>",
            segment_length=7,
            max_tokens=max_tokens,
            seed=5,
        )

        def show(step, shown):
            loop = types.SimpleNamespace(
                trainer=types.SimpleNamespace(model=model, strategy=strategy),
                workdir=workdir,
                stop=stop or StopRequest(),
                max_steps=90,
                progress=shown,
                tensorboard=shown,
            )
            samples.show(loop, step)

        return show

    return make


def test_a_sample_continues_words_where_a_text_begins_with_numbers():
    tokenizer = ByteTokenizer()
    numbers, words = b"0x41, " * 90, b"It was said that a reader can judge it"
    tokens = tokenizer.encode(numbers + words + numbers)
    passage = legible_passage(tokens, tokenizer, 20)
    assert tokenizer.decode_bytes(passage) in words
    lines = tokenizer.encode(b"It was said that\na line ends\nit")
    passage = legible_passage(lines, tokenizer, len(lines))
    assert tokenizer.decode(passage) == "It was said that\na line ends\n"
    # A text that is too short is taken whole.
    assert legible_passage(tokens[:3], tokenizer, 20).tolist() == [*b"0x4"]


def test_samples_depend_on_seed_step_and_weights(make, model, shown):
    samples = make()
    before = model.get_weights()
    for step in (30, 60):
        samples(step, shown)
    assert shown.samples[30] != shown.samples[60]
    assert shown.texts["sample", 30] == shown.samples[30]
    assert_same(before, model.get_weights())

    # Of one replica the weights themselves are read, of several a copy.
    mirrored, other = make(num_replicas=2), Shown()
    for writer in (samples, mirrored):
        writer(60, other)
        assert other.samples[60] == shown.samples[60]
    model.softmax.biases[0].assign_add(tf.one_hot(ord("x"), 256) * 99.0)
    for writer in (samples, mirrored):
        writer(60, other)
        assert other.samples[60] == "x" * 9
    model.set_weights(before)


def test_a_page_is_written_and_tensorboard_gets_its_numbers(
    make, shown, tmp_path
):
    make()(30, shown)
    page = (tmp_path / "run" / "surprise.html").read_text("utf-8")
    assert page == f"<mine>, step 30, 7, {len(TEXT)}"
    mean = np.mean([*TEXT[1:].encode()])
    expected = {"with_memory": mean, "without_memory": -mean}
    assert shown.numbers[30] == expected


def test_samples_take_a_small_share_of_the_time(make, shown, now):
    shown.sample = lambda step, text: now.__setitem__(0, now[0] + 4.0)
    samples = make()
    for step, time in ((10, 10.0), (20, 190.0), (30, 210.0), (40, 390.0)):
        now[0] = time
        samples(step, shown)
    # 4 of 190 s are more than 2 %, 4 of 210 s are less, 8 of 390 s are more.
    assert list(shown.numbers) == [10, 30]


def test_nothing_is_shown_if_not_wanted_or_stopped(make, shown, tmp_path):
    make(max_tokens=0)(30, shown)
    stop = StopRequest()
    stop.signal = signal.SIGTERM
    make(stop=stop)(30, shown)
    assert not shown.samples and not shown.texts
    assert not (tmp_path / "run" / "surprise.html").exists()


def test_samples_that_do_not_fit_into_memory_are_left_out(
    make, model, shown, monkeypatch, caplog
):
    def fail(*_, **__):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM of 7 bytes")

    samples = make()
    monkeypatch.setattr(type(model), "generate", fail)
    for step in (30, 60):
        samples(step, shown)
    assert caplog.text.count("--max_sample_tokens=0: OOM of 7 bytes") == 1
    assert not shown.samples
