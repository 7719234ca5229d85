import math

import keras
import numpy as np
import pytest
from factories import random_ids
from factories import small_model

from txl_keras.metrics import BitsPerByte
from txl_keras.metrics import BitsPerToken
from txl_keras.metrics import Perplexity
from txl_keras.metrics import bits_per_token
from txl_keras.metrics import perplexity

pytestmark = pytest.mark.every_backend


def test_a_fair_coin_is_one_bit_and_perplexity_two():
    nll = 0.6931471805599453  # ln 2
    assert bits_per_token(nll) == pytest.approx(1)
    assert perplexity(nll) == pytest.approx(2)
    assert bits_per_token(0.0) == 0
    assert perplexity(0.0) == 1


def test_perplexity_of_an_exploded_model_is_infinite():
    assert perplexity(1e6) == math.inf
    assert math.isnan(perplexity(math.nan))


METRICS = {
    "bits": (BitsPerToken, lambda total, weight, size: total / weight),
    "perplexity": (
        Perplexity,
        lambda total, weight, size: 2 ** (total / weight),
    ),
    "bytes": (
        lambda: BitsPerByte([3, 1, 0, 2]),
        lambda total, weight, size: total / size,
    ),
}


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("from_nll", [False, True])
def test_epoch_counts_targets_and_not_batches(name, from_nll):
    make, expected = METRICS[name]
    metric = make()
    rng = np.random.default_rng(3)
    total = weight = size = 0
    for length in (5, 2, 1):  # a ragged end
        targets = rng.integers(4, size=(3, length))
        logits = rng.normal(size=(3, length, 4))
        weights = rng.integers(3, size=(3, length))
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        nll = -np.take_along_axis(log_probs, targets[..., None], -1)[..., 0]
        total += (weights * nll).sum() / math.log(2)
        weight += weights.sum()
        size += (weights * np.array([3, 1, 0, 2])[targets]).sum()
        if from_nll:
            metric.update_from_nll(nll, weights, targets)
        else:
            metric.update_state(targets, logits, weights)
    result = float(metric.result())
    assert result == pytest.approx(expected(total, weight, size), rel=1e-5)
    metric.reset_state()
    metric.update_from_nll(
        np.full((1, 2), math.log(2)), None, np.array([[1, 3]])
    )
    assert float(metric.result()) == pytest.approx(expected(2, 2, 3))


@pytest.mark.parametrize("name", METRICS)
def test_one_target_per_row_counts_like_a_segment(name):
    rng = np.random.default_rng(5)
    targets, logits = rng.integers(4, size=5), rng.normal(size=(5, 4))
    weights, results = rng.random(5), []
    for axes, y, w in (
        ((), targets, weights),
        ((), targets[:, None], weights[:, None]),
        ((1,), targets[:, None], weights),
        ((1,), targets[:, None, None], weights[:, None]),
        ((1,), targets[:, None].tolist(), weights.tolist()),
    ):
        metric = METRICS[name][0]()
        y_pred = np.expand_dims(logits, axes)
        metric.update_state(
            y, y_pred.tolist() if isinstance(y, list) else y_pred, w
        )
        results.append(float(metric.result()))
    np.testing.assert_allclose(results, results[0], rtol=1e-6)
    with pytest.raises(ValueError, match=r"`y_true` must have .*\(5,\).*\(3,"):
        metric.update_state(targets[:3], logits)


@pytest.mark.parametrize("name", METRICS)
def test_targets_of_weight_zero_may_be_anything(name):
    metric = METRICS[name][0]()
    targets = np.array([[1, -1, 9], [-1, 9, -1]])
    logits = np.zeros((2, 3, 4))
    logits[0, 1], logits[1] = np.nan, np.inf
    metric.update_state(targets, logits, np.array([[1, 0, 0], [0, 0, 0]]))
    assert float(metric.result()) == pytest.approx(
        4 if name == "perplexity" else 2
    )


def test_a_weight_per_row_and_a_mask_of_the_model_count():
    metric = Perplexity()
    nll = np.array([[1.0, 2.0, 3.0], [5.0, 6.0, 7.0]])
    metric.update_from_nll(nll, np.array([1, 0]))
    assert float(metric.result()) == pytest.approx(math.exp(2))
    metric = BitsPerToken()
    logits = keras.ops.convert_to_tensor(np.log([[[0.25, 0.75], [0.5, 0.5]]]))
    logits._keras_mask = keras.ops.convert_to_tensor([[True, False]])
    metric.update_state(np.array([[0, 1]]), logits)
    assert float(metric.result()) == pytest.approx(2)


@pytest.mark.parametrize(
    "wrong", [0, -1, math.nan, "abc", None, True, [0, 0], [[1]], [1, -1], []]
)
def test_bytes_per_token_must_be_sizes(wrong):
    with pytest.raises(ValueError, match="`bytes_per_token` must be a number"):
        BitsPerByte(wrong)


def test_bytes_by_token_need_the_targets():
    with pytest.raises(ValueError, match="`targets` must be given"):
        BitsPerByte([1, 2]).update_from_nll(np.zeros((1, 1)))
    metric = BitsPerByte([1, 2])  # a target that it does not know
    metric.update_from_nll(np.ones((1, 1)), None, np.array([[2]]))
    assert math.isnan(float(metric.result()))


@pytest.mark.parametrize(
    "metric",
    [Perplexity("ppl"), BitsPerByte([1, 2], "b"), BitsPerToken("bpc")],
)
def test_metrics_keep_their_arguments(metric):
    copy = keras.metrics.deserialize(keras.metrics.serialize(metric))
    assert copy.get_config() == metric.get_config()
    assert type(copy) is type(metric)


def test_fit_and_evaluate_report_the_metrics_of_a_model():
    model = small_model(num_layers=1)
    model.compile(
        "sgd",
        weighted_metrics=["bits_per_token", "perplexity", BitsPerByte(2)],
    )
    ids = random_ids(3, 8)
    x, y = ids[:, :-1], ids[:, 1:]
    weights = np.random.default_rng(2).integers(2, size=y.shape)
    logs = model.evaluate(
        x, y, batch_size=3, sample_weight=weights, return_dict=True, verbose=0
    )
    nll = np.asarray(model.score(x, y)[0])
    mean = (nll * weights).sum() / weights.sum()
    assert logs["perplexity"] == pytest.approx(math.exp(mean), rel=1e-4)
    assert logs["bits_per_token"] == pytest.approx(mean / math.log(2), rel=1e-4)
    assert logs["bits_per_byte"] == pytest.approx(
        mean / math.log(2) / 2, rel=1e-4
    )
