"""Base of the attention layers: heads, their projections and dropout.

Letters: `B` batch, `T` segment, `S` keys, `N` heads, `H` head size, `D` hidden
size.
"""

import keras
from keras import ops

from txl_keras.checks import check_dropout
from txl_keras.checks import check_integer
from txl_keras.checks import check_mask
from txl_keras.checks import check_shape
from txl_keras.layers.attention.position_encoding import (
    RelativePositionEncoding,
)
from txl_keras.layers.config import ConfiguredLayer
from txl_keras.layers.row_dropout import RowDropout
from txl_keras.layers.sublayers import heads_dense


class HeadsAttention(ConfiguredLayer):
    """Base class of layers that project states to heads and attend with them.

    A subclass has arguments of these names, calls `_build_projections` in its
    `build`, and poses a `Problem` in its `call`.
    """

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
        self.num_heads = check_integer("num_heads", num_heads, 1)
        self.key_dim = check_integer("key_dim", key_dim, 1)
        self.dropout = check_dropout("dropout", dropout)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.seed = seed
        self._dropout = RowDropout(
            dropout, seed=seed, dtype=self.dtype_policy, name="dropout"
        )
        self._query_dense = heads_dense(self, "btd,dnh->btnh", "query")
        self._key_dense = heads_dense(self, "bsd,dnh->bsnh", "key")
        self._value_dense = heads_dense(self, "bsd,dnh->bsnh", "value")
        self._output_dense = None  # created in `build`, which knows D

    def _add_positions(self, clamp_length, **config):
        """Creates the sinusoids of distances and their projection `W_k,R`."""
        self.clamp_length = clamp_length
        self._encode_positions = RelativePositionEncoding(
            clamp_length, name="position_encoding", **config
        )
        # "r" is the axis of the distances, which has no batch.
        self._position_dense = heads_dense(self, "rd,dnh->rnh", "position")

    def _build_projections(self, hidden_dim, output_equation):
        self._output_dense = heads_dense(
            self, output_equation, "output", output_shape=[None, hidden_dim]
        )
        for dense in (self._query_dense, self._key_dense, self._value_dense):
            dense.build((None, None, hidden_dim))
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
        """Returns the arguments of the `Problem` of a call about dropout."""
        if not training or not self.dropout:
            return {}
        seeds = self._dropout.row_seeds(ops.shape(states)[0], dropout_seed)
        return {"rate": float(self.dropout), "seeds": seeds}


def check_steps_mask(name, mask, states):
    """Returns a mask `(B, T)` of states, checked, or else Keras's own."""
    if mask is None:
        # Keras passes it by name only if there are several tensors.
        mask = getattr(states, "_keras_mask", None)
    return check_mask(name, mask, ops.shape(states)[:2])


def check_memory(memory, memory_mask, states):
    """Returns the memory before states, by default none, and its mask."""
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
    """Returns the mask `(B, S)` of memory and segment, real without a mask."""
    masks = (
        ops.ones(ops.shape(x)[:2], "bool") if mask is None else mask
        for x, mask in ((memory, memory_mask), (states, states_mask))
    )
    return ops.concatenate([*masks], axis=1)
