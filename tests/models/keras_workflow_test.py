"""`compile`, `fit`, `evaluate`, `predict` and `save`, as a Keras user would.

Rows of a batch follow those of the batch before: batch k of B rows holds
`x[k * B : (k + 1) * B]`.
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
from factories import seed_weights
from factories import small_backbone
from factories import small_model as model_of

from txl_keras.callbacks import BackupAndRestore
from txl_keras.data import Segments
from txl_keras.metrics import BitsPerToken
from txl_keras.metrics import Perplexity
from txl_keras.models import LSTMBackbone
from txl_keras.models import TransformerXLCausalLM
from txl_keras.training import Checkpoints
from txl_keras.training import Trainer

B, T = 3, 7
SEGMENTS = Segments(random_ids(1, 64, seed=3)[0], B, T, drop_remainder=True)
X, Y = SEGMENTS.arrays()
PAIRS = tf.data.Dataset.from_tensor_slices((X, Y)).batch(B)
DICTS = SEGMENTS.dataset(num_steps=len(SEGMENTS))
ARRAYS = {"x": X, "y": Y, "batch_size": B, "verbose": 0}
_easy = Segments(np.arange(89) % 5, B, T, drop_remainder=True)
EASY = dict(zip("xy", _easy.arrays(), strict=True), batch_size=B, verbose=0)


def small_model(dtype=None, **config):
    """With one block: Keras takes seconds to trace `fit` through more."""
    return model_of(dtype, **{"num_layers": 1, **config})


def nll_of(model, x=X, y=Y, batch_size=B):
    """Losses of batches, of which the last may have fewer rows."""
    memory, losses = model.initial_memory(batch_size), []
    for start in range(0, len(x), batch_size):
        rows = slice(start, start + batch_size)
        memory = rows_of(memory, slice(len(x[rows])))
        nll, memory = model.score(x[rows], y[rows], memory)
        losses.append(nll)
    return np.concatenate(losses)


def compiled(model=None, optimizer=None, **config):
    model = model or small_model()
    model.compile(optimizer or keras.optimizers.Adam(0.01), **config)
    return model


@pytest.fixture(scope="module")
def rewind():
    seed_weights(1)
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
    # The last batch may have fewer rows.
    data = tf.data.Dataset.from_tensor_slices((X[:-1], Y[:-1])).batch(B)
    expected = nll_of(model, X[:-1], Y[:-1]).mean()
    loss = model.evaluate(data, verbose=0)[0]
    assert loss == pytest.approx(expected, abs=1e-5)
    expected = nll_of(model).mean()
    result = model.evaluate(**ARRAYS)
    np.testing.assert_allclose(
        result, [expected, expected / np.log(2)], rtol=1e-5
    )
    without_memory, _ = model.score(X, Y)
    assert abs(np.mean(without_memory) - expected) > 1e-3
    # It begins cold each time.
    model(X[:2])
    assert model.evaluate(**ARRAYS) == result


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
        found = tf.nn.log_softmax(logits[row::B].reshape(1, -1, V))
        np.testing.assert_allclose(found, expected, atol=1e-4)
    logits = model.predict(X, batch_size=B, verbose=0)
    again = model.predict(X, batch_size=B, verbose=0)
    np.testing.assert_array_equal(again, logits)
    for data in (SEGMENTS, tf.data.Dataset.from_tensor_slices(X).batch(B)):
        np.testing.assert_array_equal(model.predict(data, verbose=0), logits)


@pytest.mark.parametrize("name", ["x", "y"])
def test_ids_outside_of_the_vocabulary_never_reach_the_weights(model, name):
    before = model.get_weights()
    for bad in (V, -1):
        wrong = {**ARRAYS, name: ARRAYS[name].copy()}
        wrong[name][1, 2] = bad
        with pytest.raises(ValueError, match=f"`{name}` must hold integers"):
            model.fit(**wrong)
        dataset = tf.data.Dataset.from_tensors((wrong["x"][:B], wrong["y"][:B]))
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="must hold integers in"
        ):
            model.fit(dataset, verbose=0)
    assert_same(model.get_weights(), before)


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


def test_a_frozen_backbone_is_loaded_frozen(tmp_path):
    model = small_model()
    model.backbone.trainable = False
    compiled(model).optimizer.build(model.trainable_variables)
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


def test_a_step_of_keras_reads_the_same():
    sgd = keras.optimizers.SGD(0.0)
    model = compiled(optimizer=sgd, metrics=["accuracy"])
    loss = model.fit(**ARRAYS).history["loss"][0]
    assert loss == pytest.approx(nll_of(model).mean(), rel=1e-5)


def generated(*sizes):
    """Yields batches of sizes `(rows, length)`."""
    for rows, length in sizes:
        yield X[:rows, :length], Y[:rows, :length]


def batches(*sizes):
    """Returns a dataset of batches `(B, T)` that are not known before."""
    spec = tf.TensorSpec([None, None], tf.int32)
    return tf.data.Dataset.from_generator(
        lambda: generated(*sizes), output_signature=(spec, spec)
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({**ARRAYS, "x": X[:0], "y": Y[:0]}, "`x` must not be empty"),
        ({"x": batches()}, "`x` must not be empty"),
        ({"x": PAIRS.take(0)}, "`x` must not be empty"),
        ({**ARRAYS, "x": X[:, :0], "y": Y[:, :0]}, "`x` must not be empty"),
        ({**ARRAYS, "x": X[0], "y": Y[0]}, "`x` must have the shape"),
        ({"x": PAIRS.unbatch()}, "`x` must have .* Each batch must"),
        *(
            (
                {"x": tf.data.Dataset.from_tensors(without_targets)},
                "`x` must be `Segments`, arrays",
            )
            for without_targets in (X, {"inputs": X}, {"x": X, "y": Y})
        ),
        ({"x": [[1, 2]], "y": [[2, 3]]}, "`x` must be an array, text"),
        ({"x": None}, "`x` must be an array, text"),
        ({**ARRAYS, "segment_length": 3}, "`segment_length` must be None"),
        ({"x": SEGMENTS, "segment_length": 3}, "`segment_length` must be N"),
        ({**ARRAYS, "class_weight": {1: 2.0}}, "`class_weight` must be None"),
        ({**ARRAYS, "batch_size": 0}, "`batch_size` must be an integer"),
        # The default of Keras, 32, would read other samples as one text.
        ({"x": X, "y": Y}, "`batch_size` must be given"),
        ({"x": tf.Variable(X), "y": Y}, "`batch_size` must be given"),
        ({**ARRAYS, "y": tf.Variable(Y + V)}, "`y` must hold integers"),
        ({**ARRAYS, "shuffle": True}, "shuffle=True"),
        ({"x": SEGMENTS, "y": Y}, "`y` and `sample_weight` must be None"),
        ({"x": SEGMENTS, "batch_size": B + 1}, "that of the `Segments`"),
        ({**ARRAYS, "validation_split": 0.5}, "`validation_split` must be 0"),
        ({"x": PAIRS, "sample_weight": Y}, "`sample_weights` should not be"),
        ({"x": PAIRS.repeat()}, "`steps_per_epoch`, .* must be given"),
        (
            {"x": SEGMENTS, "validation_data": (X, Y)},
            "`validation_batch_size` as `batch_size`: `batch_size` must be",
        ),
        (
            {**ARRAYS, "validation_data": (X + V, Y)},
            "In `validation_data`, .*: `x` must hold integers",
        ),
    ],
)
def test_bad_arguments_are_named(model, arguments, message):
    with pytest.raises(ValueError, match=message):
        model.fit(**{"verbose": 0, **arguments})


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


def test_no_batch_may_differ_but_the_last_one(rewind):
    """Its rows go on where those of the batches before end."""
    weights = []
    for make in (batches, generated):
        model = rewind()
        model.fit(make((B, T), (B, T), (B - 1, T)), verbose=0)
        weights.append(model.get_weights())
        assert model.fit_steps.trainer.batch_size == B
        for sizes, message in (
            ([(B, T), (B + 1, T)], "All batches must have the shape"),
            ([(3, T), (3, T - 1)], "All batches must have the shape"),
            ([(B, T), (B - 1, T), (B, T)], "only the last may have fewer"),
        ):
            with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                model.fit(make(*sizes), verbose=0)
    assert_same(*weights, atol=1e-6)


def test_a_text_that_is_read_again_begins_cold(model):
    """Also if batches have an entry `reset` that says otherwise."""
    no_resets = {"reset": np.zeros(B, bool)}
    dataset = DICTS.map(lambda batch: {**batch, **no_resets})
    model.optimizer.learning_rate = 0.0
    losses = model.fit(dataset, epochs=2, verbose=0).history["loss"]
    losses += model.fit(dataset, verbose=0).history["loss"]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-6)


@pytest.mark.parametrize("data", [ARRAYS, {"x": PAIRS}, {"x": SEGMENTS}])
def test_the_memory_lasts_where_an_epoch_ends_within_the_text(rewind, data):
    model = rewind()
    data = {"verbose": 0, **data}
    model.fit(**data)
    expected = model.get_weights()
    assert len(SEGMENTS) == 3
    rewind().fit(**data, epochs=3, steps_per_epoch=1)
    assert_same(model.get_weights(), expected, atol=1e-6)


def test_a_step_without_targets_changes_nothing(model):
    before = model.get_weights()
    weights = {"weights": np.zeros((B, T), "float32")}
    keys = ("inputs", "targets", "reset")
    dataset = DICTS.map(lambda b: {**{key: b[key] for key in keys}, **weights})
    assert model.fit(dataset, verbose=0).history["loss"] == [0.0]
    assert_same(before, model.get_weights())


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


def test_data_of_another_size_follows(model):
    """The graphs of the first size do not fit the next."""
    model.optimizer.learning_rate = 0.0
    for rows, length in ((B, T), (2, 5)):
        x, y = X[: 2 * rows, :length], Y[: 2 * rows, :length]
        data = {"x": x, "y": y, "batch_size": rows, "verbose": 0}
        expected = nll_of(model, x, y, rows).mean()
        assert model.evaluate(**data)[0] == pytest.approx(expected, rel=1e-5)
        loss = model.fit(**data).history["loss"][0]
        assert loss == pytest.approx(expected, rel=1e-5)


def test_a_backup_needs_a_path_which_may_be_of_the_home_folder(
    monkeypatch, tmp_path
):
    for wrong in ("", None, 5, b"backup"):
        with pytest.raises(ValueError, match="`backup_dir` must be a path th"):
            BackupAndRestore(wrong)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert BackupAndRestore("~/backup").backup_dir == str(tmp_path / "backup")


def test_a_backup_leaves_other_files_alone(model, tmp_path):
    tmp_path.joinpath("notes").mkdir()
    tmp_path.joinpath("notes", "mine.txt").write_text("kept")
    backup = BackupAndRestore(tmp_path)
    model.fit(SEGMENTS, callbacks=[backup], verbose=0)
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]
    assert tmp_path.joinpath("notes", "mine.txt").read_text() == "kept"


def test_a_backup_of_something_else_is_neither_read_nor_removed(
    rewind, tmp_path
):
    model = compiled()
    strategy = tf.distribute.get_strategy()
    trainer = Trainer(model, model.optimizer, strategy, B, seed=0)
    checkpoints = Checkpoints(str(tmp_path / "run"), trainer)
    checkpoints.save()
    checkpoints.wait()
    sgd = keras.optimizers.SGD(0.1, momentum=0.9)
    for folder, one in (
        ("fit", rewind()),
        ("momentum", compiled(optimizer=sgd, run_eagerly=True)),
    ):
        backup = BackupAndRestore(tmp_path / folder, delete_checkpoint=False)
        one.fit(SEGMENTS, callbacks=[backup], verbose=0)
    metrics = [BitsPerToken(), Perplexity()]
    for other, folder in (
        (compiled(), "run"),
        (compiled(), "momentum"),
        (compiled(optimizer="sgd"), "fit"),
        (compiled(small_model(num_layers=2)), "fit"),
        (compiled(weighted_metrics=metrics), "fit"),
    ):
        before = other.get_weights()
        files = sorted(tmp_path.joinpath(folder).iterdir())
        callbacks = [BackupAndRestore(tmp_path / folder)]
        with pytest.raises(ValueError, match="`backup_dir` must be empty, or"):
            other.fit(SEGMENTS, epochs=2, callbacks=callbacks, verbose=0)
        assert sorted(tmp_path.joinpath(folder).iterdir()) == files
        assert_same(before, other.get_weights())


class _Interrupt(keras.callbacks.Callback):
    """Interrupts `fit` after one epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        if hasattr(self, "has_begun"):
            raise KeyboardInterrupt
        self.has_begun = True


@pytest.mark.parametrize("data", [PAIRS.repeat(), PAIRS, SEGMENTS])
def test_a_backup_goes_on_with_the_data_of_a_later_epoch(
    data, rewind, tmp_path
):
    def fit(*callbacks):
        settings = {"steps_per_epoch": 2, "initial_epoch": 1, "epochs": 4}
        fitted = model.fit(data, **settings, callbacks=callbacks, verbose=0)
        return fitted.history["loss"]

    model = rewind()
    losses = fit()
    assert losses[1] - losses[2] > 0.001
    expected = model.get_weights()
    for callbacks in ([_Interrupt()], [_Interrupt()], []):
        model = rewind()
        if callbacks:
            with pytest.raises(KeyboardInterrupt):
                fit(BackupAndRestore(tmp_path), *callbacks)
        else:
            # Of the last epoch alone.
            resumed = fit(BackupAndRestore(tmp_path))
    assert resumed == pytest.approx(losses[2:], rel=1e-6)
    assert_same(model.get_weights(), expected, atol=1e-6)


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
        "sparse_categorical_crossentropy",
        keras.losses.SparseCategoricalCrossentropy(),
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
