import tensorflow as tf

from txl_keras.training.loss_scale import LossScale


def test_it_halves_where_a_gradient_is_not_finite_down_to_one():
    scale = LossScale()
    values = []
    for _ in range(18):
        scale.update(tf.constant(False))
        values.append(float(scale.value))
    assert values[:3] == [2.0**14, 2.0**13, 2.0**12]
    assert values[-4:] == [1.0, 1.0, 1.0, 1.0]


def test_it_doubles_after_enough_good_steps_in_a_row(monkeypatch):
    monkeypatch.setattr(LossScale, "GROWTH_STEPS", 3)
    scale = LossScale()
    values = []
    for is_finite in (True, True, False, True, True, True, True, True, True):
        scale.update(tf.constant(is_finite))
        values.append(float(scale.value) / 2**15)
    assert values == [1, 1, 0.5, 0.5, 0.5, 1, 1, 1, 2]
