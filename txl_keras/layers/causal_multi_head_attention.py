"""Multi-head attention over memory and segment that sees no positions.

Letters: `B` batch, `T` segment, `M` memory, `S` = M + T keys, `N` heads,
`H` head size, `D` hidden size.
"""

import keras
import tensorflow as tf
from keras import ops

from txl_keras.checks import check_integer
from txl_keras.layers.row_dropout import RowDropout

SAME_LENGTHS = (False, True, "pytorch")


@keras.saving.register_keras_serializable(package="txl_keras")
class CausalMultiHeadAttention(keras.layers.Layer):
    """Causal attention of a segment over its memory and itself.

    Scaled dot products of queries and keys, `softmax(Q K / sqrt(H)) V W_o`,
    no more: positions are what comes with the inputs (Vaswani et al., Al-Rfou
    et al.) or what a subclass adds to the scores.

    The layer is pure: it never owns memory (see `MemoryStack`), and gradients
    do flow into the `memory` it is given, unless that was stopped.

    Args:
        num_heads: Integer `N`.
        key_dim: Integer `H`, the size of a head. It need not be `D / N`.
        dropout: Float in `[0, 1)`, dropout on the attention probabilities.
        same_length: Every query attends equally far back, rather than to all
            of memory; needs a memory. `True`: to the M keys before it and
            itself, as the original TensorFlow code and NVIDIA's. `"pytorch"`:
            to one fewer, as the original PyTorch code and Hugging Face count.
        kernel_initializer: Initializer of all kernels and biases.
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
        training: Boolean, for dropout.
        dropout_seed: Optional uint32 `(B,)`, see `RowDropout`.
        return_attention_scores: Boolean.

    Returns:
        Tensor of shape `(B, T, D)`; with `return_attention_scores=True` also
        the float32 probabilities `(B, N, T, S)`, before dropout.

    Raises:
        ValueError: On sizes that are not positive, an unknown `same_length`,
            or one without a memory.

    Example:

    ```python
    import keras
    from txl_keras.layers import CausalMultiHeadAttention

    segment = keras.Input((16, 32))
    attended = CausalMultiHeadAttention(num_heads=4, key_dim=8)(segment)
    model = keras.Model(segment, attended)  # (None, 16, 32)
    ```

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.2.
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        dropout=0.0,
        same_length=False,
        kernel_initializer="glorot_uniform",
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_integer("num_heads", num_heads, 1)
        check_integer("key_dim", key_dim, 1)
        if same_length not in SAME_LENGTHS:
            raise ValueError(
                f"`same_length` must be one of {SAME_LENGTHS}. "
                f"Received: same_length={same_length!r}"
            )
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.dropout = dropout
        self.same_length = same_length
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.seed = seed
        self.supports_masking = True
        self._dropout = RowDropout(
            dropout, seed=seed, dtype=self.dtype_policy, name="dropout"
        )
        self._query_dense = self._projection("btd,dnh->btnh", "query")
        self._key_dense = self._projection("bsd,dnh->bsnh", "key")
        self._value_dense = self._projection("bsd,dnh->bsnh", "value")
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

    def _parameter(self, name, *shape):
        return self.add_weight(
            shape=shape,
            initializer=self.kernel_initializer.clone(),
            name=name,
        )

    def build(self, query_shape):
        hidden_dim = query_shape[-1]
        self._output_dense = self._projection(
            "btnh,nhd->btd", "output", output_shape=[None, hidden_dim]
        )
        for dense in (self._query_dense, self._key_dense, self._value_dense):
            dense.build((None, None, hidden_dim))
        self._output_dense.build((None, None, self.num_heads, self.key_dim))

    def call(
        self,
        query,
        memory=None,
        query_mask=None,
        memory_mask=None,
        attention_mask=None,
        training=None,
        dropout_seed=None,
        return_attention_scores=False,
    ):
        return self._attend(
            lambda query, key: ops.einsum("btnh,bsnh->bnts", query, key),
            query,
            memory,
            query_mask,
            memory_mask,
            attention_mask,
            training,
            dropout_seed,
            return_attention_scores,
        )

    def _attend(
        self,
        score,
        query,
        memory,
        query_mask,
        memory_mask,
        attention_mask,
        training,
        dropout_seed,
        return_attention_scores,
    ):
        """Attention with scores of any kind.

        Args:
            score: Function of projected queries `(B, T, N, H)`, scaled by
                `1 / sqrt(H)`, and keys `(B, S, N, H)`; returns the scores
                `(B, N, T, S)`.
            query, ...: The call arguments.
        """
        if query_mask is None:
            # Keras itself passes it only where there is a memory too.
            query_mask = getattr(query, "_keras_mask", None)
        # Without that mask: it is handled here, the projections would warn
        # that they drop it.
        query = tf.identity(query)
        mask = self._mask(
            query, memory, query_mask, memory_mask, attention_mask
        )
        context = query
        if memory is not None:
            context = ops.concatenate([memory, query], axis=1)  # [B, S, D]

        # Scaling the queries costs T N H products, the scores T S N.
        projected = self._query_dense(query) * self.key_dim**-0.5
        key = self._key_dense(context)  # [B, S, N, H]
        value = self._value_dense(context)  # [B, S, N, H]
        probabilities = masked_softmax(score(projected, key), mask)
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

    def _mask(self, query, memory, query_mask, memory_mask, attention_mask):
        """Which keys a query may see: boolean, broadcasts to `(B, N, T, S)`.

        For T = 3, M = 2; `same_length=True` shuts the keys marked `s` too:

                 memory | segment
            i=0   1  1  |  1  .  .
            i=1   s  1  |  1  1  .
            i=2   s  s  |  1  1  1
        """
        num_queries = ops.shape(query)[1]
        num_memory = 0 if memory is None else ops.shape(memory)[1]
        if self.same_length and memory is None:
            raise ValueError(
                "`same_length` lets a query see as many keys as memory has, "
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
            farthest = num_memory
            if self.same_length == "pytorch":
                # There the query's own key counts; it is never shut.
                farthest = ops.maximum(num_memory - 1, 0)
            mask = ops.logical_and(mask, distance <= farthest)
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
            "same_length": self.same_length,
            "kernel_initializer": keras.initializers.serialize(
                self.kernel_initializer
            ),
            "seed": self.seed,
        }


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
