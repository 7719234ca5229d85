import keras
import numpy as np
import pytest

from txl_keras.training import optimizers


@pytest.mark.parametrize(
    ("ours", "keras_own"),
    [
        (optimizers.Adam, keras.optimizers.Adam),
        (optimizers.Lamb, keras.optimizers.Lamb),
    ],
)
def test_keras_asks_the_optimizer_to_sum_gradients_by_the_hook_we_override(
    ours, keras_own
):
    # A private name: if it goes away, gradients would be summed twice.
    hook = "_all_reduce_sum_gradients"
    assert callable(getattr(keras_own, hook))
    assert getattr(ours, hook) is not getattr(keras_own, hook)
    assert issubclass(ours, keras_own)
    assert ours in optimizers.OPTIMIZERS.values()


def test_lamb_moves_a_weight_by_a_share_of_its_norm():
    # Algorithm 2 of You et al., 2020, for two steps.
    values, gradients = np.array([3.0, 4.0]), [[0.1, -2.0], [0.3, 1.0]]
    weights = keras.Variable(values)
    optimizer = optimizers.Lamb(0.1)
    optimizer.build([weights])
    m, v = np.zeros(2), np.zeros(2)
    for step, gradient in enumerate(np.array(gradients), 1):
        optimizer.apply([keras.ops.array(gradient)], [weights])
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient**2
        update = m / (1 - 0.9**step) / (np.sqrt(v / (1 - 0.999**step)) + 1e-7)
        share = np.linalg.norm(values) / np.linalg.norm(update)
        values = values - 0.1 * share * update
        np.testing.assert_allclose(weights.numpy(), values, rtol=1e-5)


def test_lamb_moves_weights_that_begin_as_zeros():
    weights = keras.Variable([0.0, 0.0])
    optimizer = optimizers.Lamb(0.1)
    optimizer.build([weights])
    optimizer.apply([keras.ops.array([0.5, -3.0])], [weights])
    np.testing.assert_allclose(weights.numpy(), [-0.1, 0.1], rtol=1e-4)


def test_first_step_moves_even_where_gradients_are_tiny():
    weights = keras.Variable([1.0, 1.0])
    optimizer = optimizers.Adam(0.1)
    optimizer.build([weights])
    optimizer.apply([keras.ops.array([1e-6, -3.0])], [weights])
    # Adam moves by the learning rate in its first step.
    np.testing.assert_allclose(weights.numpy(), [0.9, 1.1], atol=4e-3)


@pytest.mark.parametrize("name", list(optimizers.OPTIMIZERS))
def test_optimizers_round_trip_through_their_config(name):
    optimizer = optimizers.OPTIMIZERS[name](0.3, beta_2=0.98)
    content = keras.saving.serialize_keras_object(optimizer)
    revived = keras.saving.deserialize_keras_object(content)
    assert type(revived) is type(optimizer)
    assert revived.get_config() == optimizer.get_config()
    assert optimizers.Adam().epsilon == 1e-9


def test_cosine_without_warmup_starts_at_the_peak_and_ends_at_the_floor():
    schedule = optimizers.cosine_schedule(2.0, 100, min_learning_rate=0.5)
    rates = [float(schedule(step)) for step in (0, 50, 100, 130)]
    np.testing.assert_allclose(rates, [2.0, 1.25, 0.5, 0.5], rtol=1e-6)


def test_cosine_subtracts_the_warmup():
    schedule = optimizers.cosine_schedule(2.0, 110, warmup_steps=10)
    rates = [float(schedule(step)) for step in (0, 5, 10, 60, 110)]
    np.testing.assert_allclose(rates, [0.0, 1.0, 2.0, 1.0, 0.0], atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.1, 10, 10), "warmup_steps.*max_steps=10"),
        ((0.0, 10), "learning_rate=0.0"),
        ((0.1, 10, 0, 0.2), "min_learning_rate=0.2"),
    ],
)
def test_schedules_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        optimizers.cosine_schedule(*arguments)
