"""`TransformerXLCausalLM.generate`."""

import types

import keras
import numpy as np
import pytest
from backends import BACKEND
from factories import V
from factories import assert_same
from factories import seed_weights
from factories import small_model

from txl_keras.backend import tf
from txl_keras.data import ByteTokenizer
from txl_keras.data import CharacterTokenizer
from txl_keras.data import IdTokenizer
from txl_keras.models import LSTMBackbone
from txl_keras.models import TransformerXLBackbone
from txl_keras.samplers import BeamSampler
from txl_keras.samplers import Sampler

pytestmark = pytest.mark.every_backend

TOKENIZER = CharacterTokenizer("abcdef\n é")
BACKBONES = {
    "relative": {"memory_length": 20},
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
    # Shorter and longer than memory, and than a segment of the prompt.
    prompts = ["f", "fed é\n" * 24, "bad é\n", "abc de\n f" * 26]
    settings = Sampler(temperature=0.7, repetition_penalty=1.3)
    options = {"max_new_tokens": 12, "sampler": settings, "strip_prompt": True}
    texts = model.generate(prompts, seed=5, **options)
    assert len(set(texts)) == 4
    ids = [TOKENIZER.encode(prompt) for prompt in prompts]
    rows = model.generate(ids, seed=5, **options)
    for row, text in zip(rows, texts, strict=True):
        assert (row.dtype, len(row)) == (np.int32, 12)
        assert TOKENIZER.decode(row) == text
    for i, prompt in enumerate(prompts):
        alone = model.generate(prompt, seed=5 + i, **options)
        assert alone == texts[i]
    # Short prompts of different lengths are read token by token.
    prompts = ["f", "bad é\n", "c"]
    texts = model.generate(prompts, seed=5, **options)
    for i, prompt in enumerate(prompts):
        assert texts[i] == model.generate(prompt, seed=5 + i, **options)


@pytest.mark.parametrize("config", [{}, {"cold_start": "zeros"}])
def test_a_short_prompt_is_read_the_same_whatever_is_asked_for(config):
    seed_weights(6)
    sizes = {"vocabulary_size": 50, "num_layers": 2, "initializer_stddev": 0.5}
    model = small_model(memory_length=16, **sizes, **config)
    prompt = np.arange(5, 16)
    options = {"sampler": "greedy", "return_log_probs": True}
    options["max_new_tokens"] = 3
    _, expected = model.generate(prompt, **options)
    _, (beside_a_long_one, _) = model.generate(
        [prompt, np.arange(30)], **options
    )
    _, with_memory, _ = model.generate(prompt, return_memory=True, **options)
    for found in (beside_a_long_one, with_memory):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_sampler_of_ones_own_is_used(model):
    class Unlikeliest(Sampler):
        def __call__(self, log_probs, seeds, seen=None):
            return keras.ops.cast(keras.ops.argmin(log_probs, -1), "int32")

    options = {"max_new_tokens": 1, "sampler": Unlikeliest()}
    (*_, found) = model.generate([1, 2], **options)
    log_probs, _ = model.log_probs(np.array([[1, 2]]))
    assert found == np.argmin(log_probs[0, -1])


def test_a_row_ends_before_its_first_stop(model):
    options = {"max_new_tokens": 40, "seed": 2, "strip_prompt": True}
    whole = model.generate(["a", "fed"], **options)
    stops = [whole[0][4:6], whole[1][9:11]]
    for row, text in enumerate(
        model.generate(["a", "fed"], stop=stops, **options)
    ):
        end = min(whole[row].find(stop) for stop in stops if stop in whole[row])
        assert text == whole[row][:end]
    one = model.generate(np.array(["a", "fed"]), stop=stops[0], **options)
    assert one[0] == whole[0].partition(stops[0])[0]
    stop_ids = TOKENIZER.encode(whole[0][6]).tolist()
    ended = model.generate(["a", "fed"], stop_token_ids=stop_ids, **options)
    assert ended == [text.split(whole[0][6])[0] for text in whole]
    prompts = [TOKENIZER.encode("a"), TOKENIZER.encode("fed")]
    rows = model.generate(prompts, stop_token_ids=stop_ids, **options)
    assert [TOKENIZER.decode(row) for row in rows] == ended
    pairs = model.generate(np.array([[1, 2], [3, 4]]), max_length=5)
    assert [pair.shape for pair in pairs] == [(5,), (5,)]


def test_the_parts_of_a_stream_join_to_the_whole(model):
    options = {"max_new_tokens": 30, "seed": 4, "stop": ["ef"]}
    for sampler in ("random", "beam"):
        options["sampler"] = sampler
        whole = model.generate(["a", "bé"], strip_prompt=True, **options)
        parts = model.generate(["a", "bé"], stream=True, **options)
        assert list(map("".join, zip(*parts, strict=True))) == whole
    options = {"max_new_tokens": 9, "seed": 4}
    whole = model.generate("a", strip_prompt=True, **options)
    assert "".join(model.generate("a", stream=True, **options)) == whole
    parts = list(model.generate([0], stream=True, **options))
    assert len(parts) == 9
    assert TOKENIZER.decode(np.concatenate(parts)) == whole


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


def test_the_sampler_of_compile_is_used_saved_and_loaded(model, tmp_path):
    options = {"max_new_tokens": 9, "seed": 3}
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
    model.compile()
    assert loaded.generate("a", **options) == greedy


def write(model, prompt, max_tokens, seed=0, **sampler):
    options = {"max_new_tokens": max_tokens, "seed": seed, "strip_prompt": True}
    rows = model.generate(prompt, sampler=Sampler(**sampler), **options)
    return np.array(rows)  # [B, max_tokens]


def next_token(model, ids):
    """The most likely token after each row, which is read as a whole."""
    return np.array(model.log_probs(np.array(ids))[0])[:, -1].argmax(-1)


def greedy_text(model, ids, length, window=None):
    """Rows `(B, P)` with as many tokens as they grow to."""
    ids = np.array(ids)
    while ids.shape[1] < length:
        new = next_token(model, ids[:, -(window or length) :])
        ids = np.append(ids, new[:, None], axis=1)
    return ids


ABSOLUTE = {"memory_length": 0, "max_positions": 4, "tie_embeddings": False}


@pytest.mark.parametrize(
    ("config", "memory_length"),
    [
        # Large vocabularies are sampled by cluster.
        ({"vocabulary_size": 60, "cutoffs": (20, 40)}, 8),
        # Absolute positions read a window again.
        ({"attention_type": "vaswani", **ABSOLUTE}, 4),
    ],
)
def test_greedy_takes_the_most_likely_token_of_the_past(config, memory_length):
    model = small_model(num_layers=1, **config)
    last = config.get("vocabulary_size", V) - 1  # in the last cluster
    prompt = np.array([[3, 1, 4], [1, 5, last]])
    options = {"memory_length": memory_length, "sampler": "greedy"}
    written = model.generate(prompt, max_new_tokens=6, **options)
    window = memory_length if "attention_type" in config else None
    np.testing.assert_array_equal(
        written, greedy_text(model, prompt, 9, window)
    )
    assert len(np.unique(written)) > 4


def test_a_prompt_longer_than_a_segment_is_read_to_its_end(model):
    prompt = np.random.default_rng(0).integers(0, 9, (1, 300))
    memory = model.initial_memory(1)
    for start, end in ((0, 128), (128, 256), (256, 299)):
        _, memory = model.log_probs(prompt[:, start:end], memory)
    log_probs, _ = model.log_probs(prompt[:, 299:], memory)
    written = write(model, prompt, 1, temperature=0)
    assert written == np.argmax(log_probs[0, -1])


@pytest.mark.large
def test_texts_may_be_written_at_the_same_time(model):
    prompts, both = ([1, 2, 3], [8]), [[], []]
    options = {"max_new_tokens": 6, "seed": 1, "stream": True}
    options["sampler"] = Sampler(0.9)
    streams = [model.generate(prompt, **options) for prompt in prompts]
    for parts in zip(*streams, strict=True):
        for written, part in zip(both, parts, strict=True):
            written += part.tolist()
    for prompt, written in zip(prompts, both, strict=True):
        alone = write(model, [prompt], 6, 1, temperature=0.9)
        np.testing.assert_array_equal(alone[0], written)


def test_a_penalty_spares_what_was_read_and_written(model):
    written = write(model, [[3, 1]], 7, temperature=0, repetition_penalty=1e6)
    assert sorted([3, 1, *written[0]]) == list(range(9))


def search(model, prompt, num_beams, length, stop_id):
    """Beam search that reads the whole text of every beam in every step."""
    beams = [(0.0, tuple(prompt))]
    for _ in range(length):
        ended = [beam for beam in beams if beam[1][-1] == stop_id]
        others = [beam for beam in beams if beam[1][-1] != stop_id]
        if others:
            texts = np.array([text for _, text in others])
            log_probs, _ = model.log_probs(texts)
            ended += [
                (score + float(log_prob), (*text, token))
                for (score, text), row in zip(others, log_probs, strict=True)
                for token, log_prob in enumerate(np.array(row[-1]))
            ]
        beams = sorted(ended, reverse=True)[:num_beams]
    best = beams[0][1]
    return best[:-1] if best[-1] == stop_id else best


@pytest.mark.skipif(BACKEND == "jax", reason="texts of all lengths compile")
@pytest.mark.parametrize("name", [*BACKBONES, "lstm"])
def test_the_memory_of_a_beam_follows_it(name):
    seed_weights(5 if name == "vaswani" else 4)
    model = varied_model(**BACKBONES.get(name, {"make": LSTMBackbone}))
    prompts = [[1, 5, 0], [2], [8, 8]]
    length = 20 if name == "vaswani" else None
    options = {"max_new_tokens": 8, "memory_length": length}
    beams = model.generate(
        prompts, sampler=BeamSampler(3), stop_token_ids=[3], **options
    )
    expected = [search(model, p, 3, 8, 3) for p in prompts]
    assert [tuple(row) for row in beams] == expected
    # Otherwise no beam was ever replaced.
    greedy = [search(model, p, 1, 8, 3) for p in prompts]
    assert expected != greedy
    assert len({len(row) for row in beams}) > 1  # some ended


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
    model, other = (varied_model(memory_length=20) for _ in range(2))
    weights = model.get_weights()
    (text,) = greedy_text(other, [[1, 2, 3]], 12).tolist()
    traces.clear()
    for sampler in (Sampler(temperature=0), BeamSampler(1)):
        options = {"sampler": sampler, "max_new_tokens": 9}
        model.set_weights(weights)
        before = model.generate([[1, 2, 3], [4]], **options)
        assert traces
        traces.clear()
        model.set_weights(other.get_weights())
        after = model.generate([[1, 2, 3], [4]], **options)
        assert not traces or BACKEND == "torch"  # which has no graphs
        model.generate([5] * 300, max_length=310, sampler=sampler)
        traces.clear()
        model.generate([[1], [2], [3]], **options)
        model.generate([6] * 200, max_length=210, sampler=sampler)
        assert not traces or BACKEND != "tensorflow"  # of unknown sizes
        assert after[0].tolist() == text != before[0].tolist()


def test_adapters_that_are_added_later_are_read():
    model = varied_model(memory_length=20)
    options = {"max_new_tokens": 8, "sampler": "greedy"}
    before = model.generate([1, 2, 3], **options)
    model.backbone.enable_lora(2)
    for weight in model.trainable_weights:
        weight.assign(np.random.default_rng(0).normal(0, 2, weight.shape))
    after = model.generate([1, 2, 3], **options)
    (expected,) = greedy_text(model, [[1, 2, 3]], 11).tolist()
    assert after.tolist() == expected != before.tolist()


@pytest.mark.tensorflow
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
    by_default = model.generate([1, 2], max_new_tokens=9, sampler="greedy")
    (whole,) = greedy_text(model, [[1, 2]], 11, window=7)
    np.testing.assert_array_equal(by_default, whole)
    with pytest.raises(ValueError, match="at most 7. Received: memory_length"):
        model.generate([1, 2], memory_length=8)
    for config in ({}, {"attention_type": "vaswani"}):
        model = varied_model(memory_length=0, **config)
        with pytest.raises(ValueError, match="`memory_length` must be given"):
            model.generate([1, 2])


@pytest.mark.parametrize(
    ("config", "sampler"),
    [({"memory_length": 40}, "beam"), ({"make": LSTMBackbone}, "greedy")],
)
def test_a_text_is_continued_without_reading_it_again(config, sampler):
    seed_weights(4)
    model = varied_model(**config)
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


def test_memory_after_a_stop_is_that_of_the_ids():
    seed_weights(3)
    model = varied_model(vocabulary_size=256)
    model.tokenizer = ByteTokenizer()
    options = {"seed": 1, "memory_length": 99, "max_new_tokens": 90}
    ids = model.generate([65], **options)
    # Many are bytes of no character, which a text cannot tell apart.
    place = next(i for i in range(20, 90) if 32 < ids[i] < 127)
    stop = chr(ids[place])
    place = ids.tolist().index(ids[place], 1)
    _, memory = model.generate("A", stop=stop, return_memory=True, **options)
    read = ids[None, :place]
    _, expected = model.score(read, read, model.initial_memory(1, 99))
    assert_same(memory.states, expected.states, atol=1e-5)


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


def test_several_sequences_and_their_log_probabilities():
    seed_weights(4)
    model = varied_model(cutoffs=(3, 6), memory_length=20)
    options = {"max_new_tokens": 5, "seed": 3, "stop_token_ids": [8]}
    prompts = [[1, 2, 3], [4]]
    # Log-probabilities are the model's own, whatever the sampler does.
    options["sampler"] = Sampler(1.1, top_k=7, repetition_penalty=1.1)
    texts, log_probs = model.generate(
        prompts, num_return_sequences=2, return_log_probs=True, **options
    )
    # Each is a draw of its own.
    assert len(texts) == 4 and len({tuple(text) for text in texts}) > 2
    # As if each prompt were given twice.
    repeated, _ = model.generate(
        [p for p in prompts for _ in range(2)], return_log_probs=True, **options
    )
    assert_same(repeated, texts)
    for i, (text, found) in enumerate(zip(texts, log_probs, strict=True)):
        length = len(prompts[i // 2])
        np.testing.assert_array_equal(text[:length], prompts[i // 2])
        assert found.dtype == np.float32
        expected = []
        for end in range(length, len(text)):
            every, _ = model.log_probs(text[None, :end])
            expected.append(every[0, -1, text[end]])
        # Large weights leave fewer digits.
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


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
        ({"prompts": object()}, "`prompts` must be a list"),
        ({"prompts": ["a", b"b"]}, r"all strings or all.*b'b'"),
        ({"max_length": 3, "max_new_tokens": 3}, "exclude each other"),
        ({"max_length": 1}, "`max_length`.* at least 2.*max_length=1"),
        ({"max_new_tokens": -1}, "max_new_tokens=-1"),
        ({"stop_token_ids": [9]}, "`stop_token_ids`.*from 9 to 9"),
        ({"stop_token_ids": [[8]]}, r"`stop_token_ids`.*shape \(None,\)"),
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
