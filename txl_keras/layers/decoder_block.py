"""One Transformer-XL block, section 3.3 of the paper."""

import inspect
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from txl_keras.backend import tf
from txl_keras.checks import check_integer
from txl_keras.checks import check_one_of
from txl_keras.layers.causal import CausalMultiHeadAttention
from txl_keras.layers.causal import check_memory
from txl_keras.layers.causal import check_steps_mask
from txl_keras.layers.compute.dropout import fold_in
from txl_keras.layers.compute.problem import finite_masked
from txl_keras.layers.compute.problem import zero_masked
from txl_keras.layers.relative import RelativeMultiHeadAttention
from txl_keras.layers.relative import ShawMultiHeadAttention
from txl_keras.layers.sublayers import Block
from txl_keras.types import Tensor

# Position encodings. Absolute positions do not allow memory, because positions
# in memory would clash with positions in the segment (section 3.3).
_ATTENTIONS = {
    "relative": RelativeMultiHeadAttention,
    "shaw": ShawMultiHeadAttention,
    "vaswani": CausalMultiHeadAttention,
    "al_rfou": CausalMultiHeadAttention,
}
ATTENTION_TYPES = tuple(_ATTENTIONS)
ABSOLUTE_TYPES = ("vaswani", "al_rfou")


@keras.saving.register_keras_serializable(package="txl_keras")
class DecoderBlock(Block):
    """Computes one block: attention and a feed-forward network.

    Both have a residual connection. The default is post-norm, as in the
    equations at the end of section 3.3 of the paper:

        a = LayerNorm(x + Attention(x, memory))
        y = LayerNorm(a + FeedForward(a)),   FeedForward = W_2 ReLU(W_1 .)

    Pre-norm (`normalize_first=True`) normalizes the inputs of both parts, and
    the memory, but not the residual stream:

        a = x + Attention(LayerNorm(x), LayerNorm(memory))
        y = a + FeedForward(LayerNorm(a))

    Args:
        num_heads: Integer.
        head_dim: Integer, the size of a head.
        intermediate_dim: Integer, the inner size of the feed-forward network.
        dropout: Float in `[0, 1)`, dropout after the attention, after the
            ReLU and after the feed-forward network, by default 0.
        attention_dropout: Float in `[0, 1)`, dropout on the attention
            probabilities, by default 0.
        normalize_first: Boolean, uses pre-norm instead of post-norm.
        layer_norm_epsilon: Float, added to the variance, by default 1e-5.
        attention_type: String.
            `"relative"`: relative positions of the paper, see
            `RelativeMultiHeadAttention`.
            `"shaw"`: relative keys, see `ShawMultiHeadAttention`.
            `"vaswani"`: absolute positions, which `inputs` must include.
            `"al_rfou"`: the vanilla Transformer of the paper. The block adds
            learned absolute positions to its inputs (Al-Rfou et al., 2018,
            section 2). Positions are counted from the end of the segment, as in
            the code of Dai et al. Inputs of unknown length need TensorFlow.
            The last two do not support memory.
        max_positions: Integer, the number of rows of the learned tables.
            Required by `"shaw"`, for distances, and by `"al_rfou"`, where it
            is the longest segment length.
        clamp_length: Optional integer, used by `"relative"` and `"shaw"`.
        same_length, look_ahead: See `CausalMultiHeadAttention`.
        tie_attention_biases: Boolean, used by `"relative"`: see
            `RelativeMultiHeadAttention`.
        kernel_initializer: Initializer of all kernels, by default
            `"glorot_uniform"`.

    Call arguments:
        inputs: Tensor of shape `(B, T, D)`.
        memory: Optional tensor of shape `(B, M, D)`, earlier `inputs` of this
            block.
        inputs_mask: Optional boolean `(B, T)`, false at padding.
        memory_mask, attention_mask, training, dropout_seed: See
            `CausalMultiHeadAttention`.
        position_encoding, attention_biases: See `RelativeMultiHeadAttention`;
            only used by `"relative"`.
        return_attention_scores: Boolean, also returns the probabilities.

    Returns:
        Tensor of shape `(B, T, D)`; with `return_attention_scores=True` also
        the probabilities, see `CausalMultiHeadAttention`.

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
        num_heads: int,
        head_dim: int,
        intermediate_dim: int,
        normalize_first: bool = False,
        attention_type: str = "relative",
        max_positions: int | None = None,
        clamp_length: int | None = None,
        same_length: bool | str = False,
        look_ahead: int = 0,
        tie_attention_biases: bool = False,
        **kwargs,
    ):
        super().__init__(num_heads, head_dim, intermediate_dim, **kwargs)
        self.normalize_first = normalize_first
        is_default = type(self).residual is DecoderBlock.residual
        if not (normalize_first or is_default):
            raise ValueError(
                "`normalize_first` must be True for a block that overrides "
                "`residual`: post-norm blocks do not call it. Received: "
                f"normalize_first={normalize_first} of {type(self).__name__}"
            )
        check_one_of("attention_type", attention_type, ATTENTION_TYPES)
        if attention_type in ("shaw", "al_rfou"):
            check_integer("max_positions", max_positions, 1)
        if attention_type in ABSOLUTE_TYPES and same_length:
            raise ValueError(
                f"`same_length` must be False with attention_type="
                f"{attention_type!r}, which does not support memory. "
                f"Received: same_length={same_length}"
            )
        self.attention_type = attention_type
        self.max_positions = max_positions
        self.clamp_length = clamp_length
        self.same_length = same_length
        self.look_ahead = look_ahead  # checked by the attention
        self.tie_attention_biases = tie_attention_biases
        self._add_sublayers(_ATTENTIONS[attention_type], "relu")

    def build(self, inputs_shape):
        super().build(inputs_shape)
        if self.attention_type == "al_rfou":
            # The last row is for the last token of a segment.
            self.position_embeddings = self._parameter(
                "position_embeddings", self.max_positions, inputs_shape[-1]
            )

    def call(
        self,
        inputs,
        memory=None,
        inputs_mask=None,
        memory_mask=None,
        attention_mask=None,
        position_encoding=None,
        attention_biases=None,
        training=None,
        dropout_seed=None,
        return_attention_scores=False,
    ):
        inputs_mask = check_steps_mask("inputs_mask", inputs_mask, inputs)
        inputs = self._with_positions(finite_masked(inputs, inputs_mask))
        if memory is not None:
            memory, memory_mask = check_memory(memory, memory_mask, inputs)
            check_remembers(
                self.attention_type,
                memory.shape[1],
                f"memory.shape={memory.shape}",
            )
            memory = self.attention_inputs(memory, memory_mask)
        attended = self.attention(
            self.attention_inputs(inputs),
            memory=memory,
            query_mask=inputs_mask,
            memory_mask=memory_mask,
            attention_mask=attention_mask,
            training=training,
            dropout_seed=fold_in(dropout_seed, 0),
            return_attention_scores=return_attention_scores,
            position_encoding=position_encoding,
            attention_biases=attention_biases,
        )
        scores = []
        if return_attention_scores:
            attended, *scores = attended
        outputs = self._transform(inputs, attended, training, dropout_seed)
        return (outputs, *scores) if return_attention_scores else outputs

    def attend_projected(
        self,
        inputs: Tensor,
        past: Any,
        positions: Sequence[Tensor] = (),
        attention_biases: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Computes the block as `CausalMultiHeadAttention.attend_projected`."""
        inputs = self._with_positions(inputs)
        attended, *projected = self.attention.attend_projected(
            self.attention_inputs(inputs),
            past,
            positions,
            attention_biases,
        )
        return self._transform(inputs, attended), *projected

    def project_positions(self, num_distances: int) -> tuple[Tensor, ...]:
        """Projects positions: `CausalMultiHeadAttention.project_positions`."""
        return self.attention.project_positions(num_distances)

    def project(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Projects memory as `CausalMultiHeadAttention.project`."""
        return self.attention.project(self.attention_inputs(memory))

    def attention_inputs(
        self, states: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Normalizes the states that attention receives, with pre-norm."""
        if not self.normalize_first:
            return states
        return self._attention_norm(zero_masked(states, mask))

    def _with_positions(self, inputs):
        """Adds learned absolute positions, if the block has any."""
        if self.attention_type != "al_rfou":
            return inputs
        length = inputs.shape[1]
        if length is None:  # known at run time only
            length = ops.shape(inputs)[1]
            tf.debugging.assert_less_equal(length, self.max_positions)
        elif length > self.max_positions:
            raise ValueError(
                "The segment length of `inputs` must be at most "
                f"`max_positions`, {self.max_positions}. Received: "
                f"inputs.shape={inputs.shape}"
            )
        positions = self.position_embeddings[self.max_positions - length :]
        return inputs + ops.cast(positions, inputs.dtype)

    def _transform(self, inputs, attended, training=False, dropout_seed=None):
        """Computes the equations above from the output of attention."""
        if not self.normalize_first:
            return self._post_norm(
                inputs, attended, training, dropout_seed, first_site=1
            )

        attended = self._drop(attended, training, dropout_seed, site=1)
        x = self.residual(inputs, attended, "attention")
        update = self._feed_forward(
            self._feed_forward_norm(x), training, dropout_seed, first_site=2
        )
        return self.residual(x, update, "feed_forward")

    def residual(self, inputs: Tensor, update: Tensor, sublayer: str) -> Tensor:
        """Adds the output of a sublayer to the stream of a pre-norm block.

        All are `(B, T, D)`; `sublayer` is `"attention"` or `"feed_forward"`.
        """
        return inputs + update

    def compute_output_shape(self, inputs_shape):
        return inputs_shape

    def compute_output_spec(self, *args, **kwargs):
        call = inspect.signature(self.call).bind(*args, **kwargs).arguments
        names = "memory", "attention_biases", "return_attention_scores"
        options = {name: call[name] for name in names if name in call}
        inputs = next(iter(call.values()))
        return self.attention.compute_output_spec(inputs, **options)


def check_remembers(attention_type, memory_length, received):
    """Raises if absolute positions meet memory (length `None`: unknown)."""
    if attention_type in ABSOLUTE_TYPES and memory_length != 0:
        raise ValueError(
            f"`attention_type={attention_type!r}` has absolute positions, "
            "which start anew in every segment and do not work with memory: "
            f"`memory_length` must be 0. Received: {received}"
        )
