"""Loss scaling, for float16."""

import tensorflow as tf


class LossScale:
    """Scales the loss so that float16 gradients neither vanish nor overflow.

    The scale halves at a step whose gradient is not finite, and doubles after
    `GROWTH_STEPS` good steps in a row (Micikevicius et al., 2018, section 3.2).
    Each replica updates its own copy; the copies stay equal because all
    replicas see the same sum. Keras's `LossScaleOptimizer` checks the gradients
    of replica 0 before the sum.
    """

    INITIAL = 2.0**15
    SMALLEST = 1.0
    GROWTH_STEPS = 2000

    def __init__(self):
        self.value = tf.Variable(self.INITIAL, trainable=False)
        self.good_steps = tf.Variable(0, trainable=False)

    def update(self, is_finite):
        """Updates the scale after a step whose gradient was finite or not."""
        good_steps = tf.where(is_finite, self.good_steps + 1, 0)
        grows = good_steps >= self.GROWTH_STEPS
        value = tf.where(
            is_finite,
            tf.where(grows, self.value * 2.0, self.value),
            tf.maximum(self.value / 2.0, self.SMALLEST),
        )
        self.value.assign(value)
        self.good_steps.assign(tf.where(grows, 0, good_steps))
