"""Gates in place of residual sums, section 3.2 of Parisotto et al., 2019.

Letter: `D` hidden size.
"""

import math

import keras
from keras import ops

from txl_keras.checks import check_number
from txl_keras.checks import check_one_of
from txl_keras.layers.config import ConfiguredLayer

# Kernels of each kind in the notation of the paper: W is multiplied with the
# sublayer's output and U with the stream, where a gate has both.
_KERNELS = {
    "input": ("w_gate",),
    "output": ("w_gate",),
    "highway": ("w_gate",),
    "sigmoid_tanh": ("w_gate", "u_candidate"),
    "gru": (
        "w_reset", "u_reset", "w_update", "u_update", "w_candidate",
        "u_candidate",
    ),
}  # fmt: skip
GATES = tuple(_KERNELS)
GATE_KERNELS = frozenset(name for names in _KERNELS.values() for name in names)


@keras.saving.register_keras_serializable(package="txl_keras")
class Gate(ConfiguredLayer):
    """Combines a residual stream with a sublayer's output.

    With the stream x, the output y of the sublayer, the sigmoid s and a
    learned bias b, which keeps the stream as it is where it is large:

        "input"         s(x W) * x + y
        "output"        x + s(x W - b) * y
        "highway"       g * x + (1 - g) * y,      g = s(x W + b)
        "sigmoid_tanh"  x + s(y W - b) * tanh(y U)
        "gru"           (1 - z) * x + z * h,      r = s(y W_r + x U_r)
                                                  z = s(y W_z + x U_z - b)
                                                  h = tanh(y W_h + (r * x) U_h)

    Args:
        gate: String, one of the five kinds above.
        bias: Optional float, the initial value of b; by default the paper's:
            2 for `"gru"` and 1 for the others. `"input"` has no bias.
        kernel_initializer: Initializer of the kernels.

    Call arguments:
        inputs: Tensor of shape `(..., D)`, the residual stream.
        update: Tensor of the same shape, the output of the sublayer.

    Returns:
        Tensor of the shape of `inputs`.

    Example:

    ```python
    import numpy as np
    from txl_keras.layers import Gate

    x, y = np.ones((2, 3, 8)), np.zeros((2, 3, 8))
    z = Gate("gru")(x, y)  # (2, 3, 8)
    ```

    Reference:
        [Parisotto et al., 2019](https://arxiv.org/abs/1910.06764), section 3.2.
    """

    def __init__(
        self,
        gate: str,
        bias: float | None = None,
        kernel_initializer: str | keras.Initializer = "glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.gate = check_one_of("gate", gate, GATES)
        if bias is not None:
            check_number("bias", bias, -math.inf)
        self.bias = bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, inputs_shape, update_shape=None):
        size = inputs_shape[-1]
        for name in _KERNELS[self.gate]:
            setattr(self, f"_{name}", self._parameter(name, size, size))
        if self.gate != "input":
            bias = self.bias
            if bias is None:
                bias = 2.0 if self.gate == "gru" else 1.0
            self._gate_bias = self.add_weight(
                shape=(size,),
                initializer=keras.initializers.Constant(bias),
                name="gate_bias",
            )

    def call(self, inputs, update):
        return getattr(self, f"_{self.gate}")(inputs, update)

    def _input(self, x, y):
        return ops.sigmoid(ops.matmul(x, self._w_gate)) * x + y

    def _output(self, x, y):
        share = ops.sigmoid(ops.matmul(x, self._w_gate) - self._gate_bias)
        return x + share * y

    def _highway(self, x, y):
        share = ops.sigmoid(ops.matmul(x, self._w_gate) + self._gate_bias)
        return share * x + (1 - share) * y

    def _sigmoid_tanh(self, x, y):
        share = ops.sigmoid(ops.matmul(y, self._w_gate) - self._gate_bias)
        return x + share * ops.tanh(ops.matmul(y, self._u_candidate))

    def _gru(self, x, y):
        reset = ops.sigmoid(
            ops.matmul(y, self._w_reset) + ops.matmul(x, self._u_reset)
        )
        share = ops.sigmoid(
            ops.matmul(y, self._w_update)
            + ops.matmul(x, self._u_update)
            - self._gate_bias
        )
        candidate = ops.tanh(
            ops.matmul(y, self._w_candidate)
            + ops.matmul(reset * x, self._u_candidate)
        )
        return (1 - share) * x + share * candidate

    def compute_output_shape(self, inputs_shape, update_shape=None):
        return inputs_shape


def num_kernels(gate):
    """Returns the number of `(D, D)` kernels of a kind of gate."""
    return len(_KERNELS[gate])
