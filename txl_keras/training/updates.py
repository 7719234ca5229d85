"""Updates of a replica's weights by gradients that are already summed."""

import keras
import tensorflow as tf
from keras import ops


def takes_weight_decay(variable):
    """Returns whether weight decay applies to a variable, judged by its name.

    Biases and the weights of layer normalization are not decayed.
    """
    return "bias" not in variable.name and variable.name not in (
        "gamma",
        "beta",
    )


def apply_gradients(optimizer, gradients, variables):
    """Updates this replica's own copies of the weights.

    Keras's `optimizer.apply` would sum the gradients over replicas a second
    time. Here all replicas get the same gradients, so their copies stay equal.
    The caller, who knows which steps count, updates `optimizer.iterations`.
    """
    learning_rate = ops.convert_to_tensor(optimizer.learning_rate)
    for gradient, variable in zip(gradients, variables, strict=True):
        if optimizer.clipnorm:
            gradient = tf.clip_by_norm(gradient, optimizer.clipnorm)
        if optimizer.clipvalue:
            limit = optimizer.clipvalue
            gradient = ops.clip(gradient, -limit, limit)
        # `_use_weight_decay` heeds `exclude_from_weight_decay`.
        if (
            optimizer.weight_decay
            and takes_weight_decay(variable)
            and optimizer._use_weight_decay(variable)
        ):
            rate = ops.cast(learning_rate, variable.dtype)
            decay = variable * optimizer.weight_decay * rate
            optimizer.assign_sub(variable, decay)
        optimizer.update_step(gradient, variable, learning_rate)
    optimizer._update_model_variables_moving_average(variables)


def check_supported(optimizer):
    """Checks that `apply_gradients` supports the settings of an optimizer."""
    kind, base = type(optimizer), keras.optimizers.Optimizer
    for is_wrong, expected in (
        (
            isinstance(optimizer, keras.optimizers.LossScaleOptimizer),
            "`optimizer` must not scale the loss, which training in float16 "
            "does by itself. Pass the inner optimizer",
        ),
        (
            kind is keras.optimizers.Muon
            or kind.apply is not base.apply
            or kind._backend_update_step is not base._backend_update_step,
            "`optimizer` must update each weight by its `update_step` alone. "
            "Use `txl_keras.training.Muon` instead of Keras's, and Adam "
            "instead of Nadam",
        ),
        (
            optimizer.gradient_accumulation_steps,
            "`optimizer.gradient_accumulation_steps` must be None. Train with "
            "larger batches",
        ),
        (
            optimizer.ema_overwrite_frequency,
            "`optimizer.ema_overwrite_frequency` must be None. Use "
            "`keras.callbacks.SwapEMAWeights`",
        ),
    ):
        if is_wrong:
            raise ValueError(f"{expected}. Received: optimizer={kind.__name__}")
