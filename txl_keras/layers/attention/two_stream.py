"""XLNet's attention: one stream sees a token, the other only its place.

Letters: `B` batch, `T` segment, `M` memory, `S` = M + T keys, `P` targets,
`N` heads, `H` head size, `D` hidden size.
"""

import dataclasses

import keras
from keras import ops

from txl_keras.checks import check_dropout
from txl_keras.checks import check_integer
from txl_keras.checks import check_mask
from txl_keras.checks import check_shape
from txl_keras.layers import compute
from txl_keras.layers.attention.position_encoding import (
    RelativePositionEncoding,
)
from txl_keras.layers.compute.dropout import fold_in
from txl_keras.layers.compute.problem import Dropout
from txl_keras.layers.compute.problem import Positions
from txl_keras.layers.compute.problem import Problem
from txl_keras.layers.compute.problem import Visible
from txl_keras.layers.row_dropout import RowDropout
from txl_keras.layers.sublayers import heads_dense
from txl_keras.layers.sublayers import project_heads


@keras.saving.register_keras_serializable(package="txl_keras")
class TwoStreamRelativeAttention(keras.layers.Layer):
    """Attention of a content stream `h` and a query stream `g` to content.

    For a factorization order `z`, section 2.3 of Yang et al., 2019 (and the
    sums of appendix A.2) updates them by

        g[z_t] = Attention(Q = g[z_t], KV = h[z_<t])     not its own token
        h[z_t] = Attention(Q = h[z_t], KV = h[z_<=t])    its own token too

    with the same weights. The order is a permutation mask; without one all
    see all. For query `i` and key `j` the score is that of Transformer-XL, but
    in both directions of distance, and with a term for segments (2.5):

        A[i,j] = (q_i + u) . E_j W_k,E  +  (q_i + v) . R_{i-j} W_k,R
               + (q_i + b) . s[are i and j in different segments]

    The layer is pure: it never owns memory, and gradients do flow into the
    `memory` it is given, unless that was stopped.

    Args:
        num_heads: Integer `N`.
        key_dim: Integer `H`, the size of a head.
        dropout: Float in `[0, 1)`, dropout on the attention probabilities.
        clamp_length: Optional integer. Distances beyond it count as it.
        kernel_initializer: Initializer of all weights.
        seed: Optional integer for dropout.

    Call arguments:
        content: Tensor of shape `(B, T, D)`, the content stream.
        query: Optional tensor of shape `(B, P, D)`, the query stream.
        target_mapping: Optional tensor `(B, P, T)`: one-hot rows, where each
            target stands, or rows of zeros for no target. No two targets of a
            row stand at one place. Without it P is T, a target a token.
        memory: Optional tensor of shape `(B, M, D)`, the content before it.
        content_mask: Optional boolean `(B, T)`, false at padding.
        memory_mask: Optional boolean `(B, M)`, false where memory is empty.
        permutation_mask: Optional boolean `(B, T, T)`, true where token `i`
            may see token `j`; the diagonal does not matter. (Hugging Face's
            `perm_mask` says the opposite: 1 where it may not.)
        token_type_ids: Optional integers `(B, T)`, the segment of each token;
            memory's are 0. Without them there is no term for segments.
        position_encoding: Optional tensor `(S + T, D)`, the output of
            `RelativePositionEncoding(bidirectional=True)`, to compute it once
            for many layers.
        training: Boolean, for dropout.
        dropout_seed: Optional uint32 `(B,)`, see `RowDropout`.

    Returns:
        Tensor of shape `(B, T, D)`; with a `query` the pair of it and of
        `(B, P, D)`. A target that may see no key gets zeros: the mean of all
        keys, as a softmax would give it, tells of its own token.

    Raises:
        ValueError: On sizes that are not positive, shapes that do not fit, or
            a `target_mapping` without a `query`.

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
        super().__init__(**kwargs)
        self.num_heads = check_integer("num_heads", num_heads, 1)
        self.key_dim = check_integer("key_dim", key_dim, 1)
        self.dropout = check_dropout("dropout", dropout)
        self.clamp_length = clamp_length
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.seed = seed
        self._dropout = RowDropout(
            dropout, seed=seed, dtype=self.dtype_policy, name="dropout"
        )
        self._encode_positions = RelativePositionEncoding(
            clamp_length, bidirectional=True, name="position_encoding"
        )
        self._query_dense = heads_dense(self, "btd,dnh->btnh", "query")
        self._key_dense = heads_dense(self, "bsd,dnh->bsnh", "key")
        self._value_dense = heads_dense(self, "bsd,dnh->bsnh", "value")
        # "r" is a distance: an axis without a batch.
        self._position_dense = heads_dense(self, "rd,dnh->rnh", "position")
        self._output_dense = None  # its size, D, is known in `build`

    def build(self, content_shape):
        hidden_dim = content_shape[-1]
        for dense in (self._query_dense, self._key_dense, self._value_dense):
            dense.build((None, None, hidden_dim))
        self._position_dense.build((None, hidden_dim))
        self._output_dense = heads_dense(
            self, "btnh,dnh->btd", "output", output_shape=[None, hidden_dim]
        )
        self._output_dense.build((None, None, self.num_heads, self.key_dim))
        # u, v and b of the class.
        self.content_attention_bias = self._parameter("content_attention_bias")
        self.positional_attention_bias = self._parameter(
            "positional_attention_bias"
        )
        self.segment_attention_bias = self._parameter("segment_attention_bias")
        # s: of the same segment, then of another.
        self.segment_embeddings = self._parameter("segment_embeddings", 2)

    def _parameter(self, name, *shape):
        return self.add_weight(
            shape=(*shape, self.num_heads, self.key_dim),
            initializer=self.kernel_initializer.clone(),
            name=name,
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
        keys = self._keys(content, memory, position_encoding, token_type_ids)
        content_sees, query_sees = _masks(
            content, memory, content_mask, memory_mask, permutation_mask
        )
        dropout = self._dropout_of(content, training, fold_in(dropout_seed, 0))
        outputs = self._output_dense(
            self._attend(
                self._project_query(content), keys, content_sees, dropout
            )
        )
        if query is None:
            return outputs
        dropout = self._dropout_of(content, training, fold_in(dropout_seed, 1))
        return outputs, self._output_dense(
            self._attend_targets(
                query, target_mapping, keys, query_sees, dropout
            )
        )

    def _keys(self, content, memory, position_encoding, token_type_ids):
        context = content
        if memory is not None:
            context = ops.concatenate([memory, content], axis=1)  # [B, S, D]
        position_encoding = ops.cast(position_encoding, self.compute_dtype)
        positions = self._position_dense(position_encoding)
        return _Keys(
            *project_heads(context, self._key_dense, self._value_dense),
            ops.transpose(positions, (1, 0, 2)),
            _in_other_segment(token_type_ids, memory),
        )

    def _project_query(self, states):
        """Scaled queries `(N, B, T, H)`."""
        (query,) = project_heads(states, self._query_dense)
        return query * self.key_dim**-0.5

    def _attend_targets(self, query, target_mapping, keys, sees, dropout):
        """Attention of the query stream, `(B, P, N, H)`.

        Targets are put where they stand, since distances count from there.
        """
        query = self._project_query(query)
        if target_mapping is not None:
            query = ops.einsum("nbph,bpt->nbth", query, target_mapping)
        attended = self._attend(query, keys, sees, dropout)
        sees_any = ops.any(sees, axis=-1)[..., None, None]
        attended = ops.where(sees_any, attended, 0)
        if target_mapping is not None:
            attended = ops.einsum("btnh,bpt->bpnh", attended, target_mapping)
        return attended

    def _attend(self, query, keys, sees, dropout):
        """Attention of one stream, `(B, T, N, H)`: the equation of the class.

        Args:
            query: Tensor `(N, B, T, H)`.
            keys: `_Keys`.
            sees: Boolean `(B, T, S)`.
            dropout: Optional `Dropout`.
        """
        u, v, b = (
            ops.cast(bias, self.compute_dtype) * self.key_dim**-0.5
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
                    causal=False,
                    attention_mask=sees,
                ),
                content_bias=u,
                positions=Positions((keys.positions,), v, nearest=1 - length),
                score_bias=segment_scores,
                dropout=dropout,
            )
        )

    def _dropout_of(self, content, training, dropout_seed):
        """`Dropout` of the probabilities of a call, or `None`."""
        if not training or not self.dropout:
            return None
        seeds = self._dropout.row_seeds(ops.shape(content)[0], dropout_seed)
        return Dropout(float(self.dropout), seeds)

    def compute_output_spec(self, content, query=None, **kwargs):
        outputs = [
            keras.KerasTensor(stream.shape, dtype=self.compute_dtype)
            for stream in (content, query)
            if stream is not None
        ]
        return outputs[0] if query is None else tuple(outputs)

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "dropout": self.dropout,
            "clamp_length": self.clamp_length,
            "kernel_initializer": keras.initializers.serialize(
                self.kernel_initializer
            ),
            "seed": self.seed,
        }


@dataclasses.dataclass(frozen=True)
class _Keys:
    """What both streams attend to.

    Attributes:
        keys, values: Tensors `(N, B, S, H)`.
        positions: Tensor `(N, S + T, H)`, the projected distances.
        in_other_segment: Optional boolean `(B, T, S)`.
    """

    keys: object
    values: object
    positions: object
    in_other_segment: object


def _in_other_segment(token_type_ids, memory):
    if token_type_ids is None:
        return None
    of_keys = token_type_ids
    if memory is not None:
        of_memory = ops.zeros(ops.shape(memory)[:2], token_type_ids.dtype)
        of_keys = ops.concatenate([of_memory, token_type_ids], axis=1)
    return token_type_ids[:, :, None] != of_keys[:, None]


def _masks(content, memory, content_mask, memory_mask, permutation_mask):
    """What the two streams may see.

    For T = 3, M = 2, and no other masks; the content stream sees what is
    marked `h` too, whatever the masks:

             memory | segment
        i=0   1  1  |  h  1  1
        i=1   1  1  |  1  h  1
        i=2   1  1  |  1  1  h

    Returns:
        The pair of booleans `(B, T, S)`, of content and query stream.
    """
    batch_size, length, _ = ops.shape(content)
    itself = ops.arange(length)[:, None] == ops.arange(length)
    others = ops.broadcast_to(~itself, (batch_size, length, length))
    if permutation_mask is not None:
        others = ops.logical_and(others, permutation_mask)
    if content_mask is not None:
        others = ops.logical_and(others, content_mask[:, None])
    masks = [ops.logical_or(others, itself), others]
    if memory is None:
        return masks
    shape = (batch_size, length, ops.shape(memory)[1])
    of_memory = ops.ones(shape, "bool")
    if memory_mask is not None:
        of_memory = ops.logical_and(of_memory, memory_mask[:, None])
    return [ops.concatenate([of_memory, mask], axis=-1) for mask in masks]


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
                "`target_mapping` tells where the targets of `query` stand, "
                "so it needs one. Received: query=None"
            )
        num_targets = query.shape[1]
    if memory is None and memory_mask is not None:
        raise ValueError(
            "`memory_mask` tells which entries of `memory` are real, so it "
            "needs one. Received: memory=None"
        )
    for name, tensor, expected in (
        ("query", query, (num_targets, hidden_dim)),
        ("target_mapping", target_mapping, (num_targets, length)),
        ("memory", memory, (None, hidden_dim)),
        ("token_type_ids", token_type_ids, (length,)),
    ):
        if tensor is not None:
            check_shape(name, tensor, (batch_size, *expected))
