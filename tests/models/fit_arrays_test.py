"""`compile`, `fit`, `evaluate`, `predict` and `save`, of arrays.

As a Keras user would, on every backend.
"""

import keras
import numpy as np
import pytest
from factories import V
from factories import assert_same
from factories import small_backbone
from keras import ops
from small_fits import ARRAYS
from small_fits import SEGMENTS
from small_fits import B
from small_fits import T
from small_fits import X
from small_fits import Y
from small_fits import compiled
from small_fits import nll_of
from small_fits import small_model

from txl_keras.data import Segments
from txl_keras.metrics import Perplexity
from txl_keras.models import LSTMBackbone
from txl_keras.models import TransformerXLCausalLM

pytestmark = pytest.mark.every_backend

_easy = Segments(np.arange(89) % 5, B, T, drop_remainder=True)
EASY = dict(zip("xy", _easy.arrays(), strict=True), batch_size=B, verbose=0)


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
        model = compiled(small_model(policy, **dropout), jit_compile=False)
    model.optimizer.learning_rate = 0.03
    history = model.fit(**EASY, epochs=12).history
    losses = history["loss"]
    assert losses[0] > 1.5
    assert losses[-1] < 0.3
    bits = np.multiply(history["bits_per_token"], np.log(2))
    np.testing.assert_allclose(bits, losses, rtol=1e-3)
    prediction = model.predict(EASY["x"], batch_size=B, verbose=0)
    assert (prediction.argmax(-1) == EASY["y"]).mean() > 0.95
    assert {w.dtype for w in model.weights} == {"float32"}


def test_weights_may_be_bfloat16_except_of_an_lstm(tmp_path):
    with pytest.raises(ValueError, match="`dtype` must not be 'bfloat16' for"):
        small_backbone("bfloat16", LSTMBackbone)
    model, exact = (
        small_model(dtype, cutoffs=(4,)) for dtype in ("bfloat16", "float32")
    )
    model.compile(keras.optimizers.SGD(0.5), jit_compile=False)
    losses = model.fit(**EASY, epochs=3).history["loss"]
    assert losses[-1] < losses[0] - 0.1
    assert {w.dtype for w in model.weights} == {"bfloat16"}
    weights = model.get_weights()
    exact.set_weights([w.astype("float32") for w in weights])
    nll, _ = model.score(X, Y)
    np.testing.assert_allclose(nll, exact.score(X, Y)[0], atol=0.1)
    assert len(model.generate(X[0], max_new_tokens=3, seed=1)) == T + 3
    model.save(tmp_path / "model.keras")
    model.save_to_preset(tmp_path / "preset")
    for loaded in (
        keras.saving.load_model(tmp_path / "model.keras"),
        TransformerXLCausalLM.from_preset(tmp_path / "preset"),
    ):
        assert_same(loaded.get_weights(), weights)


def test_evaluate_reads_the_text_in_order_with_memory(model):
    expected = nll_of(model).mean()
    result = model.evaluate(**ARRAYS)
    np.testing.assert_allclose(
        result, [expected, expected / np.log(2)], rtol=1e-5
    )
    without_memory, _ = model.score(X, Y)
    assert abs(np.mean(np.array(without_memory)) - expected) > 1e-4
    # It begins cold each time.
    model(X[:2])
    assert model.evaluate(**ARRAYS) == result


@pytest.mark.tensorflow
def test_fit_and_evaluate_compute_no_logits(monkeypatch):
    model = compiled(small_model(cutoffs=(4, 7)), run_eagerly=True)
    monkeypatch.setattr(model.softmax, "logits", None)
    monkeypatch.setattr(model.softmax, "log_probs", None)
    data = {**ARRAYS, "x": X[:B], "y": Y[:B]}
    expected = pytest.approx(nll_of(model, X[:B], Y[:B]).mean(), rel=1e-5)
    assert model.evaluate(**data)[0] == expected
    assert model.fit(**data).history["loss"][0] == expected
    compiled(model, metrics=["accuracy"], run_eagerly=True)
    with pytest.raises(TypeError, match="not callable"):
        model.fit(**data)


def test_sample_weights_weight_the_loss(model):
    model.optimizer.learning_rate = 0.0
    weights = np.zeros(X.shape, "float32")
    weights[:, 2] = 2.0
    nll = nll_of(model)[:, 2]
    fitted = model.fit(**ARRAYS, sample_weight=weights).history
    evaluated = model.evaluate(**ARRAYS, sample_weight=weights)
    for loss, bits in ([fitted["loss"], fitted["bits_per_token"]], evaluated):
        np.testing.assert_allclose(loss, 2 * nll.sum() / X.size, rtol=1e-5)
        np.testing.assert_allclose(bits, nll.mean() / np.log(2), rtol=1e-5)


def test_predict_gives_logits_with_memory(model):
    long = small_model(memory_length=X.size)
    long.set_weights(model.get_weights())
    logits = compiled(long).predict(X, batch_size=B, verbose=0)
    assert logits.shape == (*X.shape, V)
    for row in range(B):
        expected, _ = model.log_probs(X[row::B].reshape(1, -1))
        found = ops.log_softmax(logits[row::B].reshape(1, -1, V))
        np.testing.assert_allclose(found, expected, atol=1e-4)
    logits = model.predict(X, batch_size=B, verbose=0)
    again = model.predict(X, batch_size=B, verbose=0)
    np.testing.assert_array_equal(again, logits)
    np.testing.assert_array_equal(model.predict(SEGMENTS, verbose=0), logits)


def test_validation_does_not_disturb_training(rewind):
    other = {"x": X[::-1], "y": Y[::-1]}
    without = rewind().fit(**ARRAYS, epochs=3).history
    model = rewind()
    validation = tuple(other.values())
    history = model.fit(**ARRAYS, epochs=3, validation_data=validation).history
    np.testing.assert_allclose(history["loss"], without["loss"], rtol=1e-5)
    assert "val_loss" not in without
    # And it starts cold every time.
    expected = model.evaluate(**{**ARRAYS, **other})[0]
    assert history["val_loss"][-1] == pytest.approx(expected, rel=1e-5)


def test_a_saved_model_goes_on_training_as_it_would_have(model, tmp_path):
    model.fit(**ARRAYS, epochs=2)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert [w.path for w in loaded.weights] == [w.path for w in model.weights]
    model.reset_memory()
    np.testing.assert_allclose(loaded(X[:B]), model(X[:B]), atol=1e-6)
    expected = model.fit(**ARRAYS, epochs=2).history
    got = loaded.fit(**ARRAYS, epochs=2).history
    assert set(got) == {"loss", "bits_per_token"}
    np.testing.assert_allclose(got["loss"], expected["loss"], rtol=1e-4)


@pytest.mark.parametrize(
    "parts",
    [
        {"": False},
        {"token_embedding": False, "blocks.1": False},
        {"": False, "blocks.1": True},  # all but the last block
        {"blocks.0": False, "blocks.0.attention": True},
    ],
    ids=str,
)
def test_a_frozen_part_is_loaded_frozen(parts, tmp_path):
    model = small_model(num_layers=2)
    for name, trainable in parts.items():
        part = model.backbone
        for key in filter(None, name.split(".")):
            part = part[int(key)] if key.isdigit() else getattr(part, key)
        part.trainable = trainable
    compiled(model).optimizer.build(model.trainable_variables)
    model.save_to_preset(tmp_path / "preset")
    of_preset = TransformerXLCausalLM.from_preset(tmp_path / "preset")
    model.save(tmp_path / "model.keras")
    of_file = keras.saving.load_model(tmp_path / "model.keras")
    assert len(of_file.optimizer.variables) == len(model.optimizer.variables)
    expected = [weight.name for weight in model.trainable_weights]
    for loaded in (of_preset, of_file, keras.models.clone_model(model)):
        names = [weight.name for weight in loaded.trainable_weights]
        assert names == expected
    thawed = TransformerXLCausalLM.from_preset(
        tmp_path / "preset", trainable=True
    )
    assert len(thawed.trainable_weights) == len(model.weights)


def test_targets_that_the_loss_ignores_may_be_no_ids():
    loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=-1
    )
    model = small_model(num_layers=1)
    model.compile(None, loss)
    shown = np.arange(T) > 1
    found = model.evaluate(X[:B], np.where(shown, Y[:B], -1), B, verbose=0)
    expected = nll_of(model)[:B, shown].mean()
    assert found == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="`y` must hold integers"):
        model.evaluate(X[:B], np.where(shown, V, -1) + 0 * Y[:B], B, verbose=0)


def test_metrics_of_an_earlier_compile_are_gone():
    model = small_model(num_layers=1)
    for metrics in ([], ["accuracy"], None):
        model.compile("sgd", metrics=metrics)
        history = model.fit(**ARRAYS).history
    assert set(history) == {"loss", "bits_per_token"}


def test_a_loss_of_the_user_takes_the_place_of_the_default(tmp_path):
    loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=3
    )
    model = small_model()
    model.compile("sgd", loss, metrics=["accuracy"], run_eagerly=True)
    history = model.fit(**ARRAYS, validation_data=SEGMENTS).history
    assert set(history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    evaluated = model.evaluate(SEGMENTS, verbose=0)
    assert history["val_loss"][0] == pytest.approx(evaluated[0], rel=1e-6)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.loss.ignore_class == 3
    model.compile(None)  # to be evaluated only
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.evaluate(SEGMENTS, verbose=0)


def test_a_step_of_keras_reads_the_same():
    sgd = keras.optimizers.SGD(0.0)
    model = compiled(optimizer=sgd, metrics=["accuracy"])
    expected = pytest.approx(nll_of(model).mean(), rel=1e-5)
    # In every epoch memory is reset where the arrays begin again.
    for steps in (None, -(-len(X) // B)):
        fitted = model.fit(**ARRAYS, epochs=2, steps_per_epoch=steps)
        assert fitted.history["loss"] == [expected] * 2


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_biases_and_what_the_user_excludes_are_not_decayed(policy):
    model = small_model(policy, num_layers=1)
    # With an epsilon that large, there are no other updates.
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.3, epsilon=1e30)
    optimizer.exclude_from_weight_decay(var_names=["embeddings"])
    before = [np.array(w) for w in model.trainable_weights]
    for _ in range(2):  # also with an optimizer that has been built
        model.compile(optimizer)
        model.fit(SEGMENTS, verbose=0)
    kept = {
        w.name
        for w, old in zip(model.trainable_weights, before, strict=True)
        if old.any() and np.array_equal(w, old)
    }
    assert kept >= {"embeddings_0", "gamma"}
    assert not kept & {"kernel"}


def test_evaluate_and_predict_name_bad_arguments(model):
    for arguments, message in (
        ({**ARRAYS, "segment_length": 3}, "`segment_length` must be None"),
        ({"x": X, "y": Y}, "`batch_size` must be given"),
    ):
        with pytest.raises(ValueError, match=message):
            model.evaluate(**{"verbose": 0, **arguments})
    with pytest.raises(ValueError, match="`batch_size` must be given"):
        model.predict(X, verbose=0)
    for call in ("fit", "evaluate"):
        with pytest.raises(ValueError, match=r"must call `compile\(\)`"):
            getattr(small_model(num_layers=1), call)(**ARRAYS)


def test_a_batch_is_evaluated_after_a_call_of_evaluate(model):
    expected = model.test_on_batch(X[:B], Y[:B])
    model.evaluate(**ARRAYS)
    model.reset_memory()
    assert model.test_on_batch(X[:B], Y[:B]) == expected
    assert model.train_on_batch(X[:B].tolist(), Y[:B].tolist())[0] > 0
    with pytest.raises(ValueError, match="`x` must hold integers"):
        model.train_on_batch(X[:B] + 9, Y[:B])
    with pytest.raises(ValueError, match="`class_weight` must be None"):
        model.train_on_batch(X[:B], Y[:B], None, {0: 2.0})
    with pytest.raises(ValueError, match="`sample_weight` must have 3 rows"):
        model.train_on_batch(X[:3], Y[:3], np.ones(1))
    positions = np.arange(X.shape[1], dtype="float32")[None]
    losses = []
    for weights in (positions, positions.repeat(B, axis=0)):
        model.reset_memory()
        losses.append(model.test_on_batch(X[:B], Y[:B], weights))
    assert losses[0] == losses[1] != expected
    for shape in ((1, T - 1), (B - 1, T), (1, 1, T), (0, T), (B, T, 1)):
        with pytest.raises(ValueError, match="`sample_weight` must have the s"):
            model.test_on_batch(X[:B], Y[:B], np.ones(shape))
    for size in (len(X) - 1, len(X) + B):
        with pytest.raises(ValueError, match="`sample_weight` must have"):
            model.fit(**ARRAYS, sample_weight=np.ones(size))


def test_a_model_without_trainable_weights_and_one_metric_are_named():
    model = small_model()
    with pytest.raises(ValueError, match="`weighted_metrics` must be a list"):
        model.compile("sgd", weighted_metrics=Perplexity())
    model.trainable = False
    model.compile("sgd")
    with pytest.raises(ValueError, match="`model` must have trainable weigh"):
        model.fit(SEGMENTS, verbose=0)


@pytest.mark.parametrize(
    "loss",
    [
        *("sparse_categorical_crossentropy", "ce", "CategoricalCrossentropy"),
        keras.losses.sparse_categorical_crossentropy,
        keras.losses.SparseCategoricalCrossentropy,
        keras.losses.SparseCategoricalCrossentropy(),
        *(keras.losses.CategoricalCrossentropy(), keras.losses.KLDivergence()),
        *(keras.losses.Dice(), "dice"),
    ],
)
def test_a_loss_of_probabilities_is_refused(loss):
    with pytest.raises(ValueError, match=r"`loss` must take logits"):
        small_model().compile("sgd", loss)


def test_a_subclass_adds_layers_after_the_constructor(model):
    class Counting(TransformerXLCausalLM):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.unigrams = keras.layers.Dense(self.backbone.vocabulary_size)

        def call(self, token_ids, training=None):
            logits = super().call(token_ids, training=training)
            return logits + self.unigrams(keras.ops.ones_like(logits))

    extended = Counting(small_model().backbone)
    extended.compile(keras.optimizers.SGD(0.1))
    extended.fit(SEGMENTS, verbose=0)
    assert np.abs(extended.unigrams.bias).max() > 0
    assert len(extended.weights) == len(model.weights) + 2


def test_weights_of_samples_that_are_not_finite_are_named(model):
    weights = np.ones(len(ARRAYS["x"]))
    weights[1] = np.nan
    with pytest.raises(Exception, match="`sample_weight` must be finite"):
        model.fit(**{**ARRAYS, "sample_weight": weights})


def test_data_of_another_size_follows(model):
    """The graphs of the first size do not fit the next, nor a test below."""
    model.optimizer.learning_rate = 0.0
    for rows, length in ((B, T), (2, 5)):
        x, y = X[: 2 * rows, :length], Y[: 2 * rows, :length]
        data = {"x": x, "y": y, "batch_size": rows, "verbose": 0}
        expected = nll_of(model, x, y, rows).mean()
        assert model.evaluate(**data)[0] == pytest.approx(expected, rel=1e-5)
        loss = model.fit(**data).history["loss"][0]
        assert loss == pytest.approx(expected, rel=1e-5)
