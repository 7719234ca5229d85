"""XLNet's two-stream attention.

The content stream encodes a token with its context; the query stream predicts
the token from its position and context alone.

Letters: `B` batch, `T` segment, `M` memory, `S` = M + T keys, `P` targets,
`N` heads, `H` head size, `D` hidden size.
"""

import dataclasses

import keras
from keras import ops

from txl_keras.checks import check_mask
from txl_keras.checks import check_shape
from txl_keras.layers import compute
from txl_keras.layers.attention.heads import HeadsAttention
from txl_keras.layers.attention.heads import check_memory_mask
from txl_keras.layers.attention.position_encoding import (
    RelativePositionEncoding,
)
from txl_keras.layers.compute.dropout import fold_in
from txl_keras.layers.compute.problem import Positions
from txl_keras.layers.compute.problem import Problem
from txl_keras.layers.compute.problem import Visible
from txl_keras.layers.compute.problem import finite_masked
from txl_keras.layers.compute.problem import hidden_by_key
from txl_keras.layers.compute.problem import zero_masked
from txl_keras.layers.config import config_of
from txl_keras.layers.sublayers import heads_dense
from txl_keras.layers.sublayers import project_heads


@keras.saving.register_keras_serializable(package="txl_keras")
class TwoStreamRelativeAttention(HeadsAttention):
    """Attends with a content and a query stream.

    For a factorization order `z`, section 2.3 of Yang et al., 2019 (and
    appendix A.2) updates the content stream `h` and the query stream `g` by

        g[z_t] = Attention(Q = g[z_t], KV = h[z_<t])     without its own token
        h[z_t] = Attention(Q = h[z_t], KV = h[z_<=t])    with its own token

    The weights of both are the same. The order is given as a permutation
    mask; by default every token attends to all others. The score of query `i`
    and key `j` is that of Transformer-XL, with distances of both signs and a
    term for segments (section 2.5):

        A[i,j] = (q_i + u) . E_j W_k,E  +  (q_i + v) . R_{i-j} W_k,R
               + (q_i + b) . s[are i and j in different segments]

    The layer does not store memory. Gradients flow into the `memory` argument
    unless the caller has stopped them.

    Args:
        num_heads: Integer `N`.
        key_dim: Integer `H`, the size of a head.
        dropout: Float in `[0, 1)`, dropout on the attention probabilities.
        clamp_length: Optional integer. Distances are clipped to
            `[-clamp_length, clamp_length]`.
        kernel_initializer: Initializer of all weights.
        seed: Optional integer, seeds dropout.

    Call arguments:
        content: Tensor of shape `(B, T, D)`, the content stream.
        query: Optional tensor of shape `(B, P, D)`, the query stream.
        target_mapping: Optional tensor `(B, P, T)`. Each row is one-hot at the
            position of a target, or all zeros for no target. The targets of
            one batch row must have different positions. By default P is T,
            and target `i` is at position `i`.
        memory: Optional tensor of shape `(B, M, D)`, the content states
            before the segment.
        content_mask: Optional boolean `(B, T)`, false at padding.
        memory_mask: Optional boolean `(B, M)`, false where memory is empty.
        permutation_mask: Optional boolean `(B, T, T)`, true where token `i`
            may attend to token `j`. The diagonal is ignored. (Hugging Face's
            `perm_mask` is the opposite: 1 where it may not.)
        token_type_ids: Optional integers `(B, T)`, the segment of each token;
            those of memory are 0. Without them the segment term is left out.
        position_encoding: Optional tensor `(S + T, D)`, the output of
            `RelativePositionEncoding(bidirectional=True)`. Pass it to several
            layers so that it is computed only once.
        training: Boolean. Dropout is applied only if it is true.
        dropout_seed: Optional uint32 `(B,)`, see `RowDropout`.

    Returns:
        Tensor of shape `(B, T, D)`; with a `query`, a pair of it and a tensor
        of shape `(B, P, D)`. A target whose keys are all masked gets zeros. A
        softmax would give it the mean of all values, which leaks its own
        token.

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

    def __init__(
        self,
        num_heads,
        key_dim,
        dropout=0.0,
        clamp_length=None,
        kernel_initializer="glorot_uniform",
        seed=None,
        **kwargs,
    ):
        super().__init__(
            num_heads, key_dim, dropout, kernel_initializer, seed, **kwargs
        )
        self.clamp_length = clamp_length
        self._encode_positions = RelativePositionEncoding(
            clamp_length, bidirectional=True, name="position_encoding"
        )
        # "r" is the axis of distances, which has no batch.
        self._position_dense = heads_dense(self, "rd,dnh->rnh", "position")

    def build(self, content_shape):
        hidden_dim = content_shape[-1]
        self._build_projections(hidden_dim, "btnh,dnh->btd")
        self._position_dense.build((None, hidden_dim))
        # u, v and b of the equation above.
        heads = self.num_heads, self.key_dim
        self.content_attention_bias = self._parameter(
            "content_attention_bias", *heads
        )
        self.positional_attention_bias = self._parameter(
            "positional_attention_bias", *heads
        )
        self.segment_attention_bias = self._parameter(
            "segment_attention_bias", *heads
        )
        # s: row 0 for the same segment, row 1 for another.
        self.segment_embeddings = self._parameter(
            "segment_embeddings", 2, *heads
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
        _check_shapes(
            content,
            query,
            target_mapping,
            memory,
            memory_mask,
            token_type_ids,
        )
        batch_size, length, hidden_dim = ops.shape(content)
        num_memory = 0 if memory is None else ops.shape(memory)[1]
        if position_encoding is None:
            position_encoding = self._encode_positions(content, memory)
        check_shape(
            "position_encoding",
            position_encoding,
            (num_memory + 2 * length, hidden_dim),
        )
        content_mask = check_mask(
            "content_mask", content_mask, (batch_size, length)
        )
        memory_mask = check_mask(
            "memory_mask", memory_mask, (batch_size, num_memory)
        )
        permutation_mask = check_mask(
            "permutation_mask", permutation_mask, (batch_size, length, length)
        )
        content = finite_masked(content, content_mask)
        if memory is not None:
            memory = zero_masked(memory, memory_mask)
        keys = self._keys(content, memory, position_encoding, token_type_ids)
        content_stream_mask, query_stream_mask = _masks(
            content, memory, content_mask, memory_mask, permutation_mask
        )
        dropout = self._call_dropout(
            content, training, fold_in(dropout_seed, 0)
        )
        outputs = self._output_dense(
            self._attend(
                self._project_query(content), keys, content_stream_mask, dropout
            )
        )
        if query is None:
            return outputs
        query = finite_masked(query, targets_mask(content_mask, target_mapping))
        dropout = self._call_dropout(
            content, training, fold_in(dropout_seed, 1)
        )
        return outputs, self._output_dense(
            self._attend_targets(
                query, target_mapping, keys, query_stream_mask, dropout
            )
        )

    def _keys(self, content, memory, position_encoding, token_type_ids):
        context = content
        if memory is not None:
            context = ops.concatenate([memory, content], axis=1)  # [B, S, D]
        position_encoding = ops.cast(position_encoding, self.compute_dtype)
        positions = self._position_dense(position_encoding)
        projected = project_heads(context, self._key_dense, self._value_dense)
        return _Keys(
            *hidden_by_key(*projected),
            ops.transpose(positions, (1, 0, 2)),
            _in_other_segment(token_type_ids, memory),
        )

    def _project_query(self, states):
        """Returns scaled queries `(N, B, T, H)`."""
        (query,) = project_heads(states, self._query_dense)
        return self._scaled(query)

    def _attend_targets(self, query, target_mapping, keys, mask, dropout):
        """Computes attention of the query stream, `(B, P, N, H)`."""
        query = self._project_query(query)
        if target_mapping is not None:
            # Scatters targets to their positions, where distances start.
            query = ops.einsum("nbph,bpt->nbth", query, target_mapping)
        attended = self._attend(query, keys, mask, dropout)
        has_keys = ops.any(mask, axis=-1)[..., None, None]
        attended = ops.where(has_keys, attended, 0)
        if target_mapping is not None:
            attended = ops.einsum("btnh,bpt->bpnh", attended, target_mapping)
        return attended

    def _attend(self, query, keys, mask, dropout):
        """Computes attention `(B, T, N, H)` of one stream, see the class."""
        u, v, b = (
            self._scaled(ops.cast(bias, self.compute_dtype))
            for bias in (
                self.content_attention_bias,
                self.positional_attention_bias,
                self.segment_attention_bias,
            )
        )
        segment_scores = None
        if keys.in_other_segment is not None:
            segments = ops.cast(self.segment_embeddings, self.compute_dtype)
            same, other = ops.split(
                ops.einsum(
                    "nbth,cnh->nbtc", query + b[:, None, None], segments
                ),
                2,
                axis=-1,
            )
            segment_scores = ops.where(keys.in_other_segment, other, same)
        length, num_keys = ops.shape(query)[2], ops.shape(keys.keys)[2]
        return compute.attend(
            Problem(
                query=query,
                parts=[(keys.keys, keys.values)],
                visible=Visible(
                    num_keys - length,
                    length,
                    look_ahead=None,
                    attention_mask=mask,
                ),
                content_bias=u,
                positions=Positions((keys.positions,), v),
                score_bias=segment_scores,
                dropout=dropout,
            )
        )

    def compute_output_spec(self, content, query=None, **kwargs):
        outputs = [
            keras.KerasTensor(stream.shape, dtype=self.compute_dtype)
            for stream in (content, query)
            if stream is not None
        ]
        return outputs[0] if query is None else tuple(outputs)

    def get_config(self):
        return super().get_config() | config_of(
            TwoStreamRelativeAttention, self
        )


@dataclasses.dataclass(frozen=True)
class _Keys:
    """Holds the projected keys that both streams attend to."""

    keys: object  # [N, B, S, H]
    values: object  # [N, B, S, H]
    positions: object  # [N, S + T, H], projected distances
    in_other_segment: object  # boolean [B, T, S], or None


def targets_mask(content_mask, target_mapping):
    """Returns a mask `(B, P)` of the query stream, or `None`."""
    if target_mapping is None:
        return content_mask
    return ops.any(target_mapping != 0, axis=-1)


def _in_other_segment(token_type_ids, memory):
    if token_type_ids is None:
        return None
    key_type_ids = token_type_ids
    if memory is not None:
        memory_type_ids = ops.zeros(ops.shape(memory)[:2], token_type_ids.dtype)
        key_type_ids = ops.concatenate(
            [memory_type_ids, token_type_ids], axis=1
        )
    return token_type_ids[:, :, None] != key_type_ids[:, None]


def _masks(content, memory, content_mask, memory_mask, permutation_mask):
    """Returns the attention masks `(B, T, S)` of the content and query stream.

    For T = 3, M = 2 and no other masks (1 is visible). Keys marked `h` are
    visible to the content stream only, even where other masks are false:

             memory | segment
        i=0   1  1  |  h  1  1
        i=1   1  1  |  1  h  1
        i=2   1  1  |  1  1  h
    """
    batch_size, length, _ = ops.shape(content)
    diagonal = ops.arange(length)[:, None] == ops.arange(length)
    off_diagonal = ops.broadcast_to(~diagonal, (batch_size, length, length))
    if permutation_mask is not None:
        off_diagonal = ops.logical_and(off_diagonal, permutation_mask)
    if content_mask is not None:
        off_diagonal = ops.logical_and(off_diagonal, content_mask[:, None])
    masks = [ops.logical_or(off_diagonal, diagonal), off_diagonal]
    if memory is None:
        return masks
    shape = (batch_size, length, ops.shape(memory)[1])
    memory_part = ops.ones(shape, "bool")
    if memory_mask is not None:
        memory_part = ops.logical_and(memory_part, memory_mask[:, None])
    return [ops.concatenate([memory_part, mask], axis=-1) for mask in masks]


def _check_shapes(
    content,
    query,
    target_mapping,
    memory,
    memory_mask,
    token_type_ids,
):
    check_shape("content", content, (None, None, None))
    batch_size, length, hidden_dim = content.shape
    num_targets = length
    if target_mapping is not None:
        if query is None:
            raise ValueError(
                "`query` must be passed with `target_mapping`, which maps its "
                "targets to positions. Received: query=None"
            )
        num_targets = query.shape[1]
    check_memory_mask(memory, memory_mask)
    for name, tensor, expected in (
        ("query", query, (num_targets, hidden_dim)),
        ("target_mapping", target_mapping, (num_targets, length)),
        ("memory", memory, (None, hidden_dim)),
        ("token_type_ids", token_type_ids, (length,)),
    ):
        if tensor is not None:
            check_shape(name, tensor, (batch_size, *expected))
