import keras
import numpy as np
import pytest

from txl_keras.training import optimizers


def test_keras_asks_the_optimizer_to_sum_gradients_by_the_hook_we_override():
    # A private name: if it goes away, gradients would be summed twice.
    hook = "_all_reduce_sum_gradients"
    assert callable(getattr(keras.optimizers.Adam, hook))
    assert getattr(optimizers.Adam, hook) is not getattr(
        keras.optimizers.Adam, hook
    )


def test_first_step_moves_even_where_gradients_are_tiny():
    weights = keras.Variable([1.0, 1.0])
    optimizer = optimizers.Adam(0.1)
    optimizer.build([weights])
    optimizer.apply([keras.ops.array([1e-6, -3.0])], [weights])
    # Adam moves by the learning rate in its first step.
    np.testing.assert_allclose(weights.numpy(), [0.9, 1.1], atol=4e-3)


def test_adam_round_trips_through_its_config():
    config = optimizers.Adam(0.3, beta_2=0.98).get_config()
    revived = optimizers.Adam.from_config(config)
    assert revived.get_config() == config
    assert config["epsilon"] == 1e-9


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
