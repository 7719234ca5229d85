"""Optimizers by name."""

import math
import numbers

import keras
from keras import ops
from keras.optimizers.schedules import LearningRateSchedule

from txl_keras.checks import check_dropout
from txl_keras.checks import check_number
from txl_keras.checks import check_one_of
from txl_keras.keras_internals import MatrixMuon
from txl_keras.types import Tensor
from txl_keras.weights import takes_weight_decay

_MAX_WEIGHT_NORM = 10.0


@keras.saving.register_keras_serializable(package="txl_keras")
class Lamb(keras.optimizers.Lamb):
    """Updates each weight tensor in proportion to its own norm.

    This is algorithm 2 of You et al., 2020, as NVIDIA uses it for
    Transformer-XL with batches of 256 or more rows. With gradient `g` of `w`:

        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g**2
        u = m / (sqrt(v) + epsilon) + weight_decay * w
        w = w - learning_rate * min(|w|, 10) / (|u| + epsilon) * u

    The ratio is 1 if `|w|` is 0, and nothing moves if `|u|` is 0. Weights that
    `takes_weight_decay` excludes are not decayed, but still get the ratio.
    `keras.optimizers.Lamb` differs: it corrects the bias of the moments, does
    not bound the norm, and decays outside of the ratio.

    Args:
        learning_rate: Float or schedule.
        weight_decay: Float.
        beta_1, beta_2: Floats, decay rates of the moving averages.
        epsilon: Float. NVIDIA's documentation gives 1e-8, but its code runs
            with 1e-6.
        **kwargs: Arguments of `keras.optimizers.Optimizer`.

    Example:

    ```python
    import keras

    from txl_keras.optimizers import Lamb
    from txl_keras.training.updates import apply_gradients

    weight = keras.Variable([3.0, 4.0])
    optimizer = Lamb(learning_rate=0.1)
    optimizer.build([weight])
    apply_gradients(optimizer, [keras.ops.array([1.0, 0.0])], [weight])
    assert abs(weight.numpy()[0] - (3.0 - 0.1 * 5.0)) < 1e-5
    ```
    """

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule = 0.001,
        weight_decay: float = 0.0,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        **kwargs,
    ):
        super().__init__(learning_rate, beta_1, beta_2, epsilon, **kwargs)
        # Not `self.weight_decay`, which is applied outside of the ratio.
        self.inner_weight_decay = weight_decay

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        # `update_step` may get a `tf.Variable`, which has another name.
        self._decays = [
            self.inner_weight_decay
            if takes_weight_decay(variable) and self._use_weight_decay(variable)
            else 0.0
            for variable in variables
        ]

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)
        m, v = self._momentums[index], self._velocities[index]
        gradient = ops.cast(gradient, variable.dtype)
        self.assign(m, self.beta_1 * m + (1 - self.beta_1) * gradient)
        self.assign(
            v, self.beta_2 * v + (1 - self.beta_2) * ops.square(gradient)
        )
        update = m / (ops.sqrt(v) + self.epsilon)
        update = update + self._decays[index] * variable
        rate = ops.cast(learning_rate, variable.dtype)
        weight_norm = ops.minimum(_norm(variable), _MAX_WEIGHT_NORM)
        ratio = weight_norm / (_norm(update) + self.epsilon)
        ratio = ops.where(weight_norm > 0, ratio, ops.ones_like(ratio))
        self.assign_sub(variable, rate * ratio * update)

    def get_config(self):
        config = super().get_config()
        return {**config, "weight_decay": self.inner_weight_decay}


@keras.saving.register_keras_serializable(package="txl_keras")
class Muon(MatrixMuon):
    """Orthogonalizes the updates of kernels; updates other weights like Adam.

    There are two differences to `keras.optimizers.Muon`, which treats variables
    of two dimensions as matrices and leaves all others to Adam. Here matrices
    are the kernels, including those of attention with a third dimension for the
    heads, but no biases, embeddings or softmax. And `weight_decay` applies to
    both kinds of updates, except where `takes_weight_decay` excludes a weight.

    Updates are multiplied by 0.2 times the root of the larger dimension. They
    then have the size of Adam's updates, so that learning rates for Adam suit
    (Liu et al., 2025, section 2.2).

    Args:
        learning_rate: Float or schedule.
        weight_decay: Float.
        momentum: Float, decay rate of the mean of the gradients of kernels.
        epsilon: Float, Adam's epsilon.
        **kwargs: Arguments of `keras.optimizers.Muon`, except those that
            choose the matrices and the weight decay of Adam.

    Attributes:
        matrix_dtype: Dtype in which updates are orthogonalized. `Trainer` sets
            it to bfloat16, as in Jordan et al., for a model that computes in
            bfloat16.

    Example:

    ```python
    import keras
    import numpy as np

    from txl_keras.optimizers import Muon
    from txl_keras.training.updates import apply_gradients

    weight = keras.Variable(keras.ops.zeros((3, 2, 5)), name="kernel")
    optimizer = Muon(learning_rate=0.1)
    optimizer.build([weight])
    gradient = keras.random.normal((3, 2, 5))
    apply_gradients(optimizer, [gradient], [weight])
    np.linalg.svd(weight.numpy().reshape(3, 10))[1]  # 0.04 to 0.08
    ```

    Reference:
        Jordan et al., 2024, "Muon: An optimizer for hidden layers in neural
        networks"; [Liu et al., 2025](https://arxiv.org/abs/2502.16982).
    """

    matrix_dtype = "float32"

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule = 0.001,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        epsilon: float = 1e-9,
        **kwargs,
    ):
        # Versions of Keras differ in some of these defaults.
        settings = {"adam_lr_ratio": 1, "ns_steps": 5, "rms_rate": 0.2}
        super().__init__(
            learning_rate,
            momentum=momentum,
            epsilon=epsilon,
            weight_decay=weight_decay,
            adam_weight_decay=weight_decay,
            exclude_embeddings=True,
            exclude_layers=None,
            **{**settings, **kwargs},
        )

    def get_config(self):
        config = super().get_config()
        # Fixed here, so they are not arguments of this class.
        for name in (
            "exclude_layers", "exclude_embeddings", "adam_weight_decay"
        ):  # fmt: skip
            config.pop(name, None)
        return config

    def _use_weight_decay(self, variable):
        is_included = super()._use_weight_decay(variable)
        return is_included and takes_weight_decay(variable)

    def is_matrix(self, variable: keras.Variable) -> bool:
        """Returns whether a variable is a kernel outside of a softmax."""
        *layers, name = variable.path.split("/")
        is_softmax = bool(layers) and layers[-1].startswith("logits")
        return name == "kernel" and not is_softmax

    def update_matrix(
        self, gradient: Tensor, variable: keras.Variable, lr: Tensor, m: Tensor
    ) -> None:
        """Orthogonalizes the update of a kernel and adds it to the kernel."""
        gradient = ops.cast(gradient, variable.dtype)
        self.assign(m, self.momentum * m + gradient)
        ahead = self.momentum * m + gradient if self.nesterov else m
        # The most square split of a kernel's shape into inputs by outputs.
        # Heads are outputs, except in attention's last projection.
        shape = variable.shape
        splits = [
            (math.prod(shape[:i]), math.prod(shape[i:]))
            for i in range(1, len(shape))
        ]
        matrix = ops.reshape(ahead, min(splits, key=max))
        matrix = ops.cast(matrix, self.matrix_dtype)
        update = self.zeropower_via_newtonschulz5(matrix, self.ns_steps)
        update = ops.cast(update, lr.dtype)
        update = ops.reshape(self.lr_adjust(lr * update), variable.shape)
        self.assign_sub(variable, ops.cast(update, variable.dtype))


def _norm(tensor):
    return ops.sqrt(ops.sum(ops.square(tensor)))


_BETAS = {"beta_1": 0.9, "beta_2": 0.999}
# Class by name, and its settings with their defaults.
_OPTIMIZERS = {
    "adam": (keras.optimizers.Adam, {**_BETAS, "epsilon": 1e-9}),
    "adamw": (
        keras.optimizers.AdamW,
        {"weight_decay": 0.0, **_BETAS, "epsilon": 1e-9},
    ),
    "lamb": (Lamb, {"weight_decay": 0.0, **_BETAS, "epsilon": 1e-6}),
    "muon": (Muon, {"weight_decay": 0.0, "momentum": 0.95, "epsilon": 1e-9}),
    "sgd": (keras.optimizers.SGD, {"momentum": 0.0}),
}
OPTIMIZERS = tuple(_OPTIMIZERS)


def build_optimizer(
    name: str, learning_rate: float | LearningRateSchedule, **settings
) -> keras.optimizers.Optimizer:
    """Builds an optimizer by name.

    `"adam"` is the optimizer of the original code, `"adamw"` adds decoupled
    weight decay, `"lamb"` (see `Lamb`) is for large batches, and `"muon"` (see
    `Muon`) orthogonalizes the updates of kernels.

    Args:
        name: String, one of `"adam"`, `"adamw"`, `"lamb"`, `"muon"` and
            `"sgd"`.
        learning_rate: Float or schedule (see `build_schedule`).
        **settings: Floats; `None` means the default.

            - `weight_decay`, for `"adamw"`, `"lamb"` and `"muon"`: 0. Biases
              and the weights of layer normalization are not decayed.
            - `momentum`, for `"sgd"` and `"muon"`: 0 and 0.95.
            - `beta_1` and `beta_2` in [0, 1), for `"adam"`, `"adamw"` and
              `"lamb"`: 0.9 and 0.999.
            - `epsilon`, for these and `"muon"`: 1e-6 for `"lamb"` and 1e-9 for
              the others. Keras (like TF1) adds epsilon to a second moment
              without bias correction, so in the first steps epsilon weighs up
              to 30 times more than in PyTorch. The clipped gradients of query
              and key kernels start near 1e-7. With 1e-9 these kernels move from
              the first step on, as in PyTorch with the original's 1e-8.

    Returns:
        `keras.optimizers.Optimizer`, for `Trainer`.

    Example:

    >>> build_optimizer("adamw", 0.001, weight_decay=0.01).weight_decay
    0.01
    """
    check_one_of("name", name, _OPTIMIZERS)
    if isinstance(learning_rate, numbers.Real):
        check_number("learning_rate", learning_rate, 0, exclusive=True)
        learning_rate = float(learning_rate)
    optimizer_class, defaults = _OPTIMIZERS[name]
    # Every optimizer accepts 0 for a setting that it does not have.
    settings = {
        key: float(value)
        for key, value in settings.items()
        if value is not None and (value or key in defaults)
    }
    for key, value in settings.items():
        if key in ("weight_decay", "epsilon"):
            check_number(key, value, 0)
        else:
            check_dropout(key, value)  # from 0 to below 1, too
    if not settings.keys() <= defaults.keys():
        with_all = [
            other
            for other, (_, others) in _OPTIMIZERS.items()
            if settings.keys() <= others.keys()
        ]
        raise ValueError(
            f"`{name}` has only the settings {tuple(defaults)}; those given "
            f"are settings of {with_all or 'no optimizer'}. "
            f"Received: {settings}"
        )
    return optimizer_class(learning_rate, **defaults | settings)
