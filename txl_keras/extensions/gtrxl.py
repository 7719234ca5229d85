"""GTrXL, Transformer-XL for reinforcement learning.

Section 3 of Parisotto et al., 2019.
"""

import keras
import tensorflow as tf
from keras import ops

from txl_keras.checks import check_one_of
from txl_keras.extending import register
from txl_keras.layers.config import ConfiguredLayer
from txl_keras.layers.decoder_block import DecoderBlock
from txl_keras.layers.sublayers import sublayer
from txl_keras.models.transformer_xl_backbone import TransformerXLBackbone
from txl_keras.scripts import options

__all__ = ["GTrXLBackbone", "Gate", "GatedBlock"]

# Kernels of each kind in the paper's notation. Where a gate has both, W is
# multiplied with the sublayer's output and U with the stream.
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


@keras.saving.register_keras_serializable(package="txl_keras")
class Gate(ConfiguredLayer):
    """Combines a residual stream with a sublayer's output.

    With the stream x, the output y of the sublayer, the sigmoid s and a learned
    bias b (a large b keeps the stream unchanged):

        "input"         s(x W) * x + y
        "output"        x + s(x W - b) * y
        "highway"       g * x + (1 - g) * y,      g = s(x W + b)
        "sigmoid_tanh"  x + s(y W - b) * tanh(y U)
        "gru"           (1 - z) * x + z * h,      r = s(y W_r + x U_r)
                                                  z = s(y W_z + x U_z - b)
                                                  h = tanh(y W_h + (r * x) U_h)

    Args:
        gate: String, one of the five kinds above. At first b is 2 for `"gru"`,
            and 1 for the others; `"input"` has none.
        kernel_initializer: Initializer of the kernels.

    Call arguments:
        inputs: Tensor of shape `(..., D)`, the residual stream.
        update: Tensor of the same shape, the output of the sublayer.

    Returns:
        Tensor of the shape of `inputs`.

    Example:

    ```python
    import numpy as np
    from txl_keras.extensions.gtrxl import Gate

    x, y = np.ones((2, 3, 8)), np.zeros((2, 3, 8))
    z = Gate("gru")(x, y)  # (2, 3, 8)
    ```

    Reference:
        [Parisotto et al., 2019](https://arxiv.org/abs/1910.06764), section 3.2.
    """

    def __init__(
        self,
        gate: str,
        kernel_initializer: str | keras.Initializer = "glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.gate = check_one_of("gate", gate, GATES)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, inputs_shape, update_shape=None):
        size = inputs_shape[-1]
        self._matmul = {
            name: sublayer(
                self, keras.layers.Dense, size, use_bias=False, name=name
            )
            for name in _KERNELS[self.gate]
        }
        for layer in self._matmul.values():
            layer.build(inputs_shape)
        if self.gate != "input":
            bias = 2.0 if self.gate == "gru" else 1.0  # as in the paper
            self._gate_bias = self.add_weight(
                shape=(size,),
                initializer=keras.initializers.Constant(bias),
                name="gate_bias",
            )

    def call(self, inputs, update):
        return getattr(self, f"_{self.gate}")(inputs, update, **self._matmul)

    def _input(self, x, y, w_gate):
        return ops.sigmoid(w_gate(x)) * x + y

    def _output(self, x, y, w_gate):
        return x + ops.sigmoid(w_gate(x) - self._gate_bias) * y

    def _highway(self, x, y, w_gate):
        share = ops.sigmoid(w_gate(x) + self._gate_bias)
        return share * x + (1 - share) * y

    def _sigmoid_tanh(self, x, y, w_gate, u_candidate):
        share = ops.sigmoid(w_gate(y) - self._gate_bias)
        return x + share * ops.tanh(u_candidate(y))

    def _gru(
        self, x, y, w_reset, u_reset, w_update, u_update, w_candidate,
        u_candidate,
    ):  # fmt: skip
        reset = ops.sigmoid(w_reset(y) + u_reset(x))
        share = ops.sigmoid(w_update(y) + u_update(x) - self._gate_bias)
        candidate = ops.tanh(w_candidate(y) + u_candidate(reset * x))
        return (1 - share) * x + share * candidate

    def compute_output_shape(self, inputs_shape, update_shape=None):
        return inputs_shape


@keras.saving.register_keras_serializable(package="txl_keras")
class GatedBlock(DecoderBlock):
    """Computes a block of GTrXL: pre-norm, with a ReLU and a gate per sum.

        a = Gate(x, ReLU(Attention(LayerNorm(x), LayerNorm(memory))))
        y = Gate(a, ReLU(FeedForward(LayerNorm(a))))

    Args:
        gate: String, the kind of `Gate`.
        **kwargs: Arguments of `DecoderBlock`; `normalize_first` must be true.

    Example:

    ```python
    import numpy as np
    from txl_keras.extensions.gtrxl import GatedBlock

    block = GatedBlock(num_heads=2, head_dim=4, intermediate_dim=16)
    y = block(np.ones((3, 5, 8)), memory=np.ones((3, 6, 8)))  # (3, 5, 8)
    ```
    """

    def __init__(
        self, gate: str = "gru", normalize_first: bool = True, **kwargs
    ):
        super().__init__(normalize_first=normalize_first, **kwargs)
        self.gate = gate
        self._gates = {
            name: sublayer(self, Gate, gate, name=f"{name}_gate")
            for name in ("attention", "feed_forward")
        }

    def build(self, inputs_shape):
        super().build(inputs_shape)
        for gate in self._gates.values():
            gate.build(inputs_shape)

    def residual(self, inputs, update, sublayer):
        return self._gates[sublayer](inputs, tf.nn.relu(update))


@keras.saving.register_keras_serializable(package="txl_keras")
class GTrXLBackbone(TransformerXLBackbone):
    """Encodes a segment like Transformer-XL, with gates for its residual sums.

    Args:
        *args, **kwargs: Arguments of `TransformerXLBackbone`.
        gate: String, the kind of `Gate`.
        normalize_first: Boolean, must be true.

    Example: an agent's observations; in two rows an episode begins at step 5.

    ```python
    import numpy as np
    from txl_keras.extensions.gtrxl import GTrXLBackbone

    backbone = GTrXLBackbone(
        vocabulary_size=None, num_layers=2, num_heads=2, hidden_dim=16,
        intermediate_dim=32, memory_length=12,
    )
    begins = np.zeros((3, 8), bool)
    begins[[0, 2], 5] = True
    hidden, memory = backbone(embeddings=np.ones((3, 8, 16)), reset=begins)
    ```

    Reference:
        [Parisotto et al., 2019](https://arxiv.org/abs/1910.06764), section 3.
    """

    block_class = GatedBlock

    def __init__(
        self, *args, gate: str = "gru", normalize_first: bool = True, **kwargs
    ):
        self.gate = gate  # for the blocks
        super().__init__(*args, normalize_first=normalize_first, **kwargs)

    def layer_flops(self, segment_length, memory_length):
        kernels = 2 * len(_KERNELS[self.gate])  # two gates
        return (
            super().layer_flops(segment_length, memory_length)
            + 2 * kernels * segment_length * self.hidden_dim**2
        )


class GateOptions(options.Options):
    """Holds the arguments of the backbone.

    Model options:
    gate: Gate of --backbone=gtrxl, which replaces each residual sum.
    """

    gate: options.one_of(GATES) = None


register("backbone", gtrxl=GTrXLBackbone)
register("model options", gtrxl=GateOptions)
