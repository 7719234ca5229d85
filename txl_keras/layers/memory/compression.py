"""Compression of what leaves memory, from the Compressive Transformer.

Letters: `B` batch, `S` states, `c` compression rate, `G` = floor(S / c)
compressed states, `D` hidden size.
"""

import keras
import tensorflow as tf
from keras import ops

from txl_keras.checks import check_integer
from txl_keras.checks import check_one_of
from txl_keras.checks import check_shape
from txl_keras.layers.config import ConfiguredLayer

COMPRESSIONS = ("conv", "dilated_conv", "mean_pool", "max_pool", "most_used")


@keras.saving.register_keras_serializable(package="txl_keras")
class Compression(ConfiguredLayer):
    """Compresses c states to one.

    The functions of Rae et al. (2020), section 3.2:

    - `"conv"`: convolution over time with kernel and stride c. It starts as the
      mean of c states.
    - `"dilated_conv"`: its c taps are 2 apart, with c - 1 zeros in front. So
      groups overlap.
    - `"mean_pool"`, `"max_pool"`: mean and maximum of c states.
    - `"most_used"`: keeps the G states that were attended to most, in their
      order.

    Groups are formed from the first state on. The last `S mod c` states are
    lost.

    Args:
        compression: String, one of the functions above.
        rate: Integer `c`, at least 2.

    Call arguments:
        inputs: Tensor of shape `(B, S, D)`, oldest first.
        lengths: Optional int32 tensor `(B,)`, how many states of each row are
            real. The others are at the end. By default all are real.
        usage: Float tensor of shape `(B, S)`, the attention that each state
            received; needed by `"most_used"`.

    Returns:
        Tensor of shape `(B, G, D)`. Of row r the first `lengths[r] // c` are
        real.

    Example:

    ```python
    import numpy as np
    from txl_keras.layers import Compression

    old = np.ones((2, 12, 8))
    compressed = Compression("conv", rate=3)(old)  # (2, 4, 8)
    ```

    Reference:
        [Rae et al., 2020](https://arxiv.org/abs/1911.05507), section 3.2.
    """

    def __init__(self, compression: str, rate: float, **kwargs):
        super().__init__(**kwargs)
        check_one_of("compression", compression, COMPRESSIONS)
        self.compression = compression
        self.rate = check_integer("rate", rate, 2)

    def build(self, inputs_shape):
        size = inputs_shape[-1]
        if self.compression in ("conv", "dilated_conv"):
            self.kernel = self.add_weight(
                shape=(self.rate, size, size), initializer=_mean, name="kernel"
            )
            self.bias = self.add_weight(
                shape=(size,), initializer="zeros", name="bias"
            )

    def call(self, inputs, lengths=None, usage=None):
        batch, size, width = ops.shape(inputs)
        if (usage is not None) != (self.compression == "most_used"):
            raise ValueError(
                "`usage` must be passed if and only if the compression is "
                f"'most_used'. Received: compression={self.compression!r}, "
                f"usage={'None' if usage is None else 'a tensor'}"
            )
        if lengths is None:
            lengths = tf.fill((batch,), size)
        is_real = tf.range(size)[None, :] < lengths[:, None]
        if self.compression == "most_used":
            check_shape("usage", usage, (batch, size))
            return self._most_used(inputs, lengths, is_real, usage)
        num_groups = size // self.rate
        # What is not real may be anything, also NaN.
        inputs = tf.where(is_real[..., None], inputs, 0)
        if self.compression == "dilated_conv":
            # Indices of states with c - 1 zeros in front.
            taps = (
                tf.range(num_groups)[:, None] * self.rate
                + tf.range(self.rate) * 2
            )
            padded = tf.pad(inputs, [[0, 0], [self.rate - 1, 0], [0, 0]])
            groups = tf.gather(padded, taps, axis=1)
        else:
            groups = inputs[:, : num_groups * self.rate]
        groups = tf.reshape(groups, (batch, num_groups, self.rate, width))
        if self.compression == "mean_pool":
            return tf.reduce_mean(groups, axis=2)
        if self.compression == "max_pool":
            return tf.reduce_max(groups, axis=2)
        kernel = tf.reshape(
            tf.cast(self.kernel, inputs.dtype), (self.rate * width, width)
        )
        groups = tf.reshape(groups, (batch, num_groups, self.rate * width))
        return tf.matmul(groups, kernel) + tf.cast(self.bias, inputs.dtype)

    def _most_used(self, inputs, lengths, is_real, usage):
        size = ops.shape(inputs)[1]
        usage = tf.where(is_real, tf.cast(usage, "float32"), -1.0)
        # Rank 0 is the most used; of equally used ones the older comes first.
        ranks = tf.argsort(
            tf.argsort(usage, axis=1, direction="DESCENDING", stable=True),
            axis=1,
        )
        is_lost = ranks >= lengths[:, None] // self.rate
        in_order = tf.argsort(tf.cast(is_lost, "int32"), axis=1, stable=True)
        kept = in_order[:, : size // self.rate]
        return tf.gather(inputs, kept, axis=1, batch_dims=1)

    def compute_output_shape(self, inputs_shape):
        batch, size, width = inputs_shape
        return batch, None if size is None else size // self.rate, width


def _mean(shape, dtype=None):
    """Returns the kernel of a convolution that computes the mean."""
    rate, size, _ = shape
    return ops.tile(ops.eye(size, dtype=dtype)[None] / rate, (rate, 1, 1))
