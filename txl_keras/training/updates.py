"""Updates of a replica's weights by gradients that are already summed."""

import keras
import tensorflow as tf
from keras import ops


def takes_weight_decay(variable):
    """Returns whether weight decay applies: not to biases and layer norms."""
    is_norm = variable.name in ("gamma", "beta")
    return "bias" not in variable.name and not is_norm


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
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            "`optimizer` must not scale the loss, which training in float16 "
            "does by itself. Pass the inner optimizer. Received: optimizer="
            "LossScaleOptimizer"
        )
    kind, base = type(optimizer), keras.optimizers.Optimizer
    if kind is keras.optimizers.Muon or any(
        getattr(kind, hook) is not getattr(base, hook)
        for hook in ("apply", "_backend_update_step")
    ):
        raise ValueError(
            "`optimizer` must update each weight by its `update_step` alone. "
            "Use `txl_keras.training.Muon` instead of Keras's, and Adam "
            f"instead of Nadam. Received: optimizer={kind.__name__}"
        )
    for name, remedy in (
        ("gradient_accumulation_steps", "Train with larger batches"),
        ("ema_overwrite_frequency", "Use `keras.callbacks.SwapEMAWeights`"),
    ):
        if getattr(optimizer, name):
            raise ValueError(
                f"`optimizer.{name}` must be None. {remedy}. Received: {name}="
                f"{getattr(optimizer, name)}"
            )
