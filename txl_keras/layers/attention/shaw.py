"""Multi-head attention with a learned key for each distance.

Letters: `B` batch, `T` segment, `M` memory, `S` = M + T keys, `N` heads,
`H` head size, `P` distances of the tables.
"""

import keras
from keras import ops

from txl_keras.checks import check_integer
from txl_keras.layers.attention.causal import CausalMultiHeadAttention
from txl_keras.layers.compute.problem import Positions


@keras.saving.register_keras_serializable(package="txl_keras")
class ShawMultiHeadAttention(CausalMultiHeadAttention):
    """Attends with the relative keys of Shaw et al., 2018.

    This is the alternative encoding in the ablations of Dai et al., 2019
    (tables 6 and 7), computed as in their code. Instead of projected sinusoids
    each head has a learned key `a` and a learned bias `b` for each distance:

        A[i,j] =  q_i . k_j  +  u . k_j  +  q_i . a_{i-j}  +  b_{i-j}

    Larger distances than the tables have use the row of the largest one.
    With `look_ahead`, the tables have as many rows more, for the distances -1
    and below. Nothing is added to the values.

    Args:
        num_heads, key_dim, dropout, same_length, look_ahead,
            kernel_initializer, seed: See `CausalMultiHeadAttention`.
        max_positions: Integer `P`, the number of distances from 0 on in the
            tables; M + T of training in the original.
        clamp_length: Optional integer. Only so many rows are used.

    Call arguments, returns:
        See `CausalMultiHeadAttention`.

    Example:

    ```python
    import numpy as np
    from txl_keras.layers import ShawMultiHeadAttention

    attend = ShawMultiHeadAttention(num_heads=2, key_dim=4, max_positions=9)
    y = attend(np.ones((3, 5, 8)), memory=np.ones((3, 6, 8)))  # (3, 5, 8)
    ```

    Reference:
        [Shaw et al., 2018](https://arxiv.org/abs/1803.02155), section 3.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        max_positions: int,
        clamp_length: int | None = None,
        **kwargs,
    ):
        super().__init__(num_heads, key_dim, **kwargs)
        check_integer("max_positions", max_positions, 1)
        if clamp_length is not None:
            check_integer("clamp_length", clamp_length, 1)
        self.max_positions = max_positions
        self.clamp_length = clamp_length

    def build(self, query_shape):
        super().build(query_shape)
        heads = self.num_heads
        self._add_biases("content")
        # Row `d` is for distance `d`, and row `P - 1 + a` for distance `-a`.
        num_rows = self.max_positions + self.look_ahead
        self.position_keys = self._parameter(
            "position_keys", num_rows, heads, self.key_dim
        )
        self.position_biases = self._parameter(
            "position_biases", num_rows, heads
        )

    def _positions(self, query, memory, visible, position_encoding):
        return self._rows(visible.num_keys, visible.nearest)

    def _position_terms(self, positions, attention_biases):
        return {
            "content_bias": self._scaled(self.content_attention_bias),
            "positions": Positions(*positions),
        }

    def project_positions(self, num_distances):
        return self._rows(num_distances, 0)

    def _rows(self, num_distances, nearest):
        """Returns rows of distances `num_distances - 1` down to `nearest`."""
        distance = num_distances - 1 - ops.arange(num_distances - nearest)
        limit = min(self.clamp_length or self.max_positions, self.max_positions)
        past, ahead = ops.minimum(distance, limit - 1), -distance
        row = ops.where(distance < 0, self.max_positions - 1 + ahead, past)
        keys = ops.take(self.position_keys, row, axis=0)
        biases = ops.take(self.position_biases, row, axis=0)
        # Queries are scaled already, and biases here.
        rows = [
            ops.cast(keys, self.compute_dtype),
            self._scaled(biases)[..., None],
        ]
        rows = ops.concatenate(rows, axis=-1)
        return (ops.transpose(rows, (1, 0, 2)),)
