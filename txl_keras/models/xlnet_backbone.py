"""The XLNet backbone, from token ids to two streams of hidden states.

More letters: `P` targets.
"""

import functools

import keras
from keras import ops

from txl_keras.checks import check_integer
from txl_keras.checks import check_mask
from txl_keras.checks import check_one_of
from txl_keras.checks import check_shape
from txl_keras.extending import register
from txl_keras.keras_internals import build_and_stay_open
from txl_keras.layers.compute.dropout import fold_in
from txl_keras.layers.position_encoding import RelativePositionEncoding
from txl_keras.layers.two_stream import TwoStreamBlock
from txl_keras.models.recurrent_backbone import RecurrentBackbone

# With "uni" no token attends to later tokens.
ATTENTION_TYPES = ("bi", "uni")


@keras.saving.register_keras_serializable(package="txl_keras")
class XLNetBackbone(RecurrentBackbone):
    """Encodes a segment and its memory with L two-stream blocks.

    A call has no side effects: it takes memory as a value and returns the new
    memory. The content stream starts from the embedded tokens. The query
    stream, which predicts, starts from one vector for all targets (section 2.3
    of Yang et al., 2019).

    Args:
        vocabulary_size, num_layers, num_heads, hidden_dim, intermediate_dim,
            head_dim, memory_length: Integers, see `TransformerXLBackbone`.
        reuse_length: Optional integer. Only the first `reuse_length` tokens of
            a segment are remembered; by default all.
        attention_type: `"bi"`: a token attends to earlier and later tokens, as
            far as the permutation mask allows. `"uni"`: not to later tokens.
        dropout, attention_dropout, clamp_length, layer_norm_epsilon,
            initializer_stddev: See `TransformerXLBackbone`.

    Call arguments:
        token_ids: Integer tensor of shape `(B, T)`, ids in `[0, V)`.
        token_type_ids: Optional integers `(B, T)`, the segment (sentence A, B)
            of each token. Tokens in memory have type 0.
        padding_mask: Optional boolean `(B, T)`, false at padding. It applies to
            this segment only: later segments attend to padding in memory.
        permutation_mask: Optional boolean `(B, T, T)`, true where token `i`
            may attend to token `j`; the opposite of Hugging Face's
            `perm_mask`. A token always attends to itself, and a target never
            to its own token. Mask a target for all other tokens, too: from the
            second layer on, tokens that attend to it reveal it.
        target_mapping: Optional tensor `(B, P, T)` of one-hot rows, the
            position of each target; a row of zeros is not a target.
        memory, training, dropout_seed, first_row: See `TransformerXLBackbone`.
            A cold start is masked.
        reset: Optional boolean `(B,)`, true for rows whose memory is reset
            before reading.

    Returns:
        The pair of the content stream `(B, T, D)` and the new `Memory`, whose
        gradient is stopped. With a `target_mapping`, the triple of content
        stream, query stream `(B, P, D)` and new `Memory`.

    Example:

    ```python
    import numpy as np
    from txl_keras.models import XLNetBackbone

    backbone = XLNetBackbone(
        vocabulary_size=50, num_layers=2, num_heads=2, hidden_dim=16,
        intermediate_dim=32, memory_length=12,
    )
    ids = np.ones((3, 4), "int32")
    content, memory = backbone(ids)
    # Predict the last token from all others and from memory.
    targets = np.eye(4)[None, 3:].repeat(3, axis=0)  # (3, 1, 4)
    visible = np.ones((3, 4, 4), bool)
    visible[:, :, 3] = False
    content, query, memory = backbone(
        ids, permutation_mask=visible, target_mapping=targets, memory=memory
    )
    ```

    Reference:
        [Yang et al., 2019](https://arxiv.org/abs/1906.08237).
    """

    presets = trained_presets = {}
    block_class = TwoStreamBlock
    hugging_face_type = "xlnet"

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        intermediate_dim: int,
        head_dim: int | None = None,
        memory_length: int = 0,
        reuse_length: int | None = None,
        attention_type: str = "bi",
        attention_dropout: float = 0.0,
        clamp_length: int | None = None,
        layer_norm_epsilon: float = 1e-12,
        **kwargs,
    ):
        super().__init__(
            check_integer("vocabulary_size", vocabulary_size, 1),
            num_layers,
            hidden_dim,
            **kwargs,
        )
        self._set_heads(num_heads, head_dim, intermediate_dim, memory_length)
        if reuse_length is not None:
            check_integer("reuse_length", reuse_length, 1)
        check_one_of("attention_type", attention_type, ATTENTION_TYPES)
        self.reuse_length = reuse_length
        self.attention_type = attention_type
        self.attention_dropout = attention_dropout
        self.clamp_length = clamp_length
        self.layer_norm_epsilon = layer_norm_epsilon
        self.token_embedding = self._embedding()
        self._position_encoding = RelativePositionEncoding(
            clamp_length, look_ahead=None, name="position_encoding"
        )
        self.blocks = [self.make_block(i) for i in range(num_layers)]
        build_and_stay_open(self)

    def build(self, token_ids_shape):
        super().build(token_ids_shape)
        # w of section 2.3, the initial query of every target.
        self.mask_embedding = self.add_weight(
            shape=(self.hidden_dim,),
            initializer=self.kernel_initializer(),
            name="mask_embedding",
        )

    def call(
        self,
        token_ids,
        token_type_ids=None,
        padding_mask=None,
        permutation_mask=None,
        target_mapping=None,
        memory=None,
        reset=None,
        training=None,
        dropout_seed=None,
        first_row=0,
    ):
        token_ids, memory = self._begin(token_ids, memory, reset)
        batch_size, length = ops.shape(token_ids)
        padding_mask = check_mask(
            "padding_mask", padding_mask, (batch_size, length)
        )
        permutation_mask = check_mask(
            "permutation_mask", permutation_mask, (batch_size, length, length)
        )
        if self.attention_type == "uni":
            causal = causal_mask(batch_size, length)
            is_free = permutation_mask is None
            permutation_mask = causal if is_free else causal & permutation_mask
        if target_mapping is not None:
            expected = (batch_size, None, length)
            check_shape("target_mapping", target_mapping, expected)
        row_seeds = self._row_seeds(dropout_seed, first_row, batch_size)
        drop = functools.partial(
            self._drop, training=training, row_seeds=row_seeds
        )

        h = drop(self.token_embedding(token_ids), 0)  # [B, T, D]
        g = None
        if target_mapping is not None:
            shape = (*ops.shape(target_mapping)[:2], self.hidden_dim)
            query = ops.cast(self.mask_embedding, self.compute_dtype)
            g = drop(ops.broadcast_to(query, shape), 1)  # [B, P, D]
        common = {
            "target_mapping": target_mapping,
            "content_mask": padding_mask,
            "memory_mask": memory.mask(),
            "permutation_mask": permutation_mask,
            "token_type_ids": token_type_ids,
            "position_encoding": self._positions(
                h, memory, training, fold_in(dropout_seed, 0)
            ),
            "training": training,
        }

        block_inputs = []
        for i, block in enumerate(self.blocks):
            block_inputs.append(h[:, : self.reuse_length])
            seeds = fold_in(row_seeds, i + 2)
            streams = block(
                h, g, memory=memory.states[i], dropout_seed=seeds, **common
            )
            h, g = (streams, None) if g is None else streams
        memory = memory.extend(block_inputs)
        h = drop(h, self.num_layers + 2)
        if g is None:
            return h, memory
        return h, drop(g, self.num_layers + 3), memory


def causal_mask(batch_size, length):
    """Returns a boolean `(B, T, T)`, true where token `j` is not after `i`."""
    causal = ops.arange(length)[:, None] >= ops.arange(length)
    return ops.broadcast_to(causal, (batch_size, length, length))


register("backbone", xlnet=XLNetBackbone)
