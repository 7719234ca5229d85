"""Multi-head attention that sees only relative positions.

Letters: `B` batch, `T` segment, `M` memory, `S` = M + T keys, `N` heads,
`H` head size, `D` hidden size.
"""

import keras
import tensorflow as tf
from keras import ops

from txl_keras.checks import check_integer
from txl_keras.layers.relative_position_encoding import RelativePositionEncoding
from txl_keras.layers.row_dropout import RowDropout


@keras.saving.register_keras_serializable(package="txl_keras")
class RelativeMultiHeadAttention(keras.layers.Layer):
    """Causal attention of a segment over its memory and itself.

    Computes, for query `i` and key `j`, the score of section 3.3 in Dai et
    al., 2019, with `E` the hidden states and `R` the sinusoids of distances:

        A[i,j] =  E_i W_q  . E_j W_k,E        (a) content to content
                + E_i W_q  . R_{i-j} W_k,R    (b) content to position
                + u        . E_j W_k,E        (c) content bias
                + v        . R_{i-j} W_k,R    (d) position bias

    and returns `softmax(A / sqrt(H)) E W_v W_o`. Terms (b) and (d) project
    each of the S distances once and align them by `relative_shift`.

    The layer is pure: it never owns memory (see `MemoryStack`), and gradients
    do flow into the `memory` it is given, unless that was stopped.

    Args:
        num_heads: Integer `N`.
        key_dim: Integer `H`, the size of a head. It need not be `D / N`.
        dropout: Float in `[0, 1)`, dropout on the attention probabilities.
        clamp_length: Optional integer. Distances beyond it count as it.
        same_length: Boolean. Every query attends to exactly the M keys before
            it and itself, rather than to all of memory. Needs a memory.
        tie_attention_biases: Boolean. The layer owns no `u` and `v`; they
            come with each call, so that several layers share them.
        kernel_initializer: Initializer of all kernels and of `u` and `v`.
        seed: Optional integer for dropout.

    Call arguments:
        query: Tensor of shape `(B, T, D)`, the segment.
        memory: Optional tensor of shape `(B, M, D)`, the states before it.
        query_mask: Optional boolean `(B, T)`; false keys (padding) get no
            attention. Keras passes the mask of an `Embedding(mask_zero=True)`
            by itself.
        memory_mask: Optional boolean `(B, M)`, false where memory is empty.
        attention_mask: Optional boolean that broadcasts to `(B, T, S)`,
            combined with the causal mask.
        position_encoding: Optional tensor `(S, D)`, the output of
            `RelativePositionEncoding`, to compute it once for many layers.
        attention_biases: The pair `(u, v)`, each `(N, H)`; only with
            `tie_attention_biases=True`.
        training: Boolean, for dropout.
        dropout_seed: Optional uint32 `(B,)`, see `RowDropout`.
        return_attention_scores: Boolean.

    Returns:
        Tensor of shape `(B, T, D)`; with `return_attention_scores=True` also
        the float32 probabilities `(B, N, T, S)`, before dropout.

    Raises:
        ValueError: On sizes that are not positive, `same_length` without a
            memory, `attention_biases` that are missing or one too many.

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
        num_heads,
        key_dim,
        dropout=0.0,
        clamp_length=None,
        same_length=False,
        tie_attention_biases=False,
        kernel_initializer="glorot_uniform",
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_integer("num_heads", num_heads, 1)
        check_integer("key_dim", key_dim, 1)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.dropout = dropout
        self.clamp_length = clamp_length
        self.same_length = same_length
        self.tie_attention_biases = tie_attention_biases
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.seed = seed
        self.supports_masking = True
        self._encode_positions = RelativePositionEncoding(
            clamp_length, name="position_encoding"
        )
        self._dropout = RowDropout(
            dropout, seed=seed, dtype=self.dtype_policy, name="dropout"
        )
        # "r" is a distance: an axis of length S without a batch.
        self._query_dense = self._projection("btd,dnh->btnh", "query")
        self._key_dense = self._projection("bsd,dnh->bsnh", "key")
        self._value_dense = self._projection("bsd,dnh->bsnh", "value")
        self._position_dense = self._projection("rd,dnh->rnh", "position")
        self._output_dense = None  # its size, D, is known in `build`

    def _projection(self, equation, name, output_shape=None):
        rank = len(equation.split("->")[1])
        heads = [self.num_heads, self.key_dim]
        return keras.layers.EinsumDense(
            equation,
            output_shape=output_shape or [None] * (rank - 3) + heads,
            # A copy: one initializer object gives the same numbers each time.
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, query_shape):
        hidden_dim = query_shape[-1]
        self._output_dense = self._projection(
            "btnh,nhd->btd", "output", output_shape=[None, hidden_dim]
        )
        for dense in (self._query_dense, self._key_dense, self._value_dense):
            dense.build((None, None, hidden_dim))
        self._position_dense.build((None, hidden_dim))
        self._output_dense.build((None, None, self.num_heads, self.key_dim))
        if not self.tie_attention_biases:
            self.content_attention_bias = self._bias("content_attention_bias")
            self.positional_attention_bias = self._bias(
                "positional_attention_bias"
            )

    def _bias(self, name):
        return self.add_weight(
            shape=(self.num_heads, self.key_dim),
            initializer=self.kernel_initializer.clone(),
            name=name,
        )

    def call(
        self,
        query,
        memory=None,
        query_mask=None,
        memory_mask=None,
        attention_mask=None,
        position_encoding=None,
        attention_biases=None,
        training=None,
        dropout_seed=None,
        return_attention_scores=False,
    ):
        if query_mask is None:
            # Keras itself passes it only where there is a memory too.
            query_mask = getattr(query, "_keras_mask", None)
        # Without that mask: it is handled here, the projections would warn
        # that they drop it.
        query = tf.identity(query)
        if position_encoding is None:
            position_encoding = self._encode_positions(query, memory)
        mask = self._mask(
            query, memory, query_mask, memory_mask, attention_mask
        )
        context = query
        if memory is not None:
            context = ops.concatenate([memory, query], axis=1)  # [B, S, D]

        # Scaling the queries costs T N H products, the scores T S N.
        scale = self.key_dim**-0.5
        u, v = self._attention_biases(attention_biases)
        projected = self._query_dense(query)  # [B, T, N, H]
        key = self._key_dense(context)  # [B, S, N, H]
        value = self._value_dense(context)  # [B, S, N, H]
        position = self._position_dense(
            ops.cast(position_encoding, self.compute_dtype)
        )  # [S, N, H]

        # Terms (a) + (c), then (b) + (d).
        scores = ops.einsum(
            "btnh,bsnh->bnts", (projected + u) * scale, key
        ) + relative_shift(
            ops.einsum("btnh,rnh->bntr", (projected + v) * scale, position)
        )  # [B, N, T, S]
        probabilities = masked_softmax(scores, mask)
        weights = self._dropout(
            ops.cast(probabilities, self.compute_dtype),
            training=training,
            dropout_seed=dropout_seed,
        )
        attended = ops.einsum("bnts,bsnh->btnh", weights, value)
        output = self._output_dense(attended)  # [B, T, D]
        if return_attention_scores:
            return output, probabilities
        return output

    def _attention_biases(self, attention_biases):
        if self.tie_attention_biases != (attention_biases is not None):
            raise ValueError(
                "`attention_biases` must be passed if and only if the layer "
                "was made with `tie_attention_biases=True`. Received: "
                f"tie_attention_biases={self.tie_attention_biases}, "
                f"attention_biases={attention_biases}"
            )
        u, v = attention_biases or (
            self.content_attention_bias,
            self.positional_attention_bias,
        )
        return ops.cast(u, self.compute_dtype), ops.cast(v, self.compute_dtype)

    def _mask(self, query, memory, query_mask, memory_mask, attention_mask):
        """Which keys a query may see: boolean, broadcasts to `(B, N, T, S)`.

        For T = 3, M = 2; with `same_length` the keys marked `s` too are shut:

                 memory | segment
            i=0   1  1  |  1  .  .
            i=1   s  1  |  1  1  .
            i=2   s  s  |  1  1  1
        """
        num_queries = ops.shape(query)[1]
        num_memory = 0 if memory is None else ops.shape(memory)[1]
        if self.same_length and memory is None:
            raise ValueError(
                "`same_length=True` lets a query see M keys before itself, "
                "so it needs a memory. Received: memory=None"
            )
        num_keys = num_memory + num_queries
        distance = (
            num_memory
            + ops.arange(num_queries)[:, None]
            - ops.arange(num_keys)[None, :]
        )  # [T, S]
        mask = distance >= 0
        if self.same_length:
            mask = ops.logical_and(mask, distance <= num_memory)
        mask = mask[None]  # [1, T, S]
        if attention_mask is not None:
            mask = ops.logical_and(mask, ops.cast(attention_mask, "bool"))
        if query_mask is not None or memory_mask is not None:
            key_mask = self._key_mask(query, memory, query_mask, memory_mask)
            mask = ops.logical_and(mask, key_mask[:, None, :])
        return mask[:, None]

    def _key_mask(self, query, memory, query_mask, memory_mask):
        if query_mask is None:
            query_mask = ops.ones(ops.shape(query)[:2], "bool")
        if memory is None:
            return ops.cast(query_mask, "bool")
        if memory_mask is None:
            memory_mask = ops.ones(ops.shape(memory)[:2], "bool")
        return ops.concatenate(
            [ops.cast(memory_mask, "bool"), ops.cast(query_mask, "bool")],
            axis=1,
        )  # [B, S]

    def compute_output_shape(self, query_shape):
        return query_shape

    def compute_output_spec(
        self, query, memory=None, return_attention_scores=False, **kwargs
    ):
        output = keras.KerasTensor(query.shape, dtype=self.compute_dtype)
        if not return_attention_scores:
            return output
        batch, length = query.shape[:2]
        num_memory = 0 if memory is None else memory.shape[1]
        known = length is not None and num_memory is not None
        scores = keras.KerasTensor(
            (
                batch,
                self.num_heads,
                length,
                length + num_memory if known else None,
            ),
            dtype="float32",
        )
        return output, scores

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "dropout": self.dropout,
            "clamp_length": self.clamp_length,
            "same_length": self.same_length,
            "tie_attention_biases": self.tie_attention_biases,
            "kernel_initializer": keras.initializers.serialize(
                self.kernel_initializer
            ),
            "seed": self.seed,
        }


def relative_shift(scores):
    """Aligns scores by distance with scores by key (appendix B).

    Column `r` of the input is the distance `S - 1 - r`; query `i` stands at
    `M + i`, so its key `j` is found in column `j + T - 1 - i`. A pad on the
    left and two reshapes move every row by its own amount, at no arithmetic.
    For T = 3, S = 5, the numbers being distances:

        4 3 2 1 0        2 1 0 x x
        4 3 2 1 0   ->   3 2 1 0 x
        4 3 2 1 0        4 3 2 1 0

    `x` is a key after the query: what stands there is garbage, not zero, and
    must be masked.

    Args:
        scores: Tensor of shape `(B, N, T, S)` by distance.

    Returns:
        Tensor of shape `(B, N, T, S)` by key.
    """
    batch, heads, length, num_keys = ops.shape(scores)
    padded = ops.pad(scores, [[0, 0], [0, 0], [0, 0], [1, 0]])
    reshaped = ops.reshape(padded, (-1, heads, num_keys + 1, length))
    return ops.reshape(reshaped[:, :, 1:], (-1, heads, length, num_keys))


def masked_softmax(scores, mask):
    """Softmax over the last axis where `mask` is true, in float32.

    Args:
        scores: Tensor of any float dtype.
        mask: Boolean tensor that broadcasts to `scores`.

    Returns:
        Float32 tensor; a row with no true entry is uniform, never NaN.
    """
    scores = ops.cast(scores, "float32")
    # Finite, so that a row shut altogether stays a number.
    return ops.softmax(ops.where(mask, scores, -1e30), axis=-1)
