"""`fit` and `evaluate` of datasets, wrong arguments, and backups."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from factories import V
from factories import assert_same
from small_fits import ARRAYS
from small_fits import SEGMENTS
from small_fits import B
from small_fits import T
from small_fits import X
from small_fits import Y
from small_fits import compiled
from small_fits import nll_of
from small_fits import small_model

from txl_keras.callbacks import BackupAndRestore
from txl_keras.metrics import BitsPerToken
from txl_keras.metrics import Perplexity
from txl_keras.training import Checkpoints
from txl_keras.training import Trainer

PAIRS = tf.data.Dataset.from_tensor_slices((X, Y)).batch(B)
DICTS = SEGMENTS.dataset(num_steps=len(SEGMENTS))


def test_datasets_are_evaluated_and_predicted_as_arrays(model):
    # The last batch may have fewer rows.
    data = tf.data.Dataset.from_tensor_slices((X[:-1], Y[:-1])).batch(B)
    expected = nll_of(model, X[:-1], Y[:-1]).mean()
    loss = model.evaluate(data, verbose=0)[0]
    assert loss == pytest.approx(expected, abs=1e-5)
    bare = DICTS.map(lambda b: {key: b[key] for key in ("inputs", "targets")})
    loss = model.evaluate(bare, verbose=0)[0]
    assert loss == pytest.approx(nll_of(model).mean(), abs=1e-5)
    data = tf.data.Dataset.from_tensor_slices(X).batch(B)
    logits = model.predict(X, batch_size=B, verbose=0)
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
        ({"x": "text", "segment_length": 0}, "`segment_length` must be an i"),
        ({**ARRAYS, "class_weight": {1: 2.0}}, "`class_weight` must be None"),
        ({**ARRAYS, "batch_size": 0}, "`batch_size` must be an integer"),
        # The default of Keras, 32, would read other samples as one text.
        ({"x": X, "y": Y}, "`batch_size` must be given"),
        ({"x": tf.Variable(X), "y": Y}, "`batch_size` must be given"),
        ({**ARRAYS, "y": tf.Variable(Y + V)}, "`y` must hold integers"),
        ({**ARRAYS, "shuffle": True}, "shuffle=True"),
        ({"x": SEGMENTS, "y": Y}, "`y` and `sample_weight` must be None"),
        ({"x": SEGMENTS, "batch_size": B + 1}, "batch size of the `Segments`"),
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
