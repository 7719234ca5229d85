"""One Transformer-XL block.

Letters: `B` batch, `T` segment, `M` memory, `S` = M + T keys, `D` hidden size.
"""

import keras

from txl_keras.layers.relative_multi_head_attention import (
    RelativeMultiHeadAttention,
)
from txl_keras.layers.row_dropout import RowDropout
from txl_keras.layers.row_dropout import fold_in


@keras.saving.register_keras_serializable(package="txl_keras")
class DecoderBlock(keras.layers.Layer):
    """Relative attention and a feed-forward network, each with a residual.

    Post-norm, as in the paper (section 3.3, the equations at its end):

        a = LayerNorm(x + Attention(x, memory))
        y = LayerNorm(a + FeedForward(a)),   FeedForward = W_2 ReLU(W_1 .)

    Pre-norm (`normalize_first=True`) normalizes the inputs of the two parts,
    the memory's too, and leaves the residual stream alone:

        a = x + Attention(LayerNorm(x), LayerNorm(memory))
        y = a + FeedForward(LayerNorm(a))

    Args:
        num_heads: Integer.
        head_dim: Integer, size of a head.
        intermediate_dim: Integer, inner size of the feed-forward network.
        dropout: Float in `[0, 1)`, dropout after the attention, after the
            ReLU and after the feed-forward network.
        attention_dropout: Float in `[0, 1)`, on attention probabilities.
        normalize_first: Boolean, pre-norm rather than post-norm.
        layer_norm_epsilon: Float.
        clamp_length, same_length, tie_attention_biases, kernel_initializer:
            See `RelativeMultiHeadAttention`.

    Call arguments:
        inputs: Tensor of shape `(B, T, D)`.
        memory: Optional tensor of shape `(B, M, D)`, earlier `inputs` of this
            block.
        inputs_mask: Optional boolean `(B, T)`, false at padding.
        memory_mask, position_encoding, attention_biases, training,
            dropout_seed: See `RelativeMultiHeadAttention`.

    Returns:
        Tensor of shape `(B, T, D)`.

    Example:

    ```python
    import numpy as np
    from txl_keras.layers import DecoderBlock

    block = DecoderBlock(num_heads=2, head_dim=4, intermediate_dim=16)
    y = block(np.ones((3, 5, 8)), memory=np.ones((3, 6, 8)))  # (3, 5, 8)
    ```

    Reference:
        [Dai et al., 2019](https://arxiv.org/abs/1901.02860), section 3.3.
    """

    def __init__(
        self,
        num_heads,
        head_dim,
        intermediate_dim,
        dropout=0.0,
        attention_dropout=0.0,
        normalize_first=False,
        layer_norm_epsilon=1e-5,
        clamp_length=None,
        same_length=False,
        tie_attention_biases=False,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.intermediate_dim = intermediate_dim
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.normalize_first = normalize_first
        self.layer_norm_epsilon = layer_norm_epsilon
        self.clamp_length = clamp_length
        self.same_length = same_length
        self.tie_attention_biases = tie_attention_biases
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.supports_masking = True
        self.attention = RelativeMultiHeadAttention(
            num_heads,
            head_dim,
            dropout=attention_dropout,
            clamp_length=clamp_length,
            same_length=same_length,
            tie_attention_biases=tie_attention_biases,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name="attention",
        )
        self._attention_norm = self._layer_norm("attention_norm")
        self._feed_forward_norm = self._layer_norm("feed_forward_norm")
        self._intermediate_dense = self._dense(
            intermediate_dim, "feed_forward_intermediate", "relu"
        )
        self._output_dense = None  # its size, D, is known in `build`
        self._dropout = RowDropout(
            dropout, dtype=self.dtype_policy, name="dropout"
        )

    def _layer_norm(self, name):
        return keras.layers.LayerNormalization(
            epsilon=self.layer_norm_epsilon, dtype=self.dtype_policy, name=name
        )

    def _dense(self, units, name, activation=None):
        return keras.layers.Dense(
            units,
            activation=activation,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, inputs_shape):
        self._output_dense = self._dense(
            inputs_shape[-1], "feed_forward_output"
        )
        self.attention.build(inputs_shape)
        self._attention_norm.build(inputs_shape)
        self._feed_forward_norm.build(inputs_shape)
        self._intermediate_dense.build(inputs_shape)
        self._output_dense.build((*inputs_shape[:-1], self.intermediate_dim))

    def call(
        self,
        inputs,
        memory=None,
        inputs_mask=None,
        memory_mask=None,
        position_encoding=None,
        attention_biases=None,
        training=None,
        dropout_seed=None,
    ):
        def dropout(x, site):
            seed = fold_in(dropout_seed, site)
            return self._dropout(x, training=training, dropout_seed=seed)

        def attention(x, memory):
            attended = self.attention(
                x,
                memory=memory,
                query_mask=inputs_mask,
                memory_mask=memory_mask,
                position_encoding=position_encoding,
                attention_biases=attention_biases,
                training=training,
                dropout_seed=fold_in(dropout_seed, 0),
            )
            return dropout(attended, site=1)

        def feed_forward(x):
            inner = dropout(self._intermediate_dense(x), site=2)
            return dropout(self._output_dense(inner), site=3)

        if not self.normalize_first:
            x = self._attention_norm(inputs + attention(inputs, memory))
            return self._feed_forward_norm(x + feed_forward(x))
        norm = self._attention_norm
        normed_memory = None if memory is None else norm(memory)
        x = inputs + attention(norm(inputs), normed_memory)
        return x + feed_forward(self._feed_forward_norm(x))

    def compute_output_shape(self, inputs_shape):
        return inputs_shape

    def compute_output_spec(self, inputs, **kwargs):
        return keras.KerasTensor(inputs.shape, dtype=self.compute_dtype)

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "head_dim": self.head_dim,
            "intermediate_dim": self.intermediate_dim,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "normalize_first": self.normalize_first,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "clamp_length": self.clamp_length,
            "same_length": self.same_length,
            "tie_attention_biases": self.tie_attention_biases,
            "kernel_initializer": keras.initializers.serialize(
                self.kernel_initializer
            ),
        }
