import numpy as np
import pytest
import tensorflow as tf

from txl_keras.training.schedules import SCHEDULES
from txl_keras.training.schedules import build_schedule


def rates(schedule, *steps):
    return [float(schedule(tf.constant(step, tf.int64))) for step in steps]


COSINE = [2.0, 1.25, 0.5 + 0.75 * (1 + np.cos(0.99 * np.pi)), 0.5]
LINEAR = [2.0, 1.25, 0.515, 0.5]


@pytest.mark.parametrize(
    ("name", "warmup_steps", "expected"),
    [
        *(("cosine", 0, COSINE), ("cosine", 10, COSINE)),
        *(("linear", 10, LINEAR), ("constant", 10, [2.0] * 4)),
    ],
)
def test_values_down_to_a_floor(name, warmup_steps, expected):
    schedule = build_schedule(
        name,
        2.0,
        100 + warmup_steps,
        warmup_steps,
        min_learning_rate=0.0 if name == "constant" else 0.5,
    )
    if warmup_steps:
        assert rates(schedule, 0, 1, 5) == pytest.approx([0.0, 0.2, 1.0])
    steps = (warmup_steps + step for step in (0, 50, 99, 100))
    np.testing.assert_allclose(rates(schedule, *steps), expected, rtol=1e-6)
    floor = 2.0 if name == "constant" else 0.5
    assert rates(schedule, 4_000_000) == [floor]


@pytest.mark.parametrize("name", SCHEDULES)
def test_compiled_is_the_same_and_tells_late_steps_apart(name):
    schedule = build_schedule(name, 1.0, 4_000_000, 3_999_000)
    compiled = tf.function(schedule, jit_compile=True)
    steps = 0, 1, 3_998_998, 3_998_999, 3_999_000, 3_999_500, 4_000_000
    found = rates(compiled, *steps)
    np.testing.assert_allclose(found, rates(schedule, *steps), atol=2e-7)
    np.testing.assert_allclose(found[3] - found[2], 1 / 3_999_000, atol=6e-8)
    assert compiled(tf.constant(5, tf.int64)).dtype == tf.float32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("step", 0.1, 10), r"one of \('cosine', .*name='step'"),
        (("cosine", 0.1, 10, 10), "--warmup_steps=1, after.*max_steps=10"),
        (("linear", 0.1, 10, 11), "warmup_steps=11"),
        (("linear", 0.1, 10, 2.5), "warmup_steps=2.5"),
        (("cosine", 0.1, 0), "max_steps=0"),
        (("constant", float("inf"), 10), "learning_rate=inf"),
        (("linear", 0.1, 10, 0, 0.2), "min_learning_rate=0.2"),
        (("cosine", 0.1, 10, 0, -0.2), "min_learning_rate=-0.2"),
        (("constant", 0.1, 10, 0, 0.05), "min_learning_rate.*constant"),
    ],
)
def test_schedules_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        build_schedule(*arguments)
