"""`TransformerXLCausalLM.generate`."""

import itertools
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from factories import V
from factories import assert_same
from factories import seed_weights
from factories import small_model

from txl_keras.data import CharacterTokenizer
from txl_keras.data import IdTokenizer
from txl_keras.models import LSTMBackbone
from txl_keras.models import TransformerXLBackbone
from txl_keras.samplers import BeamSampler
from txl_keras.samplers import Sampler

TOKENIZER = CharacterTokenizer("abcdef\n é")
BACKBONES = {
    "relative": {"memory_length": 20},
    "lstm": {"make": LSTMBackbone},
    "vaswani": {"memory_length": 0, "attention_type": "vaswani"},
}


def varied_model(vocabulary_size=9, **config):
    """Model whose likely texts do not repeat one token."""
    return small_model(
        vocabulary_size=vocabulary_size,
        num_layers=1,
        initializer_stddev=1.0,
        tie_embeddings=False,
        **config,
    )


@pytest.fixture(scope="module")
def model():
    seed_weights(5)
    model = varied_model()
    model.tokenizer = TOKENIZER
    return model


def test_each_row_of_a_batch_is_continued_as_if_alone(model):
    prompts = ["fed", "a", "bad é\n"]
    texts = model.generate(prompts, max_length=11, seed=7)
    assert [len(text) for text in texts] == [11, 11, 11]
    rows = model.generate(
        [TOKENIZER.encode(prompt) for prompt in prompts],
        max_length=11,
        seed=7,
        strip_prompt=True,
    )
    assert {row.dtype for row in rows} == {np.dtype("int32")}
    # Three rows, too: another number is compiled again.
    pairs = model.generate(np.array([[1, 2], [3, 4], [5, 6]]), max_length=5)
    assert [pair.shape for pair in pairs] == [(5,), (5,), (5,)]
    for i, prompt in enumerate(prompts):
        assert texts[i].startswith(prompt)
        assert texts[i] == model.generate(prompt, max_length=11, seed=7 + i)
        assert prompt + TOKENIZER.decode(rows[i]) == texts[i]


def test_a_row_ends_before_its_first_stop(model):
    options = {"max_new_tokens": 40, "seed": 2, "strip_prompt": True}
    whole = model.generate(["a", "fed"], **options)
    stops = [whole[0][4:6], whole[1][9:11]]
    for row, text in enumerate(
        model.generate(["a", "fed"], stop=stops, **options)
    ):
        end = min(whole[row].find(stop) for stop in stops if stop in whole[row])
        assert text == whole[row][:end]
    one = model.generate(tf.constant(["a", "fed"]), stop=stops[0], **options)
    assert one[0] == whole[0].partition(stops[0])[0]
    stop_ids = TOKENIZER.encode(whole[0][6]).tolist()
    ended = model.generate(["a", "fed"], stop_token_ids=stop_ids, **options)
    assert ended == [text.split(whole[0][6])[0] for text in whole]
    ids = model.generate([0], stop_token_ids=stop_ids, **options)
    assert TOKENIZER.decode(ids) == ended[0]


def test_the_parts_of_a_stream_join_to_the_whole(model):
    options = {"max_new_tokens": 30, "seed": 4, "stop": ["ef"]}
    for sampler in ("random", "beam"):
        options["sampler"] = sampler
        whole = model.generate(["a", "bé"], strip_prompt=True, **options)
        parts = model.generate(["a", "bé"], stream=True, **options)
        assert list(map("".join, zip(*parts, strict=True))) == whole
        parts = model.generate("a", stream=True, **options)
        assert "".join(parts) == whole[0]
    parts = list(model.generate([0], max_new_tokens=3, seed=4, stream=True))
    whole = model.generate([0], max_new_tokens=3, seed=4)
    assert len(parts) == 3
    np.testing.assert_array_equal(np.concatenate([[0], *parts]), whole)


def test_nothing_may_be_asked_for(model):
    assert model.generate("ab", max_length=2) == "ab"
    assert model.generate("ab", max_new_tokens=0, sampler="beam") == "ab"
    assert model.generate(["ab"], max_new_tokens=0, strip_prompt=True) == [""]
    assert list(model.generate("ab", max_new_tokens=0, stream=True)) == []


def test_a_new_seed_is_drawn_for_each_call(model):
    def write():
        return model.generate("a", max_new_tokens=20)

    keras.utils.set_random_seed(1)
    first, second = write(), write()
    assert first != second
    keras.utils.set_random_seed(1)
    assert [write(), write()] == [first, second]


def test_the_sampler_of_compile_is_used_saved_and_loaded(tmp_path):
    model = varied_model()
    model.tokenizer = TOKENIZER
    options = {"max_new_tokens": 9, "seed": 3}
    # One token: no segment of a prompt is compiled.
    plain = model.generate("a", **options)
    greedy = model.generate("a", sampler="greedy", **options)
    assert plain != greedy
    model.compile()
    assert model.sampler == Sampler()
    with pytest.raises(ValueError, match="`sampler` must be one of"):
        model.compile(sampler="topk")
    for sampler in (BeamSampler(num_beams=1), Sampler(temperature=0)):
        model.compile("sgd", sampler=sampler)
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        assert loaded.sampler == sampler
        assert loaded.generate("a", **options) == greedy


def write(model, prompt, max_tokens, seed=0, memory_length=None, **sampler):
    rows = model.generate(
        prompt,
        max_new_tokens=max_tokens,
        seed=seed,
        sampler=Sampler(**sampler),
        memory_length=memory_length,
        strip_prompt=True,
    )
    return np.array(rows)  # [B, max_tokens]


ABSOLUTE = {"memory_length": 0, "max_positions": 4, "tie_embeddings": False}


@pytest.mark.parametrize(
    ("config", "memory_length"),
    [
        # Large vocabularies are sampled by cluster.
        ({"vocabulary_size": 60, "cutoffs": (20, 40)}, 8),
        # Absolute positions read a window again.
        ({"attention_type": "vaswani", **ABSOLUTE}, 4),
        ({"attention_type": "al_rfou", **ABSOLUTE}, 4),
    ],
)
def test_greedy_takes_the_most_likely_token_of_the_past(config, memory_length):
    model = small_model(num_layers=1, **config)
    last = config.get("vocabulary_size", V) - 1  # in the last cluster
    text = prompt = np.array([[3, 1, 4], [1, 5, last]])
    sizes = {"memory_length": memory_length, "temperature": 0}
    written = write(model, prompt, 6, **sizes)
    window = memory_length if "attention_type" in config else 99
    for _ in range(6):  # reads the whole window again for each token
        log_probs, _ = model.log_probs(text[:, -window:])
        nearest = log_probs[:, -1].numpy().argmax(-1)
        text = np.concatenate([text, nearest[:, None]], axis=1)
    np.testing.assert_array_equal(written, text[:, 3:])
    assert len(np.unique(written)) > 1


def test_a_prompt_longer_than_a_segment_is_read_to_its_end(model):
    prompt = np.random.default_rng(0).integers(0, 9, (1, 300))
    memory = model.initial_memory(1)
    for start, end in ((0, 128), (128, 256), (256, 299)):
        _, memory = model.log_probs(prompt[:, start:end], memory)
    log_probs, _ = model.log_probs(prompt[:, 299:], memory)
    written = write(model, prompt, 1, temperature=0)
    assert written[0, 0] == log_probs[0, -1].numpy().argmax()


def test_a_row_is_written_as_if_it_were_alone(model):
    random = np.random.default_rng(3)
    # Shorter and longer than memory, and than a segment of the prompt.
    prompts = [random.integers(0, 9, n) for n in (1, 140, 4, 260)]
    settings = {"temperature": 0.7, "repetition_penalty": 1.3}
    together = write(model, prompts, 12, seed=5, **settings)
    for row, prompt in enumerate(prompts):
        alone = write(model, [prompt], 12, seed=5 + row, **settings)
        np.testing.assert_array_equal(together[row], alone[0])
    assert len(np.unique(together, axis=0)) == 4


@pytest.mark.large
def test_texts_may_be_written_at_the_same_time(model):
    prompts, both = ([1, 2, 3], [8]), [[], []]
    options = {"max_new_tokens": 6, "seed": 1, "stream": True}
    streams = [model.generate(prompt, **options) for prompt in prompts]
    for parts in zip(*streams, strict=True):
        for written, part in zip(both, parts, strict=True):
            written += part.tolist()
    for prompt, written in zip(prompts, both, strict=True):
        np.testing.assert_array_equal(write(model, [prompt], 6, 1)[0], written)


def test_a_penalty_spares_what_was_read_and_written(model):
    written = write(model, [[3, 1]], 7, temperature=0, repetition_penalty=1e6)
    assert sorted([3, 1, *written[0]]) == list(range(9))


def most_likely(model, prompt, length, stop_id):
    """Most likely of all texts; each ends with `stop_id` or is so long."""
    vocabulary = range(model.backbone.vocabulary_size)
    texts = list(itertools.product(vocabulary, repeat=length))
    ids = np.array([[*prompt, *text] for text in texts])
    sums = np.zeros(len(texts))
    is_ended = np.zeros(len(texts), bool)
    for end in range(len(prompt), ids.shape[1]):
        # Not one segment: a reader of windows counts positions from its end.
        log_probs, _ = model.log_probs(ids[:, :end])
        last = np.take_along_axis(
            log_probs[:, -1].numpy(), ids[:, end : end + 1], 1
        )
        sums += np.where(is_ended, 0, last[:, 0])
        is_ended |= ids[:, end] == stop_id
    best = (*texts[int(np.argmax(sums))], stop_id)
    return best[: min(best.index(stop_id), length)]


@pytest.mark.parametrize("name", BACKBONES)
def test_with_beams_enough_a_search_finds_the_most_likely_text(name):
    seed_weights(4)
    model = varied_model(vocabulary_size=4, **BACKBONES[name])
    prompts = [[1, 3, 0], [2], [0, 3]]
    options = {"max_new_tokens": 3, "memory_length": 20, "strip_prompt": True}
    if name == "lstm":
        del options["memory_length"]
    found = model.generate(
        prompts, sampler=BeamSampler(16), stop_token_ids=[1], **options
    )
    for prompt, text in zip(prompts, found, strict=True):
        assert tuple(text) == most_likely(model, prompt, 3, stop_id=1)
    prompts = [[1], [2], [0]]  # no segment of a prompt is compiled
    greedy = model.generate(prompts, sampler="greedy", **options)
    alone = model.generate(prompts, sampler=BeamSampler(1), **options)
    assert_same(alone, greedy)


def search_with_full_texts(model, prompt, num_beams, length):
    """Beam search that reads the whole text of every beam in every step."""
    beams = [(0.0, tuple(prompt))]
    for _ in range(length):
        log_probs, _ = model.log_probs(np.array([text for _, text in beams]))
        sums = [
            (score + float(log_prob), (*text, token))
            for (score, text), last in zip(
                beams, log_probs[:, -1].numpy(), strict=True
            )
            for token, log_prob in enumerate(last)
        ]
        beams = sorted(sums, reverse=True)[:num_beams]
    return beams[0][1]


@pytest.mark.parametrize("make", [TransformerXLBackbone, LSTMBackbone])
def test_the_memory_of_a_beam_follows_it(make):
    seed_weights(4)
    sizes = {"memory_length": 20} if make is TransformerXLBackbone else {}
    model = varied_model(make=make, **sizes)
    prompts = [[1, 5, 0], [2], [8, 8]]
    beams = model.generate(
        prompts, max_new_tokens=8, sampler=BeamSampler(num_beams=3)
    )
    greedy = model.generate(prompts, max_new_tokens=8, sampler="greedy")
    expected = [search_with_full_texts(model, p, 3, 8) for p in prompts]
    assert [tuple(row) for row in beams] == expected
    # Otherwise no beam was ever replaced.
    assert expected != [tuple(row) for row in greedy]


def test_the_prompt_of_nan_is_named():
    model = varied_model()
    for weight in model.softmax.weights:
        weight.assign(np.full(weight.shape, np.nan))
    for sampler, message in (
        ("beam", "the model returned NaN"),
        ("random", "Token 0.*row 0"),
    ):
        with pytest.raises(FloatingPointError, match=message):
            model.generate([[1], [2]], max_new_tokens=2, sampler=sampler)


def test_a_second_call_traces_nothing_and_reads_new_weights(model, monkeypatch):
    traces = []
    read = TransformerXLBackbone.call_projected

    def counted(self, *args):
        traces.append(args)
        return read(self, *args)

    monkeypatch.setattr(TransformerXLBackbone, "call_projected", counted)
    model = varied_model(memory_length=20)
    for sampler in (Sampler(temperature=0), BeamSampler(1)):
        options = {"sampler": sampler, "max_new_tokens": 9}
        before = model.generate([[1, 2, 3], [4]], **options)
        assert traces
        traces.clear()
        other = varied_model(memory_length=20)
        model.set_weights(other.get_weights())
        after = model.generate([[1, 2, 3], [4]], **options)
        model.generate([[5] * 300, [6, 7]], max_length=310, sampler=sampler)
        assert not traces
        text = [1, 2, 3]
        for _ in range(9):
            log_probs, _ = other.log_probs(np.array([text]))
            text.append(int(log_probs[0, -1].numpy().argmax()))
        assert after[0].tolist() == text != before[0].tolist()
        traces.clear()


def test_adapters_that_are_added_later_are_read():
    model = varied_model(memory_length=20)
    options = {"max_new_tokens": 8, "sampler": "greedy"}
    before = model.generate([1, 2, 3], **options)
    block, rng = model.backbone.blocks[0], np.random.default_rng(0)
    for layer in block._flatten_layers():
        if isinstance(layer, keras.layers.Dense):
            layer.enable_lora(2)
            new = rng.normal(0, 9, layer.lora_kernel_b.shape)
            layer.lora_kernel_b.assign(new)
    after = model.generate([1, 2, 3], **options)
    assert tuple(after) == search_with_full_texts(model, [1, 2, 3], 1, 8)
    assert after.tolist() != before.tolist()


def test_a_scope_of_several_replicas_is_refused(model, monkeypatch):
    strategy = types.SimpleNamespace(num_replicas_in_sync=2)
    monkeypatch.setattr(tf.distribute, "get_strategy", lambda: strategy)
    for call in (model.generate, model.score_texts, model.embed_texts):
        with pytest.raises(RuntimeError, match=r"outside of `strategy.scope"):
            call(["a"])


def test_absolute_positions_and_no_memory_need_a_window():
    model = varied_model(
        memory_length=0, attention_type="al_rfou", max_positions=7
    )
    options = {"max_new_tokens": 9, "sampler": "greedy"}
    by_default = model.generate([1, 2], **options)
    whole = model.generate([1, 2], memory_length=7, **options)
    np.testing.assert_array_equal(by_default, whole)
    with pytest.raises(ValueError, match="at most 7. Received: memory_length"):
        model.generate([1, 2], memory_length=8)
    for config in ({}, {"attention_type": "vaswani"}):
        model = varied_model(memory_length=0, **config)
        with pytest.raises(ValueError, match="`memory_length` must be given"):
            model.generate([1, 2])


CONTINUED = {
    "relative": {"memory_length": 40},
    "lstm": {"make": LSTMBackbone},
}


@pytest.mark.parametrize("name", CONTINUED)
@pytest.mark.parametrize("sampler", ["greedy", "beam"])
def test_a_text_is_continued_without_reading_it_again(name, sampler):
    seed_weights(4)
    model = varied_model(**CONTINUED[name])
    options = {"max_new_tokens": 4, "sampler": sampler}
    first, memory = model.generate(
        [[1, 2, 3], [4]], return_memory=True, stop_token_ids=[0], **options
    )
    # Rows end where their texts end, and the last token was read.
    for row, text in enumerate(first):
        _, expected = model.log_probs(text[None])
        for found, state in zip(memory.states, expected.states, strict=True):
            np.testing.assert_allclose(found[row], state[0], atol=1e-5)
    second, last = model.generate(
        [[5, 6], [7, 0, 1]], memory=memory, return_memory=True, **options
    )
    whole, expected = model.generate(
        list(map(np.append, first, [[5, 6], [7, 0, 1]])),
        return_memory=True,
        **options,
    )
    for text, before, expected_text in zip(second, first, whole, strict=True):
        np.testing.assert_array_equal(np.append(before, text), expected_text)
    assert_same(last.states, expected.states, atol=1e-5)


def test_text_is_continued_from_a_stop_and_from_a_scored_text(model):
    options = {"max_new_tokens": 30, "sampler": "greedy", "memory_length": 99}
    whole = model.generate("fed", **options)
    stop = whole[9:12]
    first, memory = model.generate(
        "fed", stop=stop, return_memory=True, **options
    )
    assert first == whole[: whole.index(stop, 3)]
    ids = TOKENIZER.encode(first)[None]
    _, scored = model.score(ids, ids, model.initial_memory(1, 99))
    for before in (memory, scored):
        rest = model.generate(whole[len(first)], memory=before, **options)
        assert (first + rest).startswith(whole)


def test_other_memories_are_refused(model):
    memory = model.initial_memory(2, 20)
    for arguments, message in (
        ({"prompts": ["a"]}, r"`memory.states\[0\]` must have .*\(1,"),
        ({}, "20 entries$"),
        ({"memory_length": 21}, "must have 21 entries.*memory_length=21.*: 20"),
    ):
        arguments = {"prompts": ["a", "b"], "memory": memory, **arguments}
        with pytest.raises(ValueError, match=message):
            model.generate(**arguments)
    absolute = varied_model(**BACKBONES["vaswani"])
    for arguments in ({"return_memory": True}, {"memory": memory}):
        with pytest.raises(ValueError, match="vaswani"):
            absolute.generate([1], memory_length=4, **arguments)


@pytest.mark.parametrize("name", BACKBONES)
def test_several_sequences_and_their_log_probabilities(name):
    seed_weights(4)
    model = varied_model(cutoffs=(3, 6), **BACKBONES[name])
    options = {"max_new_tokens": 5, "seed": 3, "stop_token_ids": [8]}
    if name != "lstm":
        options["memory_length"] = 20
    prompts = [[1, 2, 3], [4]]
    texts, log_probs = model.generate(
        prompts, num_return_sequences=3, return_log_probs=True, **options
    )
    # Each is a draw of its own.
    assert len(texts) == 6 and len({tuple(text) for text in texts}) > 3
    # As without log-probabilities, and as if each prompt were given 3 times.
    repeated = model.generate([p for p in prompts for _ in range(3)], **options)
    assert_same(repeated, texts)
    for i, (text, found) in enumerate(zip(texts, log_probs, strict=True)):
        length = len(prompts[i // 3])
        np.testing.assert_array_equal(text[:length], prompts[i // 3])
        assert found.dtype == np.float32
        expected = []
        for end in range(length, len(text)):
            every, _ = model.log_probs(text[None, :end])
            expected.append(every[0, -1, text[end]])
        # Large weights leave fewer digits.
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    # Of the model itself, whatever the sampler does.
    text, found = model.generate(
        [1, 2, 3],
        sampler=Sampler(0.1, top_k=3, repetition_penalty=2.0),
        return_log_probs=True,
        **options,
    )
    every, _ = model.log_probs(text[None, :3])
    np.testing.assert_allclose(found[0], every[0, -1, text[3]], atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompts": ""}, "`prompts` must have at least one token.*''"),
        ({"prompts": ["a", ""]}, r"at least one token.*prompts\[1\]=''"),
        ({"prompts": ["a", "ax"]}, "'x'.*position 1"),
        ({"prompts": ["a", 1]}, r"all strings or all.*prompts\[1\]=1"),
        ({"prompts": [[1], "a"]}, r"all strings.*prompts\[0\]=\[1\]"),
        ({"prompts": []}, "`prompts` must have at least one row"),
        ({"prompts": [1, [2, 3]]}, r"`prompts\[0\]` must be"),
        ({"prompts": [1, 9]}, r"\[0, 9\). Received: from 1 to 9"),
        ({"prompts": [[1], [-1]]}, r"`prompts\[1\]`.*from -1 to -1"),
        ({"prompts": [0.5]}, "float64"),
        *(({"prompts": x}, "prompts") for x in ([[True]], {1: 2})),
        ({"prompts": None}, "`prompts` must be a list. Rec.* prompts=None"),
        ({"prompts": ["a", b"b"]}, r"all strings or all.*b'b'"),
        ({"max_length": 3, "max_new_tokens": 3}, "exclude each other"),
        ({"max_length": 1}, "`max_length`.* at least 2.*max_length=1"),
        ({"max_new_tokens": -1}, "max_new_tokens=-1"),
        ({"stop_token_ids": [9]}, "`stop_token_ids`.*from 9 to 9"),
        ({"stop_token_ids": 3}, "`stop_token_ids` must be a list"),
        ({"stop": [""]}, "`stop` must be a string or a sequence of strings"),
        ({"stop": None}, "`stop` must be a string or a sequence"),
        ({"prompts": [[[1]]]}, r"`prompts\[0\]` must be a sequence"),
        ({"prompts": [1], "stop": ["a"]}, "`stop` must be empty for prompts"),
        ({"sampler": "best"}, "`sampler` must be one of.*'best'"),
        *(({"seed": seed}, f"seed={seed}") for seed in (-1, 2**63, 0.5)),
        ({"memory_length": -1}, "memory_length=-1"),
        ({"num_return_sequences": 0}, "num_return_sequences=0"),
        ({"sampler": "beam", "num_return_sequences": 2}, "A BeamSampler"),
        ({"sampler": "beam", "return_log_probs": True}, "A BeamSampler"),
        ({"return_memory": True}, "`stream` neither"),
        ({"memory": [1]}, "`memory` must be a Memory"),
        ({"engine": "onnx"}, "`engine` must be one of .*'onnx'"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused_before_any_work(model, arguments, message):
    with pytest.raises(ValueError, match=message):
        model.generate(**{"prompts": "ab", "stream": True, **arguments})


def test_text_needs_a_tokenizer():
    model = varied_model()
    for call in (model.generate, model.score_texts, model.embed_texts):
        with pytest.raises(ValueError, match="`tokenizer` must be set"):
            call(["a"])
    for other in (CharacterTokenizer("ab"), IdTokenizer(10)):
        with pytest.raises(ValueError, match="as many symbols as the model"):
            model.tokenizer = other
    assert model.tokenizer is None


def test_arguments_of_no_engine_are_refused(model):
    with pytest.raises(TypeError, match="no arguments .*max_tokens"):
        model.generate("a", max_tokens=3)
