"""Multi-head attention with relative positions: sinusoids or learned keys."""

import keras
from keras import ops

from txl_keras.checks import check_integer
from txl_keras.checks import check_shape
from txl_keras.checks import shown
from txl_keras.layers.causal import CausalMultiHeadAttention
from txl_keras.layers.compute.problem import Positions


@keras.saving.register_keras_serializable(package="txl_keras")
class RelativeMultiHeadAttention(CausalMultiHeadAttention):
    """Attends with the relative positions of Transformer-XL.

    A segment attends to its memory and itself. Section 3.3 in Dai et al., 2019,
    defines the score of query `i` and key `j`, where `E` are the hidden states
    and `R` the sinusoids of distances:

        A[i,j] =  E_i W_q  . E_j W_k,E        (a) content to content
                + E_i W_q  . R_{i-j} W_k,R    (b) content to position
                + u        . E_j W_k,E        (c) content bias
                + v        . R_{i-j} W_k,R    (d) position bias

    The output is `softmax(A / sqrt(H)) E W_v W_o`. Terms (b) and (d) are
    computed once for each of the S distances, then aligned with the keys as in
    appendix B (see `relative_shift`).

    Args:
        num_heads, key_dim, dropout, same_length, look_ahead,
            kernel_initializer, seed: See `CausalMultiHeadAttention`.
        clamp_length: Optional integer. Larger distances are clamped to it.
        tie_attention_biases: Boolean. If true, the layer does not create `u`
            and `v`. They are passed in each call, so that several layers can
            share them.

    Call arguments:
        query, memory, query_mask, memory_mask, attention_mask, training,
            dropout_seed, return_attention_scores: See
            `CausalMultiHeadAttention`.
        position_encoding: Optional tensor `(S, D)`, the output of
            `RelativePositionEncoding`, with more rows if there is `look_ahead`.
            Pass it to several layers so that it is computed only once.
        attention_biases: Pair `(u, v)`, each `(N, H)`. Required with
            `tie_attention_biases=True`, and not allowed otherwise.

    Returns:
        Tensor of shape `(B, T, D)`; with `return_attention_scores=True` also
        the float32 probabilities `(B, N, T, S)`, before dropout.

    Example:

    ```python
    import keras
    from txl_keras.layers import RelativeMultiHeadAttention

    segment = keras.Input((16, 32))
    memory = keras.Input((24, 32))
    attended = RelativeMultiHeadAttention(num_heads=4, key_dim=8)(
        segment, memory=memory
    )
    model = keras.Model([segment, memory], attended)  # (None, 16, 32)
    ```

    Reference:
        [Dai et al., 2019](https://arxiv.org/abs/1901.02860), section 3.3 and
        appendix B.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        clamp_length: int | None = None,
        tie_attention_biases: bool = False,
        **kwargs,
    ):
        super().__init__(num_heads, key_dim, **kwargs)
        self.tie_attention_biases = tie_attention_biases
        self._add_positions(clamp_length, look_ahead=self.look_ahead)

    def build(self, query_shape):
        super().build(query_shape)
        self._position_dense.build((None, query_shape[-1]))
        if not self.tie_attention_biases:
            self._add_biases("content", "positional")

    def _positions(self, query, memory, visible, position_encoding):
        if position_encoding is None:
            position_encoding = self._encode_positions(query, memory)
        num_rows = visible.num_keys - visible.nearest
        expected = (num_rows, query.shape[-1])
        check_shape("position_encoding", position_encoding, expected)
        return self._project_encoding(position_encoding)

    def project_positions(self, num_distances):
        if self.clamp_length is not None:
            num_distances = min(num_distances, self.clamp_length + 1)
        encoding = self._encode_positions(
            ops.zeros((1, num_distances, self._hidden_dim))
        )
        return self._project_encoding(encoding)

    def _position_terms(self, positions, attention_biases):
        if (attention_biases is None) == self.tie_attention_biases:
            raise ValueError(
                "`attention_biases` must be passed if, and only if, "
                "`tie_attention_biases` is True. Received: attention_biases="
                f"{shown(attention_biases)}, tie_attention_biases="
                f"{self.tie_attention_biases}"
            )
        if attention_biases is None:
            u, v = self.content_attention_bias, self.positional_attention_bias
        else:
            u, v = attention_biases
            for bias in (u, v):
                shape = self.num_heads, self.key_dim
                check_shape("attention_biases", bias, shape)
        # Scaled by `1 / sqrt(H)` like the queries.
        u, v = self._scaled(u), self._scaled(v)
        return {"content_bias": u, "positions": Positions(*positions, v)}


@keras.saving.register_keras_serializable(package="txl_keras")
class ShawMultiHeadAttention(CausalMultiHeadAttention):
    """Attends with the relative keys of Shaw et al., 2018.

    This is the alternative encoding in the ablations of Dai et al., 2019
    (tables 6 and 7), computed as in their code. Instead of projected sinusoids
    each head has a learned key `a` and a learned bias `b` for each distance:

        A[i,j] =  q_i . k_j  +  u . k_j  +  q_i . a_{i-j}  +  b_{i-j}

    Distances larger than the tables use the row of the largest distance. With
    `look_ahead=k`, the tables have k more rows, for the distances -1 to -k.
    Nothing is added to the values.

    Args:
        num_heads, key_dim, dropout, same_length, look_ahead,
            kernel_initializer, seed: See `CausalMultiHeadAttention`.
        max_positions: Integer `P`, the number of distances in the tables, from
            0 on; in the original code M + T of training.
        clamp_length: Optional integer, limits how many rows are used.

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
        # Queries are already scaled; the biases are scaled here.
        rows = [
            ops.cast(keys, self.compute_dtype),
            self._scaled(biases)[..., None],
        ]
        rows = ops.concatenate(rows, axis=-1)
        return (ops.transpose(rows, (1, 0, 2)),)
