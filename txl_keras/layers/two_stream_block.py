"""One block of XLNet.

Letters: `B` batch, `T` segment, `M` memory, `S` = M + T keys, `P` targets,
`D` hidden size.
"""

import keras
from keras import ops

from txl_keras.checks import check_mask
from txl_keras.layers.attention.two_stream import TwoStreamRelativeAttention
from txl_keras.layers.attention.two_stream import targets_mask
from txl_keras.layers.compute.dropout import fold_in
from txl_keras.layers.compute.problem import finite_masked
from txl_keras.layers.sublayers import Block


@keras.saving.register_keras_serializable(package="txl_keras")
class TwoStreamBlock(Block):
    """Computes one XLNet block: two-stream attention, feed-forward.

    Post-norm, as in appendix A.2 of Yang et al., 2019. Both streams `x` use
    the same weights:

        a = LayerNorm(x + Attention(x, content, memory))
        y = LayerNorm(a + FeedForward(a)),   FeedForward = W_2 GELU(W_1 .)

    Args:
        num_heads: Integer.
        head_dim: Integer, the size of a head.
        intermediate_dim: Integer, the inner size of the feed-forward network.
        dropout: Float in `[0, 1)`, dropout after the attention, after the
            GELU and after the feed-forward network, by default 0.
        attention_dropout: Float in `[0, 1)`, dropout on the attention
            probabilities, by default 0.
        layer_norm_epsilon: Float, added to the variance.
        clamp_length, kernel_initializer: See `TwoStreamRelativeAttention`.

    Call arguments:
        content, query, target_mapping, memory, content_mask, memory_mask,
            permutation_mask, token_type_ids, position_encoding, training,
            dropout_seed: See `TwoStreamRelativeAttention`.

    Returns:
        Tensor of shape `(B, T, D)`; with a `query`, a pair of it and a tensor
        of shape `(B, P, D)`.

    Example:

    ```python
    import numpy as np
    from txl_keras.layers import TwoStreamBlock

    block = TwoStreamBlock(num_heads=2, head_dim=4, intermediate_dim=16)
    content, query = block(np.ones((3, 5, 8)), np.ones((3, 5, 8)))
    ```

    Reference:
        [Yang et al., 2019](https://arxiv.org/abs/1906.08237), appendix A.2.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        intermediate_dim: int,
        layer_norm_epsilon: float = 1e-12,
        clamp_length: int | None = None,
        **kwargs,
    ):
        super().__init__(
            num_heads,
            head_dim,
            intermediate_dim,
            layer_norm_epsilon=layer_norm_epsilon,
            **kwargs,
        )
        self.clamp_length = clamp_length
        self._add_sublayers(TwoStreamRelativeAttention, "gelu")

    def call(
        self,
        content,
        query=None,
        target_mapping=None,
        memory=None,
        content_mask=None,
        memory_mask=None,
        permutation_mask=None,
        token_type_ids=None,
        position_encoding=None,
        training=None,
        dropout_seed=None,
    ):
        attended = self.attention(
            content,
            query,
            target_mapping=target_mapping,
            memory=memory,
            content_mask=content_mask,
            memory_mask=memory_mask,
            permutation_mask=permutation_mask,
            token_type_ids=token_type_ids,
            position_encoding=position_encoding,
            training=training,
            dropout_seed=fold_in(dropout_seed, 0),
        )
        content_mask = check_mask(
            "content_mask", content_mask, ops.shape(content)[:2]
        )
        content = finite_masked(content, content_mask)

        def transform(x, attended, site):
            seed = fold_in(dropout_seed, site)
            return self._post_norm(x, attended, training, seed, first_site=0)

        if query is None:
            return transform(content, attended, 1)
        query = finite_masked(query, targets_mask(content_mask, target_mapping))
        return transform(content, attended[0], 1), transform(
            query, attended[1], 2
        )

    def compute_output_spec(self, content, query=None, **kwargs):
        return self.attention.compute_output_spec(content, query)
