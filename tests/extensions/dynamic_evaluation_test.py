"""Dynamic evaluation, against the golden numbers and its properties."""

import signal

import numpy as np
import pytest
import tensorflow as tf
from checkpoints.stored_models import GOLDEN
from checkpoints.stored_models import assert_same_weights
from checkpoints.stored_models import load_tied
from checkpoints.stored_models import save_tf1
from checkpoints.stored_models import stored_arrays
from checkpoints.stored_models import stored_config
from factories import assert_same
from factories import random_ids
from factories import seed_weights
from factories import small_model

from txl_keras.checkpoints import load_tf1
from txl_keras.data import Segments
from txl_keras.evaluation import Evaluator
from txl_keras.evaluation.backup import Backup
from txl_keras.extensions import dynamic_evaluation
from txl_keras.extensions.dynamic_evaluation import DynamicEvaluator
from txl_keras.extensions.dynamic_evaluation import collect_mean_square
from txl_keras.extensions.dynamic_evaluation import load_tf1_mean_square
from txl_keras.models import LSTMBackbone
from txl_keras.models import TransformerXLBackbone
from txl_keras.training.stopping import StopRequest
from txl_keras.weights import weights_by_name

NAME = "dynamic_eval"
TF1_NAME = "lm1b_large_like"
LENGTH = 6


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN / NAME / "golden.npz") as arrays:
        return dict(arrays)


def golden_model(arrays):
    """The model of the golden numbers, with tensors of the original's names."""
    config = {k: v for k, v in stored_config(NAME).items() if k != "rules"}
    return load_tied(arrays, config)


def by_our_names(golden, prefix):
    """Numbers per weight, under the names and in the shapes of our weights."""
    arrays = {
        name.removeprefix(prefix): value
        for name, value in golden.items()
        if name.startswith(prefix)
    }
    return values_of(golden_model(arrays))


def values_of(model):
    return {n: np.array(v.numpy()) for n, v in weights_by_name(model).items()}


def one_row(tokens, length=LENGTH):
    return Segments(tokens, 1, length, drop_remainder=False)


def nll_of(evaluator, segments, **options):
    nll = np.empty(segments.num_predictions + 1, np.float32)
    evaluator.evaluate(segments, 1, token_nll=nll, **options)
    return nll


@pytest.fixture(scope="module")
def stored():
    return golden_model(stored_arrays(NAME))


@pytest.fixture(scope="module")
def expected_mean_square(golden):
    return by_our_names(golden, "mean_square/")


@pytest.fixture(scope="module")
def golden_evaluators(stored, expected_mean_square):
    """One evaluator of each kind of rule: to compile it takes seconds."""
    options = {
        "clip_decay": False,  # as in the code of the paper
        "segment_length": LENGTH,
    }
    epsilon = stored_config(NAME)["rules"]["rms"]["epsilon"]
    return {
        "sgd": DynamicEvaluator(stored, 0.0, **options),
        "rms": DynamicEvaluator(
            stored, 0.0, expected_mean_square, epsilon=epsilon, **options
        ),
    }


def test_statistics_equal_the_golden_ones(golden, stored, expected_mean_square):
    segments = one_row(golden["train_tokens"][:, 0])
    ours = collect_mean_square(stored, segments, len(segments))
    assert ours.keys() == expected_mean_square.keys()
    for name, value in expected_mean_square.items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("rule", ["sgd", "rms", "rms_decay"])
def test_scores_and_changes_equal_the_golden_ones(
    golden, stored, golden_evaluators, rule
):
    before, norms = values_of(stored), []
    settings = stored_config(NAME)["rules"][rule]
    evaluator = golden_evaluators[settings["kind"]]
    evaluator.learning_rate = settings["learning_rate"]
    evaluator.decay = settings["decay"]

    def on_progress(done, total):
        found = values_of(stored)
        change = [found[name] - before[name] for name in before]
        norms.append(np.sqrt(sum(np.square(part).sum() for part in change)))
        if done == total:
            expected = by_our_names(golden, f"{rule}/change/")
            for name, part in zip(before, change, strict=True):
                np.testing.assert_allclose(part, expected[name], atol=2e-5)

    segments = one_row(golden["tokens"][:, 0])
    nll = nll_of(evaluator, segments, on_progress=on_progress)
    np.testing.assert_allclose(
        nll[1:], golden[f"{rule}/nll"].reshape(-1), atol=2e-5
    )
    np.testing.assert_allclose(norms, golden[f"{rule}/change_norm"], rtol=1e-4)
    assert_same(values_of(stored).values(), before.values())


def test_the_mean_squares_of_adam_are_statistics(tmp_path):
    without_adam = GOLDEN / TF1_NAME / "model.ckpt"
    reader = tf.train.load_checkpoint(str(without_adam))
    names = reader.get_variable_to_shape_map()
    tensors = {name: reader.get_tensor(name) for name in names}
    for name, tensor in [*tensors.items()]:
        tensors[f"{name}/Adam"] = tensor + 1
        tensors[f"{name}/Adam_1"] = tensor**2
    tensors["global_step"] = np.int64(7)
    of_training = tmp_path / "model.ckpt-7"
    save_tf1(tensors, of_training)
    config = stored_config(TF1_NAME)
    model = load_tf1(of_training, config)
    assert_same_weights(model, load_tf1(without_adam, config))
    mean_square = load_tf1_mean_square(of_training, config)
    assert set(mean_square) == set(weights_by_name(model))
    for name, value in values_of(model).items():
        np.testing.assert_array_equal(mean_square[name], value**2)
    DynamicEvaluator(model, 1e-5, mean_square, batch_size=1, segment_length=8)
    with pytest.raises(ValueError, match="must hold the state of Adam"):
        load_tf1_mean_square(without_adam, config)


# === Properties ===


class _Stops(StopRequest):
    """Requests a stop after some segments."""

    def after(self, count):
        def on_progress(done, total):
            if done == count:
                self.signal = signal.SIGTERM

        return on_progress


@pytest.fixture(scope="module")
def model():
    seed_weights(3)
    return small_model(num_layers=1)


@pytest.fixture(scope="module")
def segments():
    return one_row(random_ids(3, 11)[0].repeat(3), 5)


@pytest.fixture(scope="module")
def mean_square(model, segments):
    return collect_mean_square(model, segments, 4)


@pytest.fixture(scope="module")
def stop():
    return _Stops()


@pytest.fixture(scope="module")
def compiled(model, mean_square, stop):
    """An evaluator of each rule: to compile its step takes a second."""
    return {
        rule: DynamicEvaluator(
            model, 0.0, statistics, segment_length=5, stop=stop
        )
        for rule, statistics in (("sgd", None), ("rms", mean_square))
    }


@pytest.fixture
def evaluator(compiled, stop):
    """Function that returns an evaluator of `model` with other rates."""
    stop.signal = None

    def evaluator(rule, learning_rate, decay=0.0):
        found = compiled[rule]
        found.learning_rate, found.decay = learning_rate, decay
        found.backup = None
        return found

    return evaluator


def test_a_rate_of_zero_is_static_scoring(evaluator, model, segments):
    static = Evaluator(model, tf.distribute.get_strategy(), 1, 5)
    nll = np.empty(segments.num_predictions + 1, np.float32)
    scores = evaluator("rms", 0.0).evaluate(segments, token_nll=nll)
    np.testing.assert_allclose(nll, nll_of(static, segments), atol=1e-5)
    assert scores["num_tokens"] == segments.num_predictions
    assert scores["nll"] == pytest.approx(np.nanmean(nll, dtype=np.float64))


def test_statistics_are_of_segments_from_all_of_the_text():
    # Of one block: its memory, of 7, depends on two segments and no others.
    model = small_model(num_layers=1, memory_length=7)
    segments = one_row(random_ids(1, 36)[0], 5)
    weights, memory, squares = weights_by_name(model), None, []
    for step in range(4):
        batch = segments.batch(step)
        with tf.GradientTape() as tape:
            nll, memory = model.score(batch["inputs"], batch["targets"], memory)
            loss = tf.reduce_mean(nll)
        gradients = tape.gradient(loss, weights)
        squares.append(
            {k: tf.convert_to_tensor(g) ** 2 for k, g in gradients.items()}
        )
    # The first segment of 7, and one half way through the text.
    found = collect_mean_square(model, segments, 2)
    assert len(segments) == 7 and found.keys() == weights.keys()
    for name, value in found.items():
        expected = (squares[0][name] + squares[3][name]) / 2
        np.testing.assert_allclose(value, expected, rtol=1e-3, atol=1e-6)


def test_a_clipped_decay_does_not_overshoot(model, segments):
    before, largest = values_of(model), []
    mean_square = {k: np.ones_like(v) for k, v in before.items()}

    def on_progress(done, total):
        found = values_of(model)
        largest.append(max(abs(found[k] - before[k]).max() for k in before))

    evaluator = DynamicEvaluator(
        model, 1e-3, mean_square, decay=9.0, segment_length=5
    )
    evaluator.evaluate(segments, 1, on_progress)
    # Each step begins where the weights were: it undoes the one before.
    assert max(largest) < 0.02


def change_by(evaluator, model, segments):
    """Returns how much an evaluation has changed each weight at its end."""
    before, change = values_of(model), {}

    def on_progress(done, total):
        found = values_of(model)
        change.update({name: found[name] - before[name] for name in before})

    evaluator.evaluate(segments, 1, on_progress)
    return change


def test_padding_of_a_last_segment_has_no_part_in_the_step(evaluator, model):
    ids = random_ids(1, 12)[0]
    # One segment of 5 of 7 targets: 5 / 7 of the step of its own mean.
    whole = change_by(evaluator("sgd", 0.5), model, one_row(ids[:6], 5))
    longer = DynamicEvaluator(model, 0.5, segment_length=7)
    padded = change_by(longer, model, one_row(ids[:6], 7))
    for name, full in whole.items():
        np.testing.assert_allclose(padded[name], full * 5 / 7, atol=1e-6)


def test_only_trainable_weights_change(segments):
    model = small_model(num_layers=1)
    model.backbone.trainable = False
    trainable = {id(weight.value) for weight in model.trainable_weights}
    expected = {
        name
        for name, variable in weights_by_name(model).items()
        if id(variable) in trainable
    }
    assert 0 < len(expected) < 3  # of the softmax
    statistics = collect_mean_square(model, segments, 2)
    assert statistics.keys() == expected
    evaluator = DynamicEvaluator(model, 1e-3, statistics, segment_length=5)
    change = change_by(evaluator, model, segments)
    assert {name for name, value in change.items() if value.any()} == expected


@pytest.mark.parametrize(
    "dtype, make",
    [("float32", LSTMBackbone), ("bfloat16", TransformerXLBackbone)],
)
def test_other_models_adapt(segments, dtype, make):
    model = small_model(dtype, make, num_layers=1)
    evaluator = DynamicEvaluator(model, 0.0, segment_length=5)
    static = evaluator.evaluate(segments)
    evaluator.learning_rate = 0.1
    assert evaluator.evaluate(segments)["nll"] < static["nll"]
    statistics = collect_mean_square(model, segments, 2)
    assert {x.dtype.name for x in statistics.values()} == {"float32"}


def test_a_stopped_evaluation_goes_on_bit_for_bit(
    evaluator, stop, model, segments, tmp_path, monkeypatch
):
    rms, path = evaluator("rms", 0.01, decay=0.5), tmp_path / "state"
    before = values_of(model)
    rms.backup = Backup(str(path), {"text": "a"})
    assert rms.evaluate(segments, 2, stop.after(4)) is None
    assert_same(values_of(model).values(), before.values())
    stop.signal = None
    rms.backup = Backup(str(path), {"text": "b"})
    with pytest.raises(ValueError, match="state holds .*remove the file"):
        rms.evaluate(segments)
    # What goes on after this has only the backup to go on from.
    rms.backup = None
    expected = nll_of(rms, segments)
    first = []
    rms.backup = Backup(str(path), {"text": "a"})
    resumed = nll_of(
        rms, segments, on_progress=lambda done, total: first.append(done)
    )
    assert first[0] > 4
    np.testing.assert_array_equal(resumed, expected)
    # The caller removes it when the scores are written.
    assert path.exists()
    rms.backup.remove()
    # A stop after the last segment is too late.
    monkeypatch.setattr(dynamic_evaluation, "_SECONDS_BETWEEN_BACKUPS", -1)
    saved = []
    monkeypatch.setattr(rms.backup, "save", lambda state: saved.append(state))
    scores = rms.evaluate(segments, 1, stop.after(len(segments)))
    assert scores["num_tokens"] == segments.num_predictions
    assert [int(x["done"]) for x in saved] == [*range(1, len(segments))]


def test_ruined_weights_are_warned_of(evaluator, segments):
    with pytest.warns(UserWarning, match="learning_rate=3.0"):
        evaluator("sgd", 3.0).evaluate(segments)


def test_weights_come_back_after_an_error(evaluator, model, segments):
    before = values_of(model)
    with pytest.raises(FloatingPointError, match="learning_rate"):
        evaluator("sgd", 1e30).evaluate(segments)
    assert_same(values_of(model).values(), before.values())


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"learning_rate": -1.0}, "`learning_rate`"),
        ({"decay": 0.1}, "`decay` must be 0 without `mean_square`"),
        ({"epsilon": 0.0}, "`epsilon`"),
    ],
)
def test_wrong_arguments_are_named(model, arguments, error):
    with pytest.raises(ValueError, match=error):
        DynamicEvaluator(model, **{"learning_rate": 0.1, **arguments})


def test_replicas_are_refused(model):
    one = tf.distribute.OneDeviceStrategy("cpu:0")
    with one.scope(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(one), "num_replicas_in_sync", 2)
        with pytest.raises(ValueError, match="must run on one replica"):
            DynamicEvaluator(model, 0.1)


def test_wrong_segments_and_statistics_are_refused(
    model, segments, mean_square
):
    with pytest.raises(ValueError, match="`segments` must fit"):
        DynamicEvaluator(model, 0.1, segment_length=4).evaluate(segments)
    with pytest.raises(ValueError, match="`num_segments`"):
        collect_mean_square(model, segments, len(segments) + 1)
    name, array = next(iter(mean_square.items()))
    others = {k: v for k, v in mean_square.items() if k != name}
    for wrong in (
        others,
        [*mean_square.values()],
        {**others, name: np.zeros((*array.shape, 2), np.float32)},
        {**others, name: np.full_like(array, np.nan)},
        {**others, name: -1 - array},
    ):
        with pytest.raises(ValueError, match=f"`mean_square` .* {name}"):
            DynamicEvaluator(model, 0.1, wrong, segment_length=5)
