import numpy as np
import pytest
import tensorflow as tf

from txl_keras.serving import Sampler

PROBABILITIES = np.array([0.5, 0.1, 0.25, 0.05, 0.1], "float32")
DRAWS = 20_000


def frequencies(sampler):
    log_probs = tf.tile(tf.math.log(PROBABILITIES)[None], [DRAWS, 1])
    ids = sampler(log_probs, seed=tf.constant([3, 4])).numpy()
    assert ids.dtype == np.int32
    return np.bincount(ids, minlength=5) / DRAWS


def assert_close(measured, expected):
    expected = np.array(expected) / np.sum(expected)
    np.testing.assert_allclose(measured, expected, atol=0.015)
    assert (measured[expected == 0] == 0).all()


def test_draws_follow_the_probabilities():
    assert_close(frequencies(Sampler()), PROBABILITIES)


def test_temperature_sharpens():
    assert_close(frequencies(Sampler(temperature=0.5)), PROBABILITIES**2)


def test_temperature_zero_is_greedy():
    assert_close(frequencies(Sampler(temperature=0)), [1, 0, 0, 0, 0])


def test_a_tiny_temperature_is_nearly_greedy():
    assert_close(frequencies(Sampler(temperature=1e-39)), [1, 0, 0, 0, 0])


def test_top_k_keeps_the_most_likely_and_ties():
    assert_close(frequencies(Sampler(top_k=2)), [0.5, 0, 0.25, 0, 0])
    assert_close(frequencies(Sampler(top_k=3)), [0.5, 0.1, 0.25, 0, 0.1])
    assert_close(frequencies(Sampler(top_k=99)), PROBABILITIES)


def test_top_p_keeps_the_fewest_that_reach_p():
    assert_close(frequencies(Sampler(top_p=0.4)), [1, 0, 0, 0, 0])
    assert_close(frequencies(Sampler(top_p=0.6)), [0.5, 0, 0.25, 0, 0])
    assert_close(frequencies(Sampler(top_p=1.0)), PROBABILITIES)


def test_top_k_and_top_p_combine_after_temperature():
    sampler = Sampler(temperature=0.5, top_k=3, top_p=0.7)
    assert_close(frequencies(sampler), [1, 0, 0, 0, 0])


def test_a_seed_repeats_and_another_differs():
    log_probs = tf.zeros((64, 9))
    draw = Sampler()
    first = draw(log_probs, tf.constant([1, 2])).numpy()
    np.testing.assert_array_equal(first, draw(log_probs, tf.constant([1, 2])))
    assert (first != draw(log_probs, tf.constant([1, 3])).numpy()).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": -1}, "temperature=-1"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_k": 0}, "top_k=0"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_p": 1.5}, "top_p=1.5"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Sampler(**arguments)
