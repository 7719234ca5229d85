"""Multi-head attention with relative positions, section 3.3 of the paper.

Letters: `B` batch, `T` segment, `M` memory, `S` = M + T keys, `N` heads,
`H` head size, `D` hidden size.
"""

import keras
from keras import ops

from txl_keras.checks import check_shape
from txl_keras.layers.attention.causal import CausalMultiHeadAttention
from txl_keras.layers.compute.problem import Positions


@keras.saving.register_keras_serializable(package="txl_keras")
class RelativeMultiHeadAttention(CausalMultiHeadAttention):
    """Attends with the relative positions of Transformer-XL.

    A segment attends to its memory and itself. The score of query `i` and key
    `j` is that of section 3.3 in Dai et al., 2019, where `E` are the hidden
    states and `R` the sinusoids of distances:

        A[i,j] =  E_i W_q  . E_j W_k,E        (a) content to content
                + E_i W_q  . R_{i-j} W_k,R    (b) content to position
                + u        . E_j W_k,E        (c) content bias
                + v        . R_{i-j} W_k,R    (d) position bias

    The output is `softmax(A / sqrt(H)) E W_v W_o`. This layer makes the
    projections, with q, u and v divided by `sqrt(H)`, and `compute.attend`
    computes the rest; `compute.definition` is the equation to read. Terms (b)
    and (d) are computed once for each of the S distances, then aligned with the
    keys as in appendix B: `relative_shift` is the paper's way, and the module
    `layers.compute` lists the faster ones.

    Args:
        num_heads, key_dim, dropout, same_length, look_ahead,
            kernel_initializer, seed: See `CausalMultiHeadAttention`.
        clamp_length: Optional integer. Larger distances are treated as equal
            to it.
        tie_attention_biases: Boolean. If true, the layer has no `u` and `v`
            of its own. They are passed in each call, so that several layers
            can share them.

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
        u, v = attention_biases or (
            self.content_attention_bias,
            self.positional_attention_bias,
        )
        # Scaled by `1 / sqrt(H)` like the queries.
        u, v = self._scaled(u), self._scaled(v)
        return {"content_bias": u, "positions": Positions(*positions, v)}
