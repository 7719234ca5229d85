"""XLNet's two-stream attention, and a block with it; `P` are targets.

The content stream encodes a token with its context; the query stream predicts
the token only from its position and context.
"""

import keras
from keras import ops

from txl_keras.checks import check_mask
from txl_keras.checks import check_shape
from txl_keras.layers import compute
from txl_keras.layers.causal import HeadsAttention
from txl_keras.layers.causal import check_memory
from txl_keras.layers.causal import check_steps_mask
from txl_keras.layers.causal import key_mask
from txl_keras.layers.compute.dropout import fold_in
from txl_keras.layers.compute.problem import Positions
from txl_keras.layers.compute.problem import Problem
from txl_keras.layers.compute.problem import Visible
from txl_keras.layers.compute.problem import finite_masked
from txl_keras.layers.compute.problem import move_nonfinite_to_keys
from txl_keras.layers.compute.problem import zero_masked
from txl_keras.layers.sublayers import Block
from txl_keras.layers.sublayers import project_heads


@keras.saving.register_keras_serializable(package="txl_keras")
class TwoStreamRelativeAttention(HeadsAttention):
    """Attends with a content and a query stream.

    For a factorization order `z`, section 2.3 of Yang et al., 2019 (and
    appendix A.2) updates the content stream `h` and the query stream `g` by

        g[z_t] = Attention(Q = g[z_t], KV = h[z_<t])     without its own token
        h[z_t] = Attention(Q = h[z_t], KV = h[z_<=t])    with its own token

    Both streams use the same weights. A permutation mask gives the order; by
    default every token attends to all others. The score of query `i` and key
    `j` is as in Transformer-XL, with distances of both signs and a term for
    segments (section 2.5):

        A[i,j] = (q_i + u) . E_j W_k,E  +  (q_i + v) . R_{i-j} W_k,R
               + (q_i + b) . s[are i and j in different segments]

    Args:
        num_heads, key_dim, dropout, kernel_initializer, seed: See
            `CausalMultiHeadAttention`.
        clamp_length: Optional integer. Distances are clipped to
            `[-clamp_length, clamp_length]`.

    Call arguments:
        content: Tensor of shape `(B, T, D)`, the content stream.
        query: Optional tensor of shape `(B, P, D)`, the query stream.
        target_mapping: Optional tensor `(B, P, T)`. Each row is one-hot at the
            position of a target, or all zeros for no target. The targets of
            one batch row must have different positions. By default P is T,
            and target `i` is at position `i`.
        memory: Optional tensor of shape `(B, M, D)`, the content states
            before the segment.
        content_mask: Optional boolean `(B, T)`, false at padding. By default
            Keras's mask of `content`.
        memory_mask, training, dropout_seed: See `CausalMultiHeadAttention`.
        permutation_mask: Optional boolean `(B, T, T)`, true where token `i`
            may attend to token `j`. The diagonal is ignored. (Hugging Face's
            `perm_mask` is the opposite: 1 where it may not.)
        token_type_ids: Optional integers `(B, T)`, the segment of each token;
            tokens of memory have 0. Without them there is no segment term.
        position_encoding: Optional tensor `(S + T - 1, D)`, the output of
            `RelativePositionEncoding(look_ahead=None)`.

    Returns:
        Tensor of shape `(B, T, D)`; with a `query`, a pair of this tensor and
        one of shape `(B, P, D)`. A target whose keys are all masked gets zeros.

    Example:

    ```python
    import numpy as np
    from txl_keras.layers import TwoStreamRelativeAttention

    attention = TwoStreamRelativeAttention(num_heads=2, key_dim=4)
    content, query = attention(
        np.ones((3, 5, 8)), np.ones((3, 5, 8)), memory=np.ones((3, 6, 8))
    )  # Both (3, 5, 8).
    ```

    Reference:
        [Yang et al., 2019](https://arxiv.org/abs/1906.08237), sections 2.3 to
        2.5 and appendix A.
    """

    _output_equation = "btnh,dnh->btd"

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        clamp_length: int | None = None,
        **kwargs,
    ):
        super().__init__(num_heads, key_dim, **kwargs)
        self._add_positions(clamp_length, look_ahead=None)

    def build(self, content_shape):
        super().build(content_shape)
        self._position_dense.build((None, self._hidden_dim))
        # u, v and b of the equation above.
        self._add_biases("content", "positional", "segment")
        # s: row 0 for the same segment, row 1 for another segment.
        self.segment_embeddings = self._parameter(
            "segment_embeddings", 2, self.num_heads, self.key_dim
        )

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
        check_shape("content", content, (None, None, self._hidden_dim))
        batch_size, length, hidden_dim = ops.shape(content)
        num_targets = length
        if target_mapping is not None:
            if query is None:
                raise ValueError(
                    "`query` must be passed with `target_mapping`, which maps "
                    "its targets to positions. Received: query=None"
                )
            num_targets = query.shape[1]
        memory, memory_mask = check_memory(memory, memory_mask, content)
        num_memory = ops.shape(memory)[1]
        ahead = Visible(0, length, look_ahead=None).nearest
        shapes = {
            "query": (batch_size, num_targets, hidden_dim),
            "target_mapping": (batch_size, num_targets, length),
            "token_type_ids": (batch_size, length),
            "position_encoding": (num_memory + length - ahead, hidden_dim),
        }
        tensors = query, target_mapping, token_type_ids, position_encoding
        for name, tensor in zip(shapes, tensors, strict=True):
            if tensor is not None:
                check_shape(name, tensor, shapes[name])
        content_mask = check_steps_mask("content_mask", content_mask, content)
        permutation_mask = check_mask(
            "permutation_mask", permutation_mask, (batch_size, length, length)
        )
        if target_mapping is not None:  # maybe of booleans or integers
            target_mapping = ops.cast(target_mapping, self.compute_dtype)
        content = finite_masked(content, content_mask)
        memory = zero_masked(memory, memory_mask)
        if position_encoding is None:
            position_encoding = self._encode_positions(content, memory)
        context = ops.concatenate([memory, content], axis=1)  # [B, S, D]
        projected = project_heads(context, self._key_dense, self._value_dense)
        keys = move_nonfinite_to_keys(*projected)
        positions = Positions(
            *self._project_encoding(position_encoding),
            self._scaled(self.positional_attention_bias),
        )
        content_stream_mask, query_stream_mask = _masks(
            key_mask(memory, content, memory_mask, content_mask),
            length,
            permutation_mask,
        )

        def attend(states, mask, site, target_mapping=None):
            (query,) = project_heads(states, self._query_dense)
            query = self._scaled(query)
            if target_mapping is not None:
                # Scatters targets to their positions, where distances start.
                query = ops.einsum("nbph,bpt->nbth", query, target_mapping)
            problem = Problem(
                query,
                [keys],
                Visible(
                    num_memory, length, look_ahead=None, attention_mask=mask
                ),
                content_bias=self._scaled(self.content_attention_bias),
                positions=positions,
                score_bias=self._segment_scores(query, token_type_ids, memory),
                **self._call_dropout(
                    content, training, fold_in(dropout_seed, site)
                ),
            )
            return compute.attend(problem)

        outputs = self._output_dense(attend(content, content_stream_mask, 0))
        if query is None:
            return outputs
        query = finite_masked(query, targets_mask(content_mask, target_mapping))
        attended = attend(query, query_stream_mask, 1, target_mapping)
        has_keys = ops.any(query_stream_mask, axis=-1)[..., None, None]
        # Zeros, because the mean of all values leaks the target's own token.
        attended = ops.where(has_keys, attended, 0)
        if target_mapping is not None:
            attended = ops.einsum("btnh,bpt->bpnh", attended, target_mapping)
        return outputs, self._output_dense(attended)

    def _segment_scores(self, query, token_type_ids, memory):
        """Returns the scores of segments `(N, B, T, S)`, or `None`."""
        if token_type_ids is None:
            return None
        of_memory = ops.zeros(ops.shape(memory)[:2], token_type_ids.dtype)
        of_keys = ops.concatenate([of_memory, token_type_ids], axis=1)
        is_other = token_type_ids[:, :, None] != of_keys[:, None]
        bias = self._scaled(self.segment_attention_bias)
        query = query + bias[:, None, None]
        segments = ops.cast(self.segment_embeddings, self.compute_dtype)
        same, other = ops.split(
            ops.einsum("nbth,cnh->nbtc", query, segments), 2, axis=-1
        )
        return ops.where(is_other, other, same)

    def compute_output_shape(self, content_shape, query_shape=None):
        if query_shape is None:
            return content_shape
        return content_shape, query_shape


def targets_mask(content_mask, target_mapping):
    """Returns a mask `(B, P)` of the query stream, or `None`."""
    if target_mapping is None:
        return content_mask
    return ops.any(ops.cast(target_mapping, "bool"), axis=-1)


def _masks(of_keys, length, permutation_mask):
    """Returns the attention masks `(B, T, S)` of the content and query stream.

    For T = 3, M = 2 and no other masks (1 is visible). Keys marked `h` are
    visible to the content stream only, even where other masks are false:

             memory | segment
        i=0   1  1  |  h  1  1
        i=1   1  1  |  1  h  1
        i=2   1  1  |  1  1  h
    """
    batch_size, num_keys = ops.shape(of_keys)
    num_memory = num_keys - length
    own = num_memory + ops.arange(length)[:, None] == ops.arange(num_keys)
    query_stream = of_keys[:, None] & ~own
    if permutation_mask is not None:
        of_memory = ops.ones((batch_size, length, num_memory), "bool")
        query_stream &= ops.concatenate([of_memory, permutation_mask], axis=-1)
    return query_stream | own, query_stream


@keras.saving.register_keras_serializable(package="txl_keras")
class TwoStreamBlock(Block):
    """Computes one XLNet block: two-stream attention, feed-forward.

    The block is post-norm, as in appendix A.2 of Yang et al., 2019. Both
    streams `x` use the same weights:

        a = LayerNorm(x + Attention(x, content, memory))
        y = LayerNorm(a + FeedForward(a)),   FeedForward = W_2 GELU(W_1 .)

    Args:
        num_heads, head_dim, intermediate_dim, dropout, attention_dropout,
            layer_norm_epsilon, kernel_initializer: See `DecoderBlock`.
        clamp_length: See `TwoStreamRelativeAttention`.

    Call arguments:
        content, query, target_mapping, memory, content_mask, memory_mask,
            permutation_mask, token_type_ids, position_encoding, training,
            dropout_seed: See `TwoStreamRelativeAttention`.

    Returns:
        Tensor of shape `(B, T, D)`; with a `query`, a pair of this tensor and
        one of shape `(B, P, D)`.

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
        content_mask=None,
        training=None,
        dropout_seed=None,
        **kwargs,
    ):
        content_mask = check_steps_mask("content_mask", content_mask, content)
        attended = self.attention(
            content,
            query,
            target_mapping=target_mapping,
            content_mask=content_mask,
            training=training,
            dropout_seed=fold_in(dropout_seed, 0),
            **kwargs,
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

    compute_output_shape = TwoStreamRelativeAttention.compute_output_shape
