"""Sinusoids of relative distances, `R` in section 3.3 of the paper."""

import keras
from keras import ops

from txl_keras.checks import check_integer
from txl_keras.layers.compute.problem import Visible
from txl_keras.layers.config import ConfiguredLayer


@keras.saving.register_keras_serializable(package="txl_keras")
class RelativePositionEncoding(ConfiguredLayer):
    """Encodes the distances of queries and keys.

    Computes the sinusoids R of section 3.3 in Dai et al., 2019. Row `j`
    encodes the distance `S - 1 - j`, so the first row is for the most distant
    key and the last row for the query's own key:

        R[j] = [sin(d w_0), ..., sin(d w_{D/2-1}), cos(d w_0), ...]
        d    = min(S - 1 - j, clamp_length)
        w_i  = 10000 ** (-2 i / D)

    With `look_ahead=k`, rows for the distances -1 to -k of keys after the query
    follow, at most to `1 - T`, the distance from the first query to the last
    key. With `look_ahead=None` they follow to `1 - T` (section 2.4 of Yang et
    al., 2019).

    Distances and sinusoids are float32 under any dtype policy, because
    bfloat16 represents integers exactly only up to 256. The layer has no
    weights.

    Args:
        clamp_length: Optional integer. Distances are clipped to
            `[-clamp_length, clamp_length]`, so that a longer memory than in
            training has no distances that training did not have. `None` does
            not clip.
        look_ahead: Integer, the number of keys after a query whose distances
            are also encoded; `None` for all.

    Call arguments:
        inputs: Tensor of shape `(B, T, D)`, the segment. Only its shape is
            used. `D` must be even.
        memory: Optional tensor of shape `(B, M, D)`. Only its shape is used.

    Returns:
        Float32 tensor of shape `(S, D)`. With `look_ahead` it has
        `S + min(look_ahead, T - 1)` rows, and with `None` it has `S + T - 1`.

    Example:

    ```python
    import numpy as np
    from txl_keras.layers import RelativePositionEncoding

    segment = np.zeros((2, 3, 8))
    memory = np.zeros((2, 4, 8))
    encoding = RelativePositionEncoding()(segment, memory)  # (7, 8)
    ```

    Reference:
        [Dai et al., 2019](https://arxiv.org/abs/1901.02860), section 3.3, and
        [Yang et al., 2019](https://arxiv.org/abs/1906.08237), section 2.4.
    """

    def __init__(
        self,
        clamp_length: int | None = None,
        look_ahead: int | None = 0,
        **kwargs,
    ):
        # Only shapes are read, so a cast of the inputs would be wasted.
        super().__init__(autocast=False, **kwargs)
        if clamp_length is not None:
            check_integer("clamp_length", clamp_length, 1)
        self.clamp_length = clamp_length
        if look_ahead is not None:
            check_integer("look_ahead", look_ahead, 0)
        self.look_ahead = look_ahead
        self.built = True

    def call(self, inputs, memory=None):
        hidden_dim = inputs.shape[-1]
        if hidden_dim % 2:
            raise ValueError(
                "The last axis of `inputs` must be even, because one half of "
                "the encoding is sines and the other half cosines. Received: "
                f"inputs.shape={tuple(inputs.shape)}"
            )
        length = ops.shape(inputs)[1]
        num_keys = length + (0 if memory is None else ops.shape(memory)[1])
        num_rows = num_keys - Visible(0, length, self.look_ahead).nearest
        distance = ops.cast(num_keys - 1 - ops.arange(num_rows), "float32")
        if self.clamp_length is not None:
            limit = float(self.clamp_length)
            distance = ops.clip(distance, -limit, limit)
        exponent = ops.arange(0, hidden_dim, 2, dtype="float32") / hidden_dim
        frequency = ops.power(10000.0, -exponent)
        angle = distance[:, None] * frequency[None, :]  # [S, D / 2]
        return ops.concatenate([ops.sin(angle), ops.cos(angle)], axis=-1)
