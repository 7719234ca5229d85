"""Learning rate schedules."""

import dataclasses

import keras
from keras import ops
from keras.optimizers.schedules import LearningRateSchedule

from txl_keras.checks import check_integer
from txl_keras.checks import check_number
from txl_keras.checks import check_one_of

SCHEDULES = ("cosine", "linear", "constant")


@keras.saving.register_keras_serializable(package="txl_keras")
@dataclasses.dataclass(eq=False)
class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Schedules a linear warm-up, then a linear decay; see `build_schedule`."""

    # Steps are counted in float32, which is exact up to 16 million.

    learning_rate: float
    max_steps: int
    warmup_steps: int = 0
    min_learning_rate: float = 0.0

    def __call__(self, step):
        step = ops.cast(step, "float32")
        floor, peak = self.min_learning_rate, self.learning_rate
        warmup = peak * step / max(self.warmup_steps, 1)
        left = self.max_steps - ops.minimum(step, self.max_steps)
        share = left / (self.max_steps - self.warmup_steps)
        decay = floor + (peak - floor) * share
        return ops.where(step < self.warmup_steps, warmup, decay)

    def get_config(self):
        return dataclasses.asdict(self)


def build_schedule(
    name: str,
    learning_rate: float,
    max_steps: int,
    warmup_steps: int = 0,
    min_learning_rate: float = 0.0,
) -> LearningRateSchedule:
    """Builds a learning rate schedule: a linear warm-up, then a decay.

    With `t` the number of updates so far, `w = warmup_steps`, `T = max_steps`,
    `peak = learning_rate` and `floor = min_learning_rate`, the rate is
    `peak * t / w` for `t < w`, and after that, for

        "cosine":    floor + (peak - floor) * (1 + cos(pi p)) / 2
                     with p = (t - w) / (T - w)
        "linear":    floor + (peak - floor) * (T - t) / (T - w)
        "constant":  peak

    After `T` steps, the cosine and linear schedules stay at the floor.

    The cosine equals the one in the original TensorFlow code and in NVIDIA's.
    The original PyTorch code does not subtract the warm-up, `p = t / T`, so
    that the rate jumps down at the end of the warm-up.

    Args:
        name: String, one of `"cosine"`, `"linear"` and `"constant"`.
        learning_rate: Float, the peak.
        max_steps: Integer, the length of the run.
        warmup_steps: Integer, less than `max_steps`.
        min_learning_rate: Float, the floor; must be 0 for `"constant"`.

    Returns:
        `keras.optimizers.schedules.LearningRateSchedule`, a function of the
        number of updates so far.

    Example:

    >>> schedule = build_schedule("linear", 0.5, 900, warmup_steps=100)
    >>> [float(schedule(step)) for step in (0, 50, 100, 500)]
    [0.0, 0.25, 0.5, 0.25]
    """
    max_steps = check_integer("max_steps", max_steps, 1)
    warmup_steps = check_integer("warmup_steps", warmup_steps, 0)
    check_number("learning_rate", learning_rate, 0, exclusive=True)
    check_number("min_learning_rate", min_learning_rate, 0, learning_rate)
    check_one_of("name", name, SCHEDULES)
    if name == "constant" and min_learning_rate:
        raise ValueError(
            "`min_learning_rate` must be 0 for the constant schedule. "
            f"Received: min_learning_rate={min_learning_rate}"
        )
    if warmup_steps >= max_steps:
        raise ValueError(
            "`warmup_steps` must be less than `max_steps`: pass fewer, such as "
            f"--warmup_steps={max_steps // 10}, after any --flagfile. "
            f"Received: warmup_steps={warmup_steps}, max_steps={max_steps}"
        )
    peak, floor = float(learning_rate), float(min_learning_rate)
    if name == "cosine":
        return keras.optimizers.schedules.CosineDecay(
            0.0 if warmup_steps else peak,
            max_steps - warmup_steps,
            alpha=floor / peak,
            warmup_target=peak if warmup_steps else None,
            warmup_steps=warmup_steps,
        )
    if name == "constant":
        floor = peak
    return WarmupSchedule(peak, max_steps, warmup_steps, floor)
