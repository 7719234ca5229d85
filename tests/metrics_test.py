import math

import keras
import numpy as np
import pytest

from txl_keras.metrics import BitsPerToken
from txl_keras.metrics import bits_per_token
from txl_keras.metrics import perplexity


def test_a_fair_coin_is_one_bit_and_perplexity_two():
    nll = 0.6931471805599453  # ln 2
    assert bits_per_token(nll) == pytest.approx(1)
    assert perplexity(nll) == pytest.approx(2)
    assert bits_per_token(0.0) == 0
    assert perplexity(0.0) == 1


def test_arrays_are_converted_too():
    np.testing.assert_allclose(
        bits_per_token(np.array([1.3862943611, 2.0794415417])), [2, 3]
    )


def test_perplexity_of_an_exploded_model_is_infinite():
    assert perplexity(1e6) == math.inf
    assert math.isnan(perplexity(math.nan))


def test_metric_is_the_mean_over_all_characters():
    metric = BitsPerToken()
    metric.update_state(np.array([[1, 3]]), np.zeros((1, 2, 4)))
    assert float(metric.result()) == pytest.approx(2)
    # Probabilities 1/4 (2 bits) and 3/4 (0.415 bits).
    logits = np.log([[[0.25, 0.75], [0.25, 0.75]]])
    metric.update_state(np.array([[0, 1]]), logits)
    assert float(metric.result()) == pytest.approx((2 + 2 + 2 + 0.41503750) / 4)
    metric.reset_state()
    metric.update_state(np.array([[0, 1]]), logits)
    assert float(metric.result()) == pytest.approx((2 + 0.41503750) / 2)


def test_metric_weighs_characters():
    metric = BitsPerToken()
    logits = np.log([[[0.25, 0.75], [0.5, 0.5], [0.125, 0.875]]])
    metric.update_state(
        np.array([[0, 1, 0]]), logits, sample_weight=np.array([[1, 3, 0]])
    )
    assert float(metric.result()) == pytest.approx((2 + 3 * 1) / 4)


def test_metric_round_trips_through_its_config():
    metric = keras.metrics.deserialize(
        keras.metrics.serialize(BitsPerToken(name="bpc"))
    )
    assert isinstance(metric, BitsPerToken)
    assert metric.name == "bpc"
