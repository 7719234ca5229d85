"""`compile`, `fit`, `evaluate`, `predict` and `save`, as a Keras user would.

The text repeats five tokens. Rows of a batch follow those of the batch
before: batch k of B rows holds `x[k * B : (k + 1) * B]`.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from factories import V
from factories import assert_same
from factories import random_ids
from factories import rewinder
from factories import rows_of
from factories import small_backbone
from factories import small_model as model_of

from txl_keras.data import Segments
from txl_keras.models import LSTMBackbone
from txl_keras.models import TransformerXLCausalLM

B, T, BATCHES = 3, 7, 4


def small_model(dtype=None, **config):
    """With one block: Keras takes seconds to trace `fit` through more."""
    return model_of(dtype, **{"num_layers": 1, **config})


def batches(ids, rows=B):
    """Cuts rows `(B, BATCHES * T + 1)` into inputs and targets for `fit`."""

    def cut(x):
        x = x.reshape(rows, BATCHES, T)
        return x.transpose(1, 0, 2).reshape(BATCHES * rows, T)

    return cut(ids[:, :-1]), cut(ids[:, 1:])


def easy_text():
    starts = np.array([[0], [3], [1]])
    return batches((np.arange(BATCHES * T + 1) + starts) % 5)


def hard_text():
    ids = random_ids(B, BATCHES * T + 1, seed=6)
    return ids, *batches(ids)


def nll_of(model, x, y):
    """Losses of batches, of which the last may have fewer rows."""
    memory, losses = model.initial_memory(B), []
    for start in range(0, len(x), B):
        rows = slice(start, start + B)
        memory = rows_of(memory, slice(len(x[rows])))
        nll, memory = model.score(x[rows], y[rows], memory)
        losses.append(nll)
    return np.concatenate(losses)


def compiled(model=None, learning_rate=0.01, **config):
    model = model or small_model()
    model.compile(keras.optimizers.Adam(learning_rate), **config)
    return model


@pytest.fixture(scope="module")
def rewind():
    return rewinder(compiled(jit_compile=True))


@pytest.fixture
def model(rewind):
    """Compiled model that tests share, with the weights it had at first."""
    return rewind()


@pytest.mark.parametrize(
    "policy",
    [
        "float32",
        "mixed_bfloat16",
        pytest.param("mixed_float16", marks=pytest.mark.large),
    ],
)
def test_fit_learns_a_text_that_repeats(policy, model):
    if policy != "float32":
        dropout = {"dropout": 0.05, "attention_dropout": 0.05}
        model = compiled(small_model(policy, **dropout))
    x, y = easy_text()
    history = model.fit(x, y, batch_size=B, epochs=30, verbose=0)
    losses = history.history["loss"]
    assert losses[0] > 1.5
    assert losses[-1] < 0.3
    bits = np.array(history.history["bits_per_token"])
    np.testing.assert_allclose(bits * 0.69314718, losses, rtol=1e-3)
    prediction = model.predict(x, batch_size=B, verbose=0)
    assert (prediction.argmax(-1) == y).mean() > 0.95
    assert {w.dtype for w in model.weights} == {"float32"}


def test_weights_may_be_bfloat16_except_of_an_lstm(tmp_path):
    with pytest.raises(ValueError, match="`dtype` must not be 'bfloat16' for"):
        small_backbone("bfloat16", LSTMBackbone)
    model, exact = (
        small_model(dtype, cutoffs=(4,)) for dtype in ("bfloat16", "float32")
    )
    x, y = easy_text()
    model.compile(keras.optimizers.SGD(0.5))
    losses = model.fit(x, y, batch_size=B, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0] - 0.1
    assert {w.dtype for w in model.weights} == {"bfloat16"}
    weights = model.get_weights()
    exact.set_weights([w.astype("float32") for w in weights])
    nll, _ = model.score(x, y)
    np.testing.assert_allclose(nll, exact.score(x, y)[0], atol=0.1)
    assert len(model.generate(x[0], max_new_tokens=3, seed=1)) == T + 3
    model.save(tmp_path / "model.keras")
    model.save_to_preset(tmp_path / "preset")
    for loaded in (
        keras.saving.load_model(tmp_path / "model.keras"),
        TransformerXLCausalLM.from_preset(tmp_path / "preset"),
    ):
        assert_same(loaded.get_weights(), weights)


def test_evaluate_reads_the_text_in_order_with_memory(model):
    _, x, y = hard_text()
    # The last batch may have fewer rows.
    data = tf.data.Dataset.from_tensor_slices((x[:-1], y[:-1])).batch(B)
    expected = nll_of(model, x[:-1], y[:-1]).mean()
    loss = model.evaluate(data, verbose=0)[0]
    assert loss == pytest.approx(expected, abs=1e-5)
    expected = nll_of(model, x, y).mean()
    result = model.evaluate(x, y, batch_size=B, verbose=0, return_dict=True)
    assert result["loss"] == pytest.approx(expected, abs=1e-5)
    assert result["bits_per_token"] == pytest.approx(
        expected / 0.69314718, abs=1e-4
    )
    without_memory, _ = model.score(x, y)
    assert abs(np.mean(without_memory) - expected) > 1e-3
    # It begins cold each time.
    model(x[:2])
    again = model.evaluate(x, y, batch_size=B, verbose=0, return_dict=True)
    assert again == result


def test_fit_and_evaluate_compute_no_logits(monkeypatch):
    model = compiled(small_model(cutoffs=(4, 7)), run_eagerly=True)
    monkeypatch.setattr(model.softmax, "logits", None)
    monkeypatch.setattr(model.softmax, "log_probs", None)
    _, x, y = hard_text()
    model.fit(x, y, batch_size=B, verbose=0)
    assert model.evaluate(x, y, batch_size=B, verbose=0)[0] > 0
    compiled(model, metrics=["accuracy"], run_eagerly=True)
    with pytest.raises(TypeError, match="not callable"):
        model.fit(x, y, batch_size=B, verbose=0)


def test_sample_weights_weight_the_loss(model):
    model.optimizer.learning_rate = 0.0
    _, x, y = hard_text()
    weights = np.zeros(x.shape, "float32")
    weights[:, 2] = 2.0
    nll = nll_of(model, x, y)
    expected = 2 * nll[:, 2].sum() / x.size
    arguments = {"batch_size": B, "sample_weight": weights, "verbose": 0}
    fitted = model.fit(x, y, **arguments).history
    np.testing.assert_allclose(fitted["loss"], expected, rtol=1e-5)
    np.testing.assert_allclose(
        fitted["bits_per_token"],
        nll[:, 2].mean() / np.log(2),
        rtol=1e-5,
    )
    evaluated = model.evaluate(x, y, **arguments)
    np.testing.assert_allclose(evaluated[0], expected, rtol=1e-5)


def test_predict_gives_logits_with_memory(model):
    ids, x, _ = hard_text()
    logits = model.predict(x, batch_size=B, verbose=0)
    assert logits.shape == (BATCHES * B, T, V)
    expected, _ = model.log_probs(ids[:, :-1])
    long = small_model(memory_length=BATCHES * T)
    long.set_weights(model.get_weights())
    again = compiled(long).predict(x, batch_size=B, verbose=0)
    again = again.reshape(BATCHES, B, T, V).transpose(1, 0, 2, 3)
    again = again.reshape(B, BATCHES * T, V)
    again -= np.log(np.exp(again).sum(-1, keepdims=True))
    np.testing.assert_allclose(again, expected, atol=1e-4)
    np.testing.assert_array_equal(
        model.predict(x, batch_size=B, verbose=0), logits
    )
    segments = Segments(np.append(ids[:, :-1], 0), B, T, drop_remainder=True)
    for data in (segments, tf.data.Dataset.from_tensor_slices(x).batch(B)):
        np.testing.assert_array_equal(model.predict(data, verbose=0), logits)


@pytest.mark.parametrize("name", ["x", "y"])
def test_ids_outside_of_the_vocabulary_never_reach_the_weights(model, name):
    _, x, y = hard_text()
    before = model.get_weights()
    for bad in (V, -1):
        wrong = {"x": x.copy(), "y": y.copy()}
        wrong[name][1, 2] = bad
        with pytest.raises(ValueError, match=f"`{name}` must hold integers"):
            model.fit(**wrong, batch_size=B, verbose=0)
        dataset = tf.data.Dataset.from_tensors((wrong["x"][:B], wrong["y"][:B]))
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="must hold integers in"
        ):
            model.fit(dataset, verbose=0)
    assert_same(model.get_weights(), before)


def test_validation_does_not_disturb_training(rewind):
    _, x, y = hard_text()
    histories = []
    for validation_data in (None, (x[::-1], y[::-1])):
        model = rewind()
        history = model.fit(
            x,
            y,
            batch_size=B,
            epochs=3,
            validation_data=validation_data,
            verbose=0,
        )
        histories.append(history.history)
    without, with_validation = histories
    np.testing.assert_allclose(
        with_validation["loss"], without["loss"], rtol=1e-5
    )
    assert "val_loss" not in without
    # And it starts cold every time.
    assert with_validation["val_loss"][-1] == pytest.approx(
        model.evaluate(x[::-1], y[::-1], batch_size=B, verbose=0)[0], rel=1e-5
    )


def test_a_saved_model_goes_on_training_as_it_would_have(model, tmp_path):
    _, x, y = hard_text()
    model.fit(x, y, batch_size=B, epochs=2, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert [w.path for w in loaded.weights] == [w.path for w in model.weights]
    model.reset_memory()
    np.testing.assert_allclose(loaded(x[:B]), model(x[:B]), atol=1e-6)
    expected = model.fit(x, y, batch_size=B, epochs=2, verbose=0).history
    got = loaded.fit(x, y, batch_size=B, epochs=2, verbose=0).history
    assert set(got) == {"loss", "bits_per_token"}
    np.testing.assert_allclose(got["loss"], expected["loss"], rtol=1e-4)


def test_a_frozen_backbone_is_loaded_frozen(tmp_path):
    _, x, y = hard_text()
    model = small_model()
    model.backbone.trainable = False
    model.compile("adam", run_eagerly=True)
    model.fit(x[:B], y[:B], batch_size=B, verbose=0)
    model.save_to_preset(tmp_path / "preset")
    of_preset = TransformerXLCausalLM.from_preset(tmp_path / "preset")
    model.save(tmp_path / "model.keras")
    of_file = keras.saving.load_model(tmp_path / "model.keras")
    assert len(of_file.optimizer.variables) == len(model.optimizer.variables)
    expected = [weight.name for weight in model.trainable_weights]
    for loaded in (of_preset, of_file):
        names = [weight.name for weight in loaded.trainable_weights]
        assert names == expected


def test_a_loss_of_the_user_takes_the_place_of_the_default(tmp_path):
    _, x, y = hard_text()
    loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=3
    )
    model = small_model()
    model.compile("sgd", loss, metrics=["accuracy"], run_eagerly=True)
    history = model.fit(x, y, batch_size=B, verbose=0).history
    assert set(history) == {"loss", "accuracy"}
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.loss.ignore_class == 3


@pytest.mark.parametrize(
    "config",
    [
        {"run_eagerly": True},
        {"steps_per_execution": 3, "jit_compile": False},
        {"metrics": ["accuracy"]},
    ],
)
def test_other_ways_to_run_a_step_read_the_same(model, config):
    _, x, y = hard_text()
    model.optimizer.learning_rate = 0.0
    expected = model.fit(x, y, batch_size=B, verbose=0).history["loss"]
    other = small_model()
    other.set_weights(model.get_weights())
    other.compile(keras.optimizers.SGD(0.0), **config)
    got = other.fit(x, y, batch_size=B, verbose=0).history["loss"]
    np.testing.assert_allclose(got, expected, rtol=1e-5)
