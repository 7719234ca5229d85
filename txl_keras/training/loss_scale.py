"""Loss scaling, for float16."""

import tensorflow as tf


class LossScale:
    """A factor that keeps float16 gradients from becoming zero or infinite.

    The loss is multiplied by it, the summed gradients divided. It halves at a
    step whose gradient is not finite, and doubles after `GROWTH_STEPS` good
    ones (Micikevicius et al., 2018, section 3.2). Replicas change it alike,
    each its own copy, since they see the same sum. Keras's
    `LossScaleOptimizer` looks at the gradients of replica 0 before the sum.

    Made in the scope of a strategy; its methods are for replica context.

    Attributes:
        value, good_steps: `tf.Variable`s, float32 and int32.
    """

    INITIAL = 2.0**15
    SMALLEST = 1.0
    GROWTH_STEPS = 2000

    def __init__(self):
        self.value = tf.Variable(self.INITIAL, trainable=False)
        self.good_steps = tf.Variable(0, trainable=False)

    def scale(self, loss):
        """The loss to differentiate.

        Args:
            loss: float32 scalar.
        """
        return loss * self.value

    def unscale(self, gradients):
        """The gradients of the loss itself.

        Args:
            gradients: List of float32 tensors, those of the scaled loss.
        """
        factor = 1.0 / self.value
        return [gradient * factor for gradient in gradients]

    def update(self, is_finite):
        """Counts a step.

        Args:
            is_finite: Boolean scalar.
        """
        good_steps = tf.where(is_finite, self.good_steps + 1, 0)
        grows = good_steps >= self.GROWTH_STEPS
        value = tf.where(
            is_finite,
            tf.where(grows, self.value * 2.0, self.value),
            tf.maximum(self.value / 2.0, self.SMALLEST),
        )
        self.value.assign(value)
        self.good_steps.assign(tf.where(grows, 0, good_steps))
