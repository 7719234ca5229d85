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
    """`keras.optimizers.Adam` for gradients summed over replicas before.

    Args:
        learning_rate: Float or schedule.
        epsilon: Float. Keras (like TF1) adds it to a second moment without
            bias correction, so in the first steps it weighs up to 30 times
            more than PyTorch's. The clipped gradients of query and key
            kernels start near 1e-7: the default lets them move from the
            first step on, as the original's 1e-8 in PyTorch does.
        **kwargs: Of `keras.optimizers.Adam`.
    """

    def __init__(self, learning_rate=0.001, epsilon=1e-9, **kwargs):
        super().__init__(learning_rate, epsilon=epsilon, **kwargs)


@keras.saving.register_keras_serializable(package="txl_keras")
class Lamb(_PreReduced, keras.optimizers.Lamb):
    """`keras.optimizers.Lamb` for gradients summed over replicas before.

    What NVIDIA trains with, in batches of 256 rows and more: every weight
    tensor moves by a share of its own norm (You et al., 2020, algorithm 2).

    Args:
        learning_rate: Float or schedule.
        **kwargs: Of `keras.optimizers.Lamb`.
    """


OPTIMIZERS = {"adam": Adam, "lamb": Lamb}


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
        ValueError: If the warm-up does not end before `max_steps`, or the
            floor is not between 0 and the peak.
    """
    if not 0 <= min_learning_rate <= learning_rate or learning_rate == 0:
        raise ValueError(
            "`learning_rate` must be greater than 0 and at least "
            f"`min_learning_rate`. Received: learning_rate={learning_rate}, "
            f"min_learning_rate={min_learning_rate}"
        )
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
