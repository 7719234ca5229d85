"""Base class of multi-head attention, and attention without positions."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from txl_keras.checks import check_dropout
from txl_keras.checks import check_integer
from txl_keras.checks import check_mask
from txl_keras.checks import check_one_of
from txl_keras.checks import check_shape
from txl_keras.keras_internals import get_keras_mask
from txl_keras.layers import compute
from txl_keras.layers.compute import definition
from txl_keras.layers.compute.problem import Problem
from txl_keras.layers.compute.problem import Visible
from txl_keras.layers.compute.problem import finite_masked
from txl_keras.layers.compute.problem import move_nonfinite_to_keys
from txl_keras.layers.compute.problem import zero_masked
from txl_keras.layers.config import ConfiguredLayer
from txl_keras.layers.position_encoding import RelativePositionEncoding
from txl_keras.layers.row_dropout import RowDropout
from txl_keras.layers.sublayers import HeadsDense
from txl_keras.layers.sublayers import project_heads
from txl_keras.layers.sublayers import sublayer
from txl_keras.types import Tensor


class HeadsAttention(ConfiguredLayer):
    """Base class of layers that project states to heads and attend."""

    _output_equation = "btnh,nhd->btd"

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        dropout: float = 0.0,
        kernel_initializer: str | keras.Initializer = "glorot_uniform",
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_heads = check_integer("num_heads", num_heads, 1)
        self.key_dim = check_integer("key_dim", key_dim, 1)
        self.dropout = check_dropout("dropout", dropout)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.seed = seed
        self._dropout = RowDropout(
            dropout, seed=seed, dtype=self.dtype_policy, name="dropout"
        )
        self._query_dense = self._dense("query", "btd,dnh->btnh")
        self._key_dense = self._dense("key", "bsd,dnh->bsnh")
        self._value_dense = self._dense("value", "bsd,dnh->bsnh")
        self._output_dense = None  # created in `build`, where D is known

    def _dense(self, name, equation, output_shape=None):
        """Creates a projection, by default to the heads."""
        if output_shape is None:
            batch_axes = len(equation.split("->")[1]) - 3
            output_shape = [None] * batch_axes + [self.num_heads, self.key_dim]
        return sublayer(
            self, HeadsDense, equation, output_shape=output_shape, name=name
        )

    def _add_positions(self, clamp_length, **config):
        """Creates the sinusoids of distances and their projection `W_k,R`."""
        self.clamp_length = clamp_length
        self._encode_positions = RelativePositionEncoding(
            clamp_length, name="position_encoding", **config
        )
        # "r" is the axis of distances, which have no batch axis.
        self._position_dense = self._dense("position", "rd,dnh->rnh")

    def build(self, states_shape):
        self._hidden_dim = states_shape[-1]
        self._output_dense = self._dense(
            "output", self._output_equation, [None, self._hidden_dim]
        )
        for dense in (self._query_dense, self._key_dense, self._value_dense):
            dense.build((None, None, self._hidden_dim))
        self._output_dense.build((None, None, self.num_heads, self.key_dim))

    def _add_biases(self, *kinds):
        for kind in kinds:
            name = f"{kind}_attention_bias"
            bias = self._parameter(name, self.num_heads, self.key_dim)
            setattr(self, name, bias)

    def _scaled(self, x):
        # Scaling queries takes T N H multiplications, scaling scores T S N.
        return ops.cast(x, self.compute_dtype) * self.key_dim**-0.5

    def _project_encoding(self, encoding):
        """Computes `R W_k,R`, as a tuple of one tensor `(N, R, H)`."""
        position = self._position_dense(ops.cast(encoding, self.compute_dtype))
        return (ops.transpose(position, (1, 0, 2)),)

    def _call_dropout(self, states, training, dropout_seed):
        """Returns the dropout arguments of a call's `Problem`."""
        if not training or not self.dropout:
            return {}
        seeds = self._dropout.row_seeds(ops.shape(states)[0], dropout_seed)
        return {"rate": float(self.dropout), "seeds": seeds}


def check_steps_mask(name, mask, states):
    """Returns a checked mask `(B, T)` of states; by default Keras's mask."""
    if mask is None:
        # Keras passes it by name only if there are several tensors.
        mask = get_keras_mask(states)
    return check_mask(name, mask, ops.shape(states)[:2])


def check_memory(memory, memory_mask, states):
    """Returns the memory, by default empty, and its mask."""
    batch_size, _, hidden_dim = ops.shape(states)
    if memory is None:
        if memory_mask is not None:
            raise ValueError(
                "`memory` must be passed with `memory_mask`, which marks its "
                "real entries. Received: memory=None"
            )
        return states[:, :0], None
    check_shape("memory", memory, (batch_size, None, hidden_dim))
    expected = (batch_size, ops.shape(memory)[1])
    return memory, check_mask("memory_mask", memory_mask, expected)


def key_mask(memory, states, memory_mask, states_mask):
    """Returns the mask `(B, S)` of memory and segment; by default all real."""
    masks = (
        ops.ones(ops.shape(x)[:2], "bool") if mask is None else mask
        for x, mask in ((memory, memory_mask), (states, states_mask))
    )
    return ops.concatenate([*masks], axis=1)


SAME_LENGTHS = (False, True, "pytorch")


@keras.saving.register_keras_serializable(package="txl_keras")
class CausalMultiHeadAttention(HeadsAttention):
    """Attends causally from a segment to its memory and itself.

    Computes scaled dot-product attention, `softmax(Q K^T / sqrt(H)) V W_o`,
    without a position term. The layer does not store memory (see
    `MemoryStack`). Gradients flow into the `memory` argument.

    Args:
        num_heads: Integer `N`.
        key_dim: Integer `H`, the size of a head. It need not be `D / N`.
        dropout: Float in `[0, 1)`, dropout on the attention probabilities, by
            default 0.
        same_length: `False`, `True` or `"pytorch"`. With `False`, the default,
            every query attends to all of memory, so later queries have longer
            contexts. With `True`, every query attends to itself and the M keys
            before it, as in the original TensorFlow code and in NVIDIA's. With
            `"pytorch"` it attends to one key fewer, as in the original PyTorch
            code and Hugging Face. Both need a `memory` in each call.
        look_ahead: Integer, the number of later keys of the segment that each
            query also attends to: the right context of streaming speech
            recognition. With T - 1 or more, a query attends to the whole
            segment.
        kernel_initializer: Initializer of all kernels and biases, by default
            `"glorot_uniform"`.
        seed: Optional integer, seeds dropout.

    Call arguments:
        query: Tensor of shape `(B, T, D)`, the segment.
        memory: Optional tensor of shape `(B, M, D)`, the states before it.
        query_mask: Optional boolean `(B, T)`, false at padding, which is not
            attended to. Keras passes the mask of an `Embedding(mask_zero=True)`
            automatically. Masked states have no influence, even if they are
            NaN.
        memory_mask: Optional boolean `(B, M)`, false where memory is empty.
        attention_mask: Optional boolean `(B, T, S)`, combined with causality.
        position_encoding, attention_biases: Only used by
            `RelativeMultiHeadAttention`.
        training: Boolean. Dropout is applied only if it is true.
        dropout_seed: Optional uint32 `(B,)`, see `RowDropout`.
        return_attention_scores: Boolean, also returns the probabilities.

    Returns:
        Tensor of shape `(B, T, D)`; with `return_attention_scores=True` also
        the float32 probabilities `(B, N, T, S)`, before dropout.

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
        num_heads: int,
        key_dim: int,
        same_length: bool | str = False,
        look_ahead: int = 0,
        **kwargs,
    ):
        super().__init__(num_heads, key_dim, **kwargs)
        self.same_length = check_one_of(
            "same_length", same_length, SAME_LENGTHS
        )
        self.look_ahead = check_integer("look_ahead", look_ahead, 0)

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
        check_shape("query", query, (None, None, self._hidden_dim))
        if memory is None and self.same_length:
            raise ValueError(
                "`same_length` needs a memory, because its length limits how "
                "far back a query attends. Pass `memory` or set "
                "`same_length=False`. Received: memory=None"
            )
        query_mask = check_steps_mask("query_mask", query_mask, query)
        memory, memory_mask = check_memory(memory, memory_mask, query)
        batch_size, length, _ = ops.shape(query)
        num_memory = ops.shape(memory)[1]
        pairs = batch_size, length, num_memory + length
        attention_mask = check_mask("attention_mask", attention_mask, pairs)
        # A copy without the Keras mask, which is handled here. Otherwise the
        # projections would warn that they discard it.
        query = ops.copy(query)
        projected, *segment = project_heads(
            finite_masked(query, query_mask),
            self._query_dense,
            self._key_dense,
            self._value_dense,
        )
        # Keys of finite states may still be infinite.
        parts = [[zero_masked(x, query_mask) for x in segment]]
        if memory.shape[1] != 0:
            memory = zero_masked(memory, memory_mask)
            memory_part = project_heads(
                memory, self._key_dense, self._value_dense
            )
            parts = [memory_part, *parts]
        if attention_mask is not None:
            parts = [move_nonfinite_to_keys(*part) for part in parts]
        of_keys = None
        if query_mask is not None or memory_mask is not None:
            of_keys = key_mask(memory, query, memory_mask, query_mask)
        visible = Visible(
            num_memory,
            length,
            look_ahead=self.look_ahead,
            max_distance=self._max_distance(num_memory),
            key_mask=of_keys,
            attention_mask=attention_mask,
        )
        positions = self._positions(query, memory, visible, position_encoding)
        problem = Problem(
            self._scaled(projected),
            parts,
            visible,
            **self._position_terms(positions, attention_biases),
            **self._call_dropout(query, training, dropout_seed),
        )
        if not return_attention_scores:
            return self._output_dense(compute.attend(problem))
        attended, scores = definition.attend(problem, return_probabilities=True)
        return self._output_dense(attended), scores

    def _positions(self, query, memory, visible, position_encoding):
        """Projects the positions of a call, as in `project_positions`."""
        return ()

    def _position_terms(self, positions, attention_biases):
        """Returns the position arguments of the call's `Problem`."""
        return {}

    def attend_by_content(
        self, query: Tensor, states: Tensor, mask: Tensor
    ) -> Tensor:
        """Computes attention to all states by content alone, `(B, T, N, H)`."""
        length, num_keys = ops.shape(query)[1], ops.shape(states)[1]
        states = zero_masked(states, mask)
        (query,) = project_heads(query, self._query_dense)
        problem = Problem(
            self._scaled(query),
            [project_heads(states, self._key_dense, self._value_dense)],
            Visible(num_keys - length, length, look_ahead=None, key_mask=mask),
        )
        return compute.attend(problem)

    def project_positions(self, num_distances: int) -> tuple[Tensor, ...]:
        """Projects the positions, which depends on the weights only.

        Args:
            num_distances: Integer, at least M + T. Distances 0 to
                `num_distances - 1` are projected.

        Returns:
            Tuple of tensors for `attend_projected`, the largest distance first.
            This class returns none; `RelativeMultiHeadAttention` returns
            `R W_k,R` of shape `(N, R, H)` for `R` distances up to
            `clamp_length`; `ShawMultiHeadAttention` returns keys and biases
            `(N, R, H + 1)`.
        """
        return ()

    def attend_projected(
        self,
        query: Tensor,
        past: Any,
        positions: Sequence[Tensor] = (),
        attention_biases: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Computes attention to a past whose keys and values are cached.

        For inference only. The output equals the output of a call, but each
        token is projected only once, when it is read. A call projects it again
        with every later segment.

        Args:
            query: Tensor of shape `(B, T, D)`, the segment.
            past: `Past`, the cached keys and values of earlier tokens.
            positions: Tuple of tensors from `project_positions`, for at least
                M + T distances.
            attention_biases: See `RelativeMultiHeadAttention`.

        Returns:
            Triple of the output `(B, T, D)` and the keys and values of the
            segment, each `(B, N, T, H)`, to be appended to the cache.
        """
        projected = ops.transpose(self._query_dense(query), (2, 0, 1, 3))
        key, value = self.project(query)
        num_memory = past.keys.shape[2]
        # A causal mask hides padding, which is after all real tokens.
        parts = [move_nonfinite_to_keys(key, value)]
        if num_memory:
            # Memory is in slot order; `order` below maps slots to the text.
            parts = [(past.keys, past.values), *parts]
        visible = Visible(
            num_memory,
            ops.shape(query)[1],
            max_distance=self._max_distance(num_memory),
            key_mask=key_mask(past.mask, query, past.mask, None),
        )
        problem = Problem(
            self._scaled(projected),
            parts,
            visible,
            batch_first=True,
            order=past.order if num_memory else None,
            **self._position_terms(positions, attention_biases),
        )
        return self._output_dense(compute.attend(problem)), key, value

    def project(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Projects hidden states to keys and values.

        Args:
            states: Tensor of shape `(B, S, D)`.

        Returns:
            Pair of keys and values, each `(B, N, S, H)`.
        """
        if self.look_ahead:
            raise ValueError(
                "`look_ahead` must be 0 where keys and values are cached, as "
                "in `SegmentReader` and in generation: pass a `memory` of "
                "hidden states to calls instead. Received: look_ahead="
                f"{self.look_ahead}"
            )
        key, value = self._key_dense(states), self._value_dense(states)
        return tuple(ops.transpose(x, (0, 2, 1, 3)) for x in (key, value))

    def _max_distance(self, num_memory):
        """Returns the largest visible distance of `same_length`, or `None`."""
        if not self.same_length:
            return None
        if self.same_length != "pytorch":
            return num_memory
        # The M visible keys include the query's own, which is never masked.
        at_least = max if isinstance(num_memory, int) else ops.maximum
        return at_least(num_memory - 1, 0)

    def compute_output_shape(self, query_shape):
        return query_shape

    def compute_output_spec(self, query, *args, **kwargs):
        if not kwargs.get("return_attention_scores"):
            return keras.KerasTensor(query.shape, dtype=self.compute_dtype)
        # Traces `call`, because Keras takes the shape above for all outputs.
        return keras.Operation.compute_output_spec(self, query, *args, **kwargs)
