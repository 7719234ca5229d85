"""The Transformer-XL backbone, from tokens to hidden states and memory."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from txl_keras.checks import check_integer
from txl_keras.checks import check_mask
from txl_keras.checks import check_number
from txl_keras.checks import check_one_of
from txl_keras.checks import check_shape
from txl_keras.checks import shown
from txl_keras.extending import register
from txl_keras.keras_internals import build_and_stay_open
from txl_keras.keras_internals import get_keras_mask
from txl_keras.keras_internals import set_keras_mask
from txl_keras.layers.causal import check_steps_mask
from txl_keras.layers.compute import target
from txl_keras.layers.compute.dropout import fold_in
from txl_keras.layers.compute.problem import zero_masked
from txl_keras.layers.decoder_block import ABSOLUTE_TYPES
from txl_keras.layers.decoder_block import DecoderBlock
from txl_keras.layers.decoder_block import check_remembers
from txl_keras.layers.kv_cache import ProjectedMemory
from txl_keras.layers.memory import COLD_STARTS
from txl_keras.layers.memory import Memory
from txl_keras.layers.memory import Padding
from txl_keras.layers.position_encoding import RelativePositionEncoding
from txl_keras.layers.sublayers import layer_norm
from txl_keras.models.recurrent_backbone import RecurrentBackbone
from txl_keras.types import Tensor
from txl_keras.weights import normal_initializer


@keras.saving.register_keras_serializable(package="txl_keras")
class TransformerXLBackbone(RecurrentBackbone):
    """Encodes a segment and its memory with a token embedding and L blocks.

    A call has no side effects: it takes memory as a value and returns the new
    memory. Only a `stateful` backbone keeps memory from call to call.

    The inputs are token ids, or embeddings of anything else, such as a time
    series or audio.

    Args:
        vocabulary_size: Integer `V`, or `None` for a backbone without a token
            embedding, which takes `embeddings` as input.
        num_layers: Integer `L`.
        num_heads: Integer `N`.
        hidden_dim: Integer `D`, even.
        intermediate_dim: Integer, inner size of the feed-forward networks.
        head_dim: Integer `H`; by default `D / N`, which must be an integer.
        memory_length: Integer `M`, the number of earlier tokens that each
            block remembers, unless a memory of another length is passed in.
        cutoffs, embedding_dim, div_val, project_same_dim: Arguments of the
            token embedding, see `AdaptiveEmbedding`. The default is an ordinary
            embedding of size D.
        attention_type, max_positions: See `DecoderBlock`; `"vaswani"` adds
            sinusoids to the embedding, counted from the end of the segment.
        dropout: Float, dropout on embeddings, positions and inside the blocks.
        attention_dropout: Float, dropout on attention probabilities.
        clamp_length: Optional integer. Larger distances are clamped to it (with
            `"shaw"`, to `clamp_length - 1`: it counts rows).
        same_length: `False`, `True` or `"pytorch"`. Unless `False`, every
            query attends to the same number of keys: see
            `CausalMultiHeadAttention` for the two ways to count keys.
        look_ahead: Integer, the number of later tokens of the segment that each
            block attends to, see `CausalMultiHeadAttention`. With L blocks a
            hidden state depends on `L * look_ahead` later tokens, on fewer near
            the end of a segment. So hidden states depend on how a stream is cut
            into segments. Memory stays causal. Must be 0 for language models,
            because later tokens include the targets.
        tie_attention_biases: Boolean, all blocks share one `u` and one `v`.
        normalize_first: Boolean, pre-norm rather than the paper's post-norm.
        normalize_output: Boolean, a layer norm after the last block, as is
            common in pre-norm models.
        layer_norm_epsilon: Float.
        initializer_stddev: Float, standard deviation of the normal
            distribution that initializes kernels, embeddings, `u` and `v`.
        projection_initializer_stddev: Optional float, standard deviation of
            the initial projections of adaptive embedding and softmax. By
            default one over the square root of a table's width, so that rare
            words start at the scale of frequent words. With the original's 0.01
            (in the presets) it takes long until training beats predicting words
            by their frequency.
        cold_start: See `MemoryStack`.
        stateful: Boolean, as in `keras.layers.RNN`: without a `memory`
            argument, row r of a batch continues row r of the batch before it.
            If your own model contains the backbone, pass `shuffle=False` and
            `callbacks=[ResetMemory()]` to `fit`. Training and inference have
            separate memories, which are not weights.

    Call arguments:
        token_ids: Integer tensor of shape `(B, T)`, ids in `[0, V)`.
        memory: Optional `Memory`; by default the memory of a cold start.
        reset: Optional boolean tensor `(B,)`, true for rows whose memory is
            reset before reading; or `(B, T)`, true for the first steps of new
            texts or episodes, which then attend to nothing before them, neither
            memory nor segment. `(B, T)` needs `cold_start="masked"`.
        mask: Optional boolean tensor `(B, T)`, false at padding, which may be
            anywhere. Padding is neither attended to nor remembered, even if it
            is NaN, and does not count in distances. Its hidden states have no
            meaning. Later layers and losses get their mask. Needs relative
            positions.
        training: Boolean, for dropout.
        dropout_seed: Optional uint32 scalar. If given, dropout depends only on
            the seed and on the number of the row.
        first_row: Integer, the number of the first row, if the batch is a
            replica's part of a larger batch.
        return_attention_scores: Boolean, return attention probabilities. With
            a `mask`, the padding of each row is at the end of its segment.
        embeddings: Float tensor of shape `(B, T, D)`, passed by name instead of
            `token_ids`. Unlike token embeddings, they are not multiplied by
            `sqrt(D)`.

    Returns:
        The pair of hidden states `(B, T, D)` and the new `Memory`. With
        `return_attention_scores=True` a third value is a tuple of L float32
        tensors `(B, N, T, S)`, the probabilities of each block.

    Example:

    ```python
    import numpy as np
    from txl_keras.models import TransformerXLBackbone

    backbone = TransformerXLBackbone(
        vocabulary_size=50, num_layers=2, num_heads=2, hidden_dim=16,
        intermediate_dim=32, memory_length=12,
    )
    hidden, memory = backbone(np.zeros((3, 8), "int32"))
    hidden, memory = backbone(np.ones((3, 8), "int32"), memory=memory)
    ```

    A model that predicts the next value of 2 time series from 5 features:

    ```python
    import keras
    import numpy as np
    from txl_keras.callbacks import ResetMemory
    from txl_keras.models import TransformerXLBackbone

    backbone = TransformerXLBackbone(
        vocabulary_size=None, num_layers=1, num_heads=2, hidden_dim=16,
        intermediate_dim=32, memory_length=12, stateful=True,
    )
    features = keras.Input((8, 5))
    hidden, _ = backbone(embeddings=keras.layers.Dense(16)(features))
    model = keras.Model(features, keras.layers.Dense(1)(hidden))
    model.compile("adam", "mse")
    x, y = np.ones((6, 8, 5)), np.ones((6, 8, 1))  # 3 batches of 2 rows
    model.fit(
        x, y, batch_size=2, shuffle=False, callbacks=[ResetMemory()], verbose=0
    )
    ```

    Reference:
        [Dai et al., 2019](https://arxiv.org/abs/1901.02860), section 3.
    """

    block_class = DecoderBlock
    evaluation_arguments = ("same_length", "clamp_length")
    has_parts = True
    shows_attention = True

    def __init__(
        self,
        vocabulary_size: int | None,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        intermediate_dim: int,
        head_dim: int | None = None,
        memory_length: int = 0,
        attention_type: str = "relative",
        max_positions: int | None = None,
        attention_dropout: float = 0.0,
        clamp_length: int | None = None,
        same_length: bool | str = False,
        look_ahead: int = 0,
        tie_attention_biases: bool = True,
        normalize_first: bool = False,
        normalize_output: bool = False,
        layer_norm_epsilon: float = 1e-5,
        projection_initializer_stddev: float | None = None,
        cold_start: str = "masked",
        stateful: bool = False,
        **kwargs,
    ):
        super().__init__(vocabulary_size, num_layers, hidden_dim, **kwargs)
        self._set_heads(num_heads, head_dim, intermediate_dim, memory_length)
        if projection_initializer_stddev is not None:
            check_number(
                "projection_initializer_stddev",
                projection_initializer_stddev,
                0,
            )
        self.attention_type = attention_type
        self.check_remembers(memory_length)
        self.max_positions = max_positions
        self.attention_dropout = attention_dropout
        self.clamp_length = clamp_length
        self.same_length = same_length
        self.look_ahead = check_integer("look_ahead", look_ahead, 0)
        self.tie_attention_biases = tie_attention_biases
        self.normalize_first = normalize_first
        self.normalize_output = normalize_output
        self.layer_norm_epsilon = layer_norm_epsilon
        self.projection_initializer_stddev = projection_initializer_stddev
        self.cold_start = check_one_of("cold_start", cold_start, COLD_STARTS)
        self.stateful = bool(stateful)
        self.supports_masking = True  # of the hidden states
        self.token_embedding = self._embedding(
            projection_initializer=self.projection_initializer()
        )
        self._position_encoding = RelativePositionEncoding(
            clamp_length,
            # Absolute positions depend on the tokens themselves.
            look_ahead=look_ahead if attention_type == "relative" else 0,
            name="position_encoding",
        )
        self.blocks = [self.make_block(i) for i in range(num_layers)]
        self._output_norm = None
        if normalize_output:
            self._output_norm = layer_norm(self, "output_norm")
        if stateful:
            self._training_memory, self._inference_memory = self.memory_stacks()
        build_and_stay_open(self)

    def projection_initializer(self) -> keras.Initializer:
        """Returns the initializer of projections between tables and size D."""
        stddev = self.projection_initializer_stddev
        if stddev is not None:
            return normal_initializer(stddev)
        return keras.initializers.VarianceScaling(
            mode="fan_in", distribution="untruncated_normal"
        )

    def build(self, token_ids_shape):
        super().build(token_ids_shape)
        if self._shares_attention_biases:
            # u and v of section 3.3.
            for name in ("content_attention_bias", "positional_attention_bias"):
                bias = self.add_weight(
                    shape=(self.num_heads, self.head_dim),
                    initializer=self.kernel_initializer(),
                    name=name,
                )
                setattr(self, name, bias)

    @property
    def _shares_attention_biases(self):
        return self.tie_attention_biases and self.attention_type == "relative"

    def check_remembers(self, memory_length: int) -> None:
        """Raises `ValueError` if the model cannot have this memory length."""
        super().check_remembers(memory_length)
        received = f"memory_length={memory_length}"
        check_remembers(self.attention_type, memory_length, received)

    @property
    def remembers(self):
        return self.attention_type not in ABSOLUTE_TYPES

    @property
    def max_segment_length(self):
        return self.max_positions if self.attention_type == "al_rfou" else None

    def call(
        self,
        token_ids=None,
        memory=None,
        reset=None,
        mask=None,
        training=None,
        dropout_seed=None,
        first_row=0,
        return_attention_scores=False,
        embeddings=None,
    ):
        inputs = self._check_inputs(token_ids, embeddings)
        batch_size = ops.shape(inputs)[0]
        stack = None
        if memory is None and self.stateful:
            stack = (
                self._training_memory if training else self._inference_memory
            )
            memory = stack.read(batch_size)
        episodes, reset = self._episodes(reset, inputs)
        memory = self._begin_memory(memory, batch_size, reset)
        padding = Padding(check_steps_mask("mask", mask, inputs))
        if padding.mask is not None:
            self.check_takes_padding()
        if not (self.dropout or self.attention_dropout):
            # Unused hashes of seeds would be a seventh of the operations in a
            # small model's training step, and take seconds to compile.
            dropout_seed = None
        row_seeds = self._row_seeds(dropout_seed, first_row, batch_size)

        # Padding is at the end until the hidden states are returned.
        inputs, mask = map(padding.at_the_end, (inputs, padding.mask))
        x = zero_masked(self._embed(inputs), mask)
        x = self._drop(x, 0, training, row_seeds)
        common = {
            "inputs_mask": mask,
            "memory_mask": memory.mask(),
            "attention_mask": episodes.attention_mask(memory.length, padding),
            "training": training,
            "return_attention_scores": return_attention_scores,
        }
        if self.attention_type == "relative":
            seed = fold_in(dropout_seed, 0)
            encoding = self._positions(x, memory, training, seed)
            common["position_encoding"] = encoding
            common["attention_biases"] = self._attention_biases()
        states, scores = [x], []
        for i, block in enumerate(self.blocks):
            seeds = fold_in(row_seeds, i + 1)
            x = block(x, memory.states[i], dropout_seed=seeds, **common)
            if return_attention_scores:
                x, probabilities = x
                scores.append(probabilities)
            states.append(x)

        last = episodes.last(memory, states, padding)
        memory = self.remember(*last, training)
        if stack is not None:
            stack.write(memory)

        site = self.num_layers + 1
        x = self._drop(self._normalized(x), site, training, row_seeds)
        hidden = padding.in_place(x)
        if padding.mask is not None and get_keras_mask(hidden) is None:
            set_keras_mask(hidden, padding.mask)
        if return_attention_scores:
            return hidden, memory, tuple(scores)
        return hidden, memory

    def _normalized(self, x):
        return x if self._output_norm is None else self._output_norm(x)

    def remember(
        self,
        memory: Memory,
        states: Sequence[Tensor],
        lengths: Tensor | None = None,
        training: bool | None = False,
    ) -> Memory:
        """Returns the memory after a segment: block n remembers its inputs.

        Args:
            memory: `Memory` before the segment.
            states: L + 1 tensors `(B, T, D)`, the input of the first block and
                the outputs of all blocks.
            lengths: See `Memory.extend`.
            training: Boolean, as in the call.
        """
        return memory.extend(states[:-1], lengths)

    def entries(
        self,
        states: Sequence[Tensor],
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
    ) -> tuple:
        """Returns the entries that `append` adds to a cache for a segment.

        Args:
            states: See `remember`.
            keys, values: L tensors `(B, N, T, H)` each, projected from the
                inputs of the blocks.
        """
        return tuple(keys), tuple(values)

    def _episodes(self, reset, inputs):
        """Splits `reset` into `Episodes` and resets of rows."""
        if reset is None or ops.ndim(reset) != 2:
            return Episodes(None), reset
        if self.cold_start != "masked":
            raise ValueError(
                "`reset` must be of shape (B,) unless cold_start='masked': "
                "otherwise a new episode would have no zeros before it. "
                f"Received: reset of shape {ops.shape(reset)}"
            )
        reset = check_mask("reset", reset, ops.shape(inputs)[:2])
        return Episodes(reset), None

    def _check_inputs(self, token_ids, embeddings):
        """Returns ids `(B, T)` or embeddings `(B, T, D)`."""
        if (token_ids is None) == (embeddings is None):
            raise ValueError(
                "`token_ids` or `embeddings` must be passed, and not both. "
                f"Received: token_ids={shown(token_ids)}, "
                f"embeddings={shown(embeddings)}"
            )
        if embeddings is None:
            if self.token_embedding is None:
                raise ValueError(
                    "`embeddings` must be passed to a backbone with "
                    "vocabulary_size=None, which has no token embedding. "
                    f"Received: token_ids={shown(token_ids)}"
                )
            return self._check_token_ids(token_ids)
        embeddings = ops.convert_to_tensor(embeddings)
        check_shape("embeddings", embeddings, (None, None, self.hidden_dim))
        dtype = keras.backend.standardize_dtype(embeddings.dtype)
        if not keras.backend.is_float_dtype(dtype):
            raise ValueError(
                "`embeddings` must be floats. Token ids are passed as "
                f"`token_ids`. Received: dtype {dtype}"
            )
        return embeddings

    def _embed(self, inputs):
        """Returns the first block's input `(B, T, D)`."""
        if len(inputs.shape) == 2:
            x = self.token_embedding(inputs) * self.hidden_dim**0.5
        else:
            x = ops.cast(inputs, self.compute_dtype)
        if self.attention_type == "vaswani":
            x = x + ops.cast(self._position_encoding(x), x.dtype)
        return x

    def call_projected(
        self, token_ids: Tensor, memory: Memory, positions: Any
    ) -> Any:
        """Reads a segment after a `ProjectedMemory`: see `DecoderBlock`.

        Returns the hidden states `(B, T, D)` of a call, L keys and L values
        `(B, N, T, H)`. For inference only: the weights must be those that
        computed `memory` and `positions`, as `SegmentReader` ensures.
        """
        x = self._embed(token_ids)
        biases = self._attention_biases()
        # On a CPU, reordering keys and values once is cheaper than reordering
        # the scores, which are more bytes.
        is_cpu = target.current().is_cpu
        pasts = (memory.in_order() if is_cpu else memory).pasts()
        states, keys, values = [x], [], []
        for block, past, position in zip(
            self.blocks, pasts, positions, strict=True
        ):
            x, key, value = block.attend_projected(x, past, position, biases)
            states.append(x)
            keys.append(key)
            values.append(value)
        return self._normalized(x), *self.entries(states, keys, values)

    def project_memory(self, memory: Memory) -> Any:
        """Projects a `Memory` to a ring buffer, the oldest entry first."""
        mask = memory.mask()
        memory = memory._replace(
            states=tuple(zero_masked(state, mask) for state in memory.states)
        )
        keys, values = zip(
            *(
                block.project(state)
                for block, state in zip(self.blocks, memory.states, strict=True)
            ),
            strict=True,
        )
        return self.make_cache(memory, keys, values)

    def make_cache(
        self, memory: Memory, keys: Sequence[Tensor], values: Sequence[Tensor]
    ) -> Any:
        """Returns the cache of a memory and its L keys and L values.

        Like a `ProjectedMemory`, it has `append`, `pasts` and `in_order`.
        """
        oldest = ops.zeros_like(memory.valid_length)
        return ProjectedMemory(keys, values, oldest, memory.valid_length)

    def project_positions(self, num_distances: int) -> Any:
        """Projects at least M + T distances: see `DecoderBlock`; L tuples."""
        return tuple(
            block.project_positions(num_distances) for block in self.blocks
        )

    def _attention_biases(self):
        """Returns u and v if all blocks share them, else `None`."""
        if not self._shares_attention_biases:
            return None
        return self.content_attention_bias, self.positional_attention_bias


class Episodes:
    """Separates the steps of consecutive episodes."""

    # `reset` (B, T) is true where an episode begins, or `None`. Memory belongs
    # to episode 0.

    def __init__(self, reset):
        self._numbers = None
        if reset is not None:
            self._numbers = ops.cumsum(ops.cast(reset, "int32"), axis=1)

    def attention_mask(self, memory_length, padding):
        """Returns a mask `(B, T, M + T)`, true in the query's episode."""
        if self._numbers is None:
            return None
        numbers = padding.at_the_end(self._numbers)
        shape = ops.shape(numbers)[0], memory_length
        in_memory = ops.zeros(shape, "int32")
        keys = ops.concatenate([in_memory, numbers], axis=1)
        return numbers[:, :, None] == keys[:, None, :]

    def last(self, memory, states, padding):
        """Returns the memory that each row's last episode leaves."""
        # Memory of earlier segments, states, and their lengths.
        if self._numbers is None:
            return memory, states, padding.lengths
        last = self._numbers[:, -1:]
        is_last = self._numbers == last
        if padding.mask is not None:
            is_last = is_last & padding.mask
        others = Padding(padding.at_the_end(is_last))
        states = [others.at_the_end(state) for state in states]
        return memory.reset_rows(last[:, 0] > 0), states, others.lengths


register("backbone", transformer_xl=TransformerXLBackbone)
