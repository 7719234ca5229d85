"""Optimizers for gradients that are already summed over replicas."""

import keras


class _PreReduced:
    """Keeps Keras from summing gradients over replicas a second time.

    Keras clips before it sums, so that the norm would be that of one replica.
    The trainer therefore sums, then clips, and hands the result in here.
    A private hook of Keras 3: `optimizers_test.py` fails if it goes away.
    """

    def _all_reduce_sum_gradients(self, grads_and_vars):
        return list(grads_and_vars)


@keras.saving.register_keras_serializable(package="txl_keras")
class Adam(_PreReduced, keras.optimizers.Adam):
    """`keras.optimizers.Adam` for gradients summed over replicas before."""


def cosine_schedule(
    learning_rate, max_steps, warmup_steps=0, min_learning_rate=0.0
):
    """Linear warm-up, then half a cosine down to a floor.

    With `p = (step - warmup_steps) / (max_steps - warmup_steps)`:

        step < warmup_steps:  learning_rate * step / warmup_steps
        then:  floor + (learning_rate - floor) * (1 + cos(pi p)) / 2

    The convention of the original TensorFlow code, which takes the warm-up
    off the cosine; its PyTorch code does not, and jumps.

    Args:
        learning_rate: Float, the peak.
        max_steps: Integer, the step at which the floor is reached.
        warmup_steps: Integer.
        min_learning_rate: Float, the floor.

    Returns:
        `keras.optimizers.schedules.CosineDecay`.

    Raises:
        ValueError: If the warm-up does not end before `max_steps`.
    """
    if not 0 <= warmup_steps < max_steps:
        raise ValueError(
            "`warmup_steps` must be at least 0 and less than `max_steps`. "
            f"Received: warmup_steps={warmup_steps}, max_steps={max_steps}"
        )
    return keras.optimizers.schedules.CosineDecay(
        0.0 if warmup_steps else learning_rate,
        max_steps - warmup_steps,
        alpha=min_learning_rate / learning_rate,
        warmup_target=learning_rate if warmup_steps else None,
        warmup_steps=warmup_steps,
    )
