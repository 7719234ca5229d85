"""Updates of a replica's weights by gradients that are already summed."""

import keras
import tensorflow as tf
from keras import ops

from txl_keras import keras_internals
from txl_keras.weights import takes_weight_decay


def apply_gradients(optimizer, gradients, variables):
    """Updates this replica's own copies of the weights.

    Keras's `optimizer.apply` would sum the gradients over replicas a second
    time. Here all replicas get the same gradients, so their copies stay equal.
    The caller increments `iterations`, because it knows which steps count.
    """
    learning_rate = ops.convert_to_tensor(optimizer.learning_rate)
    for gradient, variable in zip(gradients, variables, strict=True):
        if optimizer.clipnorm:
            gradient = tf.clip_by_norm(gradient, optimizer.clipnorm)
        if optimizer.clipvalue:
            limit = optimizer.clipvalue
            gradient = ops.clip(gradient, -limit, limit)
        # `_use_weight_decay` respects `exclude_from_weight_decay`.
        if (
            optimizer.weight_decay
            and takes_weight_decay(variable)
            and optimizer._use_weight_decay(variable)
        ):
            rate = ops.cast(learning_rate, variable.dtype)
            decay = variable * optimizer.weight_decay * rate
            optimizer.assign_sub(variable, decay)
        optimizer.update_step(gradient, variable, learning_rate)


def accumulate(optimizer, gradients, variables):
    """Returns the mean gradient over `gradient_accumulation_steps` batches."""
    # Also returns `finish(is_finite)`. If the gradients are finite, this
    # function keeps the sum for the next batch. It returns whether to apply the
    # mean now.
    steps = optimizer.gradient_accumulation_steps
    if not steps:
        return gradients, lambda is_finite: is_finite
    sums = keras_internals.gradient_sums(optimizer, variables)
    totals = [
        gradient + tf.cast(total, gradient.dtype)
        for gradient, total in zip(gradients, sums, strict=True)
    ]
    count = tf.convert_to_tensor(keras_internals.num_batches(optimizer))
    is_last = (count + 1) % steps == 0

    def finish(is_finite):
        for variable, total in zip(sums, totals, strict=True):
            kept = tf.where(is_last, tf.zeros_like(total), total)
            kept = tf.cast(kept, variable.dtype)
            variable.assign(tf.where(is_finite, kept, variable))
        return is_finite & is_last

    return [total / steps for total in totals], finish


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
        self.good_steps = tf.Variable(0, trainable=False, dtype=tf.int64)

    def update(self, is_finite):
        """Updates the scale after a step whose gradient was finite or not."""
        good_steps = tf.cast(is_finite, tf.int64) * (self.good_steps + 1)
        grows = good_steps >= self.GROWTH_STEPS
        value = tf.where(
            is_finite,
            tf.where(grows, self.value * 2.0, self.value),
            tf.maximum(self.value / 2.0, self.SMALLEST),
        )
        self.value.assign(value)
        self.good_steps.assign(tf.cast(~grows, tf.int64) * good_steps)


def check_supported(optimizer):
    """Checks that `apply_gradients` supports the settings of an optimizer."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            "`optimizer` must not scale the loss, because training in float16 "
            "does that. Pass the inner optimizer. Received: optimizer="
            "LossScaleOptimizer"
        )
    kind, base = type(optimizer), keras.optimizers.Optimizer
    if not issubclass(kind, base):
        raise ValueError(
            "`optimizer` must be an optimizer of Keras or of "
            f"`build_optimizer`. Received: optimizer={optimizer!r}"
        )
    if kind is keras.optimizers.Muon or any(
        getattr(kind, hook) is not getattr(base, hook)
        for hook in ("apply", "_backend_update_step")
    ):
        raise ValueError(
            "`optimizer` must update each weight only with its `update_step`. "
            "Use `txl_keras.optimizers.Muon` instead of Keras's, and Adam "
            f"instead of Nadam. Received: optimizer={kind.__name__}"
        )
    if optimizer.ema_overwrite_frequency:
        raise ValueError(
            "`optimizer.ema_overwrite_frequency` must be None. Use "
            "`keras.callbacks.SwapEMAWeights`. Received: "
            f"ema_overwrite_frequency={optimizer.ema_overwrite_frequency}"
        )


def check_weights(optimizer, weights):
    """Checks that an optimizer was built for these weights, which may be fewer.

    Keras pairs moving averages with weights by their order.
    """
    optimizer._check_variables_are_known(weights)
    known = len(optimizer._trainable_variables)
    if optimizer.use_ema and len(weights) < known:
        raise ValueError(
            "`optimizer` must be a new one, because it has `use_ema` and some "
            "of its weights are now frozen. Received: an optimizer of "
            f"{known} weights for {len(weights)}"
        )
