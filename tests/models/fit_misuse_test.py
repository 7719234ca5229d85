"""Mistakes and interruptions of `fit`, `evaluate` and their callbacks."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from factories import V
from factories import assert_same
from factories import random_ids
from factories import rewinder
from factories import seed_weights
from factories import small_model

from txl_keras.callbacks import BackupAndRestore
from txl_keras.data import Segments
from txl_keras.metrics import BitsPerToken
from txl_keras.metrics import Perplexity
from txl_keras.training import Checkpoints
from txl_keras.training import Trainer

B, T = 3, 7
SEGMENTS = Segments(random_ids(1, 64, seed=3)[0], B, T, drop_remainder=True)
X, Y = SEGMENTS.arrays()
PAIRS = tf.data.Dataset.from_tensor_slices((X, Y)).batch(B)
DICTS = SEGMENTS.dataset(num_steps=len(SEGMENTS))
ARRAYS = {"x": X, "y": Y, "batch_size": B}


def new_model(metrics=None, momentum=0.0, eager=False, **config):
    seed_weights(5)
    model = small_model(**{"num_layers": 1, **config})
    sgd = keras.optimizers.SGD(0.1, momentum)
    model.compile(sgd, weighted_metrics=metrics, run_eagerly=eager)
    return model


@pytest.fixture(scope="module")
def rewind():
    return rewinder(new_model())


@pytest.fixture
def model(rewind):
    """Compiled model that tests share, with the weights it had at first."""
    return rewind()


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
        ({"x": X[:0], "y": Y[:0], "batch_size": B}, "`x` must not be empty"),
        ({"x": batches()}, "`x` must not be empty"),
        ({"x": PAIRS.take(0)}, "`x` must not be empty"),
        (
            {"x": X[:, :0], "y": Y[:, :0], "batch_size": B},
            "`x` must not be empty",
        ),
        ({"x": X[0], "y": Y[0], "batch_size": B}, "`x` must have the shape"),
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
        ({"x": SEGMENTS, "y": Y}, "`y` should not be passed"),
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
        model.fit(**arguments, verbose=0)


def test_evaluate_and_predict_name_bad_arguments(model):
    for arguments, message in (
        ({**ARRAYS, "segment_length": 3}, "`segment_length` must be None"),
        ({"x": X, "y": Y}, "`batch_size` must be given"),
    ):
        with pytest.raises(ValueError, match=message):
            model.evaluate(**arguments, verbose=0)
    with pytest.raises(ValueError, match="`batch_size` must be given"):
        model.predict(X, verbose=0)
    for call in ("fit", "evaluate"):
        with pytest.raises(ValueError, match=r"must call `compile\(\)`"):
            getattr(small_model(num_layers=1), call)(**ARRAYS)


# === Arrays, datasets and batches ===
# Another kind of data is compiled again: those of a kind stand together.


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
    model.fit(**data, verbose=0)
    expected = model.get_weights()
    assert len(SEGMENTS) == 3
    rewind().fit(**data, epochs=3, steps_per_epoch=1, verbose=0)
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
    model.evaluate(**ARRAYS, verbose=0)
    model.reset_memory()
    assert model.test_on_batch(X[:B], Y[:B]) == expected
    assert model.train_on_batch(X[:B].tolist(), Y[:B].tolist())[0] > 0
    with pytest.raises(ValueError, match="`x` must hold integers"):
        model.train_on_batch(X[:B] + 9, Y[:B])


def test_data_of_another_size_follows(model):
    """The graphs of the first size do not fit the next."""
    model.evaluate(**ARRAYS, verbose=0)
    model.fit(**ARRAYS, verbose=0)
    fresh = new_model()
    fresh.set_weights(model.get_weights())
    data = {"x": X[:6, :5], "y": Y[:6, :5], "batch_size": 2, "verbose": 0}
    assert model.evaluate(**data) == fresh.evaluate(**data)
    for one in (model, fresh):
        one.fit(**data)
    assert_same(model.weights, fresh.weights, atol=1e-6)


# === `Segments` ===


def test_a_loss_of_the_user_validates_on_segments():
    model = new_model()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(True))
    history = model.fit(SEGMENTS, validation_data=SEGMENTS, verbose=0).history
    assert history["val_loss"][0] == pytest.approx(
        model.evaluate(SEGMENTS, verbose=0), rel=1e-6
    )


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
    model = new_model()
    strategy = tf.distribute.get_strategy()
    trainer = Trainer(model, model.optimizer, strategy, B, seed=0)
    checkpoints = Checkpoints(str(tmp_path / "run"), trainer)
    checkpoints.save()
    checkpoints.wait()
    for folder, one in (
        ("fit", rewind()),
        ("momentum", new_model(momentum=0.9, eager=True)),
    ):
        backup = BackupAndRestore(tmp_path / folder, delete_checkpoint=False)
        one.fit(SEGMENTS, callbacks=[backup], verbose=0)
    for other, folder in (
        (new_model(), "run"),
        (new_model(), "momentum"),
        (new_model(momentum=0.9), "fit"),
        (new_model(num_layers=2), "fit"),
        (new_model(metrics=[BitsPerToken(), Perplexity()]), "fit"),
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
    model = new_model()
    with pytest.raises(ValueError, match="`weighted_metrics` must be a list"):
        model.compile("sgd", weighted_metrics=Perplexity())
    model.trainable = False
    model.compile("sgd")
    with pytest.raises(ValueError, match="`model` must have trainable weigh"):
        model.fit(SEGMENTS, verbose=0)
