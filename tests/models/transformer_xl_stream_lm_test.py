"""Language models of several token streams."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from factories import seed_weights

from txl_keras.models import TransformerXLBackbone
from txl_keras.models import TransformerXLStreamLM
from txl_keras.samplers import BeamSampler
from txl_keras.samplers import Sampler

SIZES = {"pitch": 7, "type": 2, "length": 4}
B, T, M = 3, 5, 24


def model_of(first="type", sizes=None, **settings):
    seed_weights(3)
    backbone = TransformerXLBackbone(
        None,
        **{
            "num_layers": 1,
            "num_heads": 2,
            "hidden_dim": 16,
            "intermediate_dim": 20,
            "memory_length": M,
            "initializer_stddev": 0.4,
            "stateful": True,
            **settings,
        },
    )
    model = TransformerXLStreamLM(
        backbone, sizes or SIZES, embedding_dims=(6, 3, 5), first=first
    )
    rng = np.random.default_rng(5)
    for weight in model.trainable_variables:
        if "given" in weight.path:
            weight.assign(rng.normal(size=weight.shape))
    return model


def random_steps(rows, length, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(list(SIZES.values()), size=(rows, length, len(SIZES)))


def test_predictions_see_lora_that_is_enabled_after_the_first():
    model = model_of(None)
    ids = random_steps(B, T)
    before = model.predict(ids, B, verbose=0)
    model.backbone.enable_lora(3)
    for weight in model.backbone.trainable_variables:
        weight.assign(np.ones(weight.shape))
    after = model.predict(ids, B, verbose=0)
    expected = model({"token_ids": ids, "reset": np.ones(B, bool)})
    for name in SIZES:
        np.testing.assert_allclose(after[name], expected[name], atol=1e-5)
        assert np.abs(after[name] - before[name]).max() > 0.1


@pytest.mark.parametrize("first", [None, "type"])
def test_scores_are_those_of_each_softmax(first):
    model = model_of(first)
    ids = random_steps(B, T + 1)
    nll, _ = model.score(ids[:, :-1], ids[:, 1:])
    logits = model(ids[:, :-1])
    types = ids[:, 1:, 1]
    given = {
        int(weight.path[-1]): weight.numpy()
        for weight in model.trainable_variables
        if "given" in weight.path
    }
    assert sorted(given) == ([0, 2] if first else [])
    for i, name in enumerate(SIZES):
        scores = np.array(logits[name])
        if i in given:
            scores = scores + given[i][types]
        expected = keras.losses.sparse_categorical_crossentropy(
            ids[:, 1:, i], scores, from_logits=True
        )
        np.testing.assert_allclose(nll[..., i], expected, atol=1e-5)


def test_memory_goes_on():
    model = model_of(num_layers=2)
    ids = random_steps(B, 2 * T + 1)
    whole, _ = model.score(ids[:, :-1], ids[:, 1:])
    memory, parts = None, []
    for start in (0, T):
        part = slice(start, start + T)
        nll, memory = model.score(
            ids[:, :-1][:, part], ids[:, 1:][:, part], memory
        )
        parts.append(nll)
        # A stateful call reads the same.
        logits = model(ids[:, :-1][:, part])
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, atol=1e-5)
    expected = -tf.nn.log_softmax(logits["type"]).numpy()
    found = np.take_along_axis(expected, ids[:, T + 1 :, 1][..., None], 2)
    np.testing.assert_allclose(nll[..., 1], found[..., 0], atol=1e-5)


def test_a_text_may_begin_inside_a_segment():
    model = model_of()
    ids = random_steps(B, T)
    reset = np.zeros((B, T), bool)
    reset[1, 2] = True
    alone = model(ids[1:2, 2:])
    model(random_steps(B, T, seed=1))
    found = model({"token_ids": ids, "reset": reset})
    for name in SIZES:
        np.testing.assert_allclose(
            found[name][1, 2:], alone[name][0], atol=1e-5
        )
    with pytest.raises(ValueError, match="dictionary of 'token_ids' and"):
        model({"token_ids": ids})


@pytest.fixture(scope="module")
def writer():
    """A model with a short memory; its greedy steps are compiled once."""
    return model_of(memory_length=6)


# One is longer than the memory, and the other is not.
PROMPTS = [random_steps(1, length, seed=length)[0] for length in (11, 3)]


def test_generated_steps_are_the_likeliest_of_calls(writer):
    written = writer.generate(PROMPTS, 8, sampler="greedy")
    given = {
        int(weight.path[-1]): weight.numpy()
        for weight in writer.trainable_variables
        if "given" in weight.path
    }
    for prompt, row in zip(PROMPTS, written, strict=True):
        size = len(prompt)
        assert row.shape == (size + 8, 3)
        np.testing.assert_array_equal(row[:size], prompt)
        # All but the last step of the prompt is one segment.
        reset = np.arange(size - 1)[None] == 0
        writer({"token_ids": row[None, : size - 1], "reset": reset})
        for now, later in zip(row[size - 1 : -1], row[size:], strict=True):
            logits = writer(now[None, None])
            for i, name in enumerate(SIZES):
                scores = np.array(logits[name])[0, 0]
                if i in given:
                    scores = scores + given[i][later[1]]
                assert scores[later[i]] >= scores.max() - 1e-5


def test_rows_end_before_a_stop_id_of_a_stream(writer):
    whole = writer.generate(PROMPTS, 8, sampler="greedy")
    stop = {"pitch": [int(whole[0][14, 0])], "length": []}
    rows = writer.generate(PROMPTS, 8, stop, sampler="greedy")
    for prompt, row, expected in zip(PROMPTS, rows, whole, strict=True):
        is_stop = expected[len(prompt) :, 0] == stop["pitch"][0]
        end = len(prompt) + (is_stop.argmax() if is_stop.any() else 8)
        np.testing.assert_array_equal(row, expected[:end])
    assert len(rows[0]) <= 14


def test_nan_is_an_error_of_generation(writer):
    bias = next(
        weight
        for weight in writer.trainable_variables
        if weight.path.endswith("logits_2/bias")
    )
    before = bias.numpy()
    bias.assign(np.full_like(before, np.nan))
    with pytest.raises(FloatingPointError, match="of row 0 cannot be drawn"):
        writer.generate(PROMPTS, 8, sampler="greedy")
    bias.assign(before)


def test_every_stream_has_its_sampler(writer):
    greedy = writer.generate(PROMPTS, 1, sampler="greedy")
    cool = {"type": "greedy", "pitch": Sampler(top_k=1)}
    drawn = []
    for seed in range(9):
        rows = writer.generate(PROMPTS, 1, sampler=cool, seed=seed)
        drawn.append([row[-1] for row in rows])
        for row, expected in zip(rows, greedy, strict=True):
            np.testing.assert_array_equal(row[-1, :2], expected[-1, :2])
    assert len(np.unique(np.array(drawn)[..., 2], axis=0)) > 1
    again = writer.generate(PROMPTS, 4, sampler=cool, seed=5)
    np.testing.assert_array_equal([row[-4] for row in again], drawn[5])


def test_a_single_prompt_gives_an_array(writer):
    prompt = PROMPTS[0][:1]
    np.testing.assert_array_equal(writer.generate(prompt, 0), prompt)


def test_fit_learns_all_streams_and_scores_each(tmp_path):
    model = model_of()
    # Streams that count; the type says whether there is a pitch, 0 if not.
    step = np.arange(B * 40 + 1)
    ids = np.stack([step % 2 * (1 + step % 6), step % 2, step % 4], axis=-1)
    ids = ids.astype("int32")
    cut = [part.reshape(B, 8, 5, 3) for part in (ids[:-1], ids[1:])]
    x, y = (part.swapaxes(0, 1).reshape(8 * B, 5, 3) for part in cut)
    weights = np.random.default_rng(1).choice([0.0, 1.0, 2.0], y.shape)
    y = np.where(weights, y, -1)  # what does not count may be anything
    model.compile(keras.optimizers.Adam(0.01))
    history = model.fit(
        x, y, B, epochs=20, sample_weight=weights, verbose=0,
        validation_data=(x, y, weights), validation_batch_size=B,
    ).history  # fmt: skip
    assert history["loss"][-1] < 0.1
    found = model.evaluate(
        x, y, B, sample_weight=weights, verbose=0, return_dict=True
    )
    # The same from the functional interface.
    nll, memory = [], None
    for start in range(0, len(x), B):
        rows = slice(start, start + B)
        targets = np.maximum(y[rows], 0)
        part, memory = model.score(x[rows], targets, memory)
        nll.append(part)
    nll = np.concatenate(nll)
    for i, name in enumerate(SIZES):
        expected = (nll * weights)[..., i].sum() / weights[..., i].sum()
        assert found[f"{name}_nats"] == pytest.approx(expected, abs=1e-4)
        last = history[f"val_{name}_nats"][-1]
        assert last == pytest.approx(expected, abs=1e-4)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.get_config() == model.get_config()
    again, _ = loaded.score(x, np.maximum(y, 0))
    expected, _ = model.score(x, np.maximum(y, 0))
    np.testing.assert_allclose(again, expected, atol=1e-5)
    prompt = ids[None, :9]
    written = loaded.generate(prompt, 8, sampler="greedy")
    np.testing.assert_array_equal(written[0], ids[:17])


def test_low_precision_is_used():
    model = model_of(dtype="mixed_bfloat16")
    assert model.compute_dtype == "bfloat16"
    exact = model_of()
    ids = random_steps(B, T + 1)
    found, _ = model.score(ids[:, :-1], ids[:, 1:])
    expected, _ = exact.score(ids[:, :-1], ids[:, 1:])
    assert found.dtype == "float32"
    np.testing.assert_allclose(found, expected, atol=0.3)


def test_int8_is_kept_by_the_config():
    model = model_of()
    with pytest.warns(UserWarning, match="does not have a `quantize` method"):
        model.quantize("int8")
    loaded = TransformerXLStreamLM.from_config(model.get_config())
    dtypes = [[w.dtype for w in m.weights] for m in (loaded, model)]
    assert "int8" in dtypes[0] and dtypes[0] == dtypes[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stateful": False}, "`backbone` must be a TransformerXLBackbone"),
        ({"look_ahead": 1}, "look_ahead=0"),
        ({"sizes": [7, 2, 4]}, "`vocabulary_sizes` must be a dictionary"),
        ({"sizes": {7: 2}}, "`vocabulary_sizes` must be a dictionary"),
        ({"first": "key"}, "`first` must be None or one of the streams"),
    ],
)
def test_wrong_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        model_of(**change)


def test_wrong_calls_are_refused():
    model = model_of()
    ids = random_steps(B, T)
    wrong = np.where(np.arange(3) == 2, 4, ids)
    with pytest.raises(ValueError, match="Change the ids of 'length', or"):
        model.score(ids, wrong)
    for call in (
        lambda: model.fit(wrong, ids, B),
        lambda: model.fit(ids, wrong, B),
        lambda: model.fit(ids, wrong, B, sample_weight=np.ones((B, T))),
        lambda: model.fit(ids, ids, B, validation_data=(ids, wrong)),
        lambda: model.evaluate(wrong, ids, B),
        lambda: model.predict(wrong, B),
        lambda: model.generate(wrong, 2),
    ):
        with pytest.raises(ValueError, match=r"\[..., 2\]` must hold integers"):
            call()
    for call in (
        lambda: model.fit(ids, ids),
        lambda: model.evaluate(ids, ids),
        lambda: model.predict(ids),
    ):
        with pytest.raises(ValueError, match="`batch_size` must be given"):
            call()
    for settings, message in (
        ({"sampler": {"key": "greedy"}}, "`sampler` must be .* names of str"),
        ({"sampler": BeamSampler(2)}, "`sampler` must be of"),
        ({"sampler": Sampler(repetition_penalty=2)}, "`sampler` must be of"),
        ({"stop_token_ids": {"key": [0]}}, "must be .*'pitch', 'type', 'leng"),
        ({"stop_token_ids": [0]}, "`stop_token_ids` must be a dictionary"),
        ({"stop_token_ids": {"type": [2]}}, r"\['type'\]` must .* \[0, 2\)"),
    ):
        with pytest.raises(ValueError, match=message):
            model.generate(ids, 2, **settings)
    for prompts in (ids[:, :0], [], ids[:0]):
        with pytest.raises(ValueError, match="`prompts` must have at least on"):
            model.generate(prompts, 2)
    with pytest.raises(ValueError, match=r"`prompts\[1\]` must have the shape"):
        model.generate([ids[0], ids[0, :, :2]], 2)
    model.compile("adam", "mse")
    with pytest.raises(ValueError, match="`loss` must not be passed"):
        model.fit(ids, ids, B, verbose=0)
    model.compile("adam")
    with pytest.raises(ValueError, match="`shuffle` must be False"):
        model.fit(ids, ids, B, shuffle=True, verbose=0)
