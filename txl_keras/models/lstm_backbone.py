"""An LSTM backbone, the baseline for Transformer-XL."""

import collections
from typing import Any

import keras
from keras import ops

from txl_keras.checks import check_integer
from txl_keras.extending import register
from txl_keras.keras_internals import build_and_stay_open
from txl_keras.layers.config import inherited
from txl_keras.layers.memory import Memory
from txl_keras.layers.memory import take_steps
from txl_keras.models.recurrent_backbone import RecurrentBackbone
from txl_keras.types import Tensor


@keras.saving.register_keras_serializable(package="txl_keras")
class LSTMBackbone(RecurrentBackbone):
    """Encodes a segment with a token embedding and L LSTM layers.

    It replaces `TransformerXLBackbone` in `TransformerXLCausalLM` and in code
    that trains or scores such a model. Its memory is the LSTM state after the
    last token of a segment. The next segment starts from this state, and no
    gradient flows back through it (truncated BPTT). Rows are reset as in
    `TransformerXLBackbone`.

    Args:
        vocabulary_size: Integer `V`.
        num_layers: Integer `L`.
        hidden_dim: Integer `D`, units of each layer.
        cutoffs, embedding_dim, div_val, project_same_dim: See
            `TransformerXLBackbone`.
        dropout: Float, dropout on embeddings and on the outputs of layers, but
            not on the recurrent connections (Zaremba et al., 2014).
        initializer_stddev: Float, standard deviation of the normal
            distribution that initializes the embeddings. All other weights are
            initialized as in `keras.layers.LSTM`.

    Call arguments:
        token_ids: Integer tensor of shape `(B, T)`, ids in `[0, V)`.
        memory, reset, training, dropout_seed, first_row: See
            `TransformerXLBackbone`.

    Returns:
        The pair of hidden states `(B, T, D)` and the new `Memory`. It has 2 L
        states `(B, 1, D)`: hidden state and cell state of each layer.

    Example:

    ```python
    import numpy as np
    from txl_keras.models import LSTMBackbone, TransformerXLCausalLM

    backbone = LSTMBackbone(vocabulary_size=50, num_layers=2, hidden_dim=16)
    model = TransformerXLCausalLM(backbone)
    ids = np.arange(45).reshape(3, 15)
    nll, memory = model.score(ids[:, :7], ids[:, 1:8])  # (3, 7)
    nll, memory = model.score(ids[:, 7:-1], ids[:, 8:], memory=memory)
    ```

    Reference:
        [Hochreiter and Schmidhuber, 1997](
        https://doi.org/10.1162/neco.1997.9.8.1735).
    """

    has_attention = has_finite_reach = False
    trained_presets = {}
    attention_type = None
    # The memory has one entry, the LSTM state.
    memory_length = 1
    cold_start = "zeros"

    def __init__(
        self,
        vocabulary_size: int | None,
        num_layers: int,
        hidden_dim: int,
        **kwargs,
    ):
        super().__init__(
            check_integer("vocabulary_size", vocabulary_size, 1),
            num_layers,
            hidden_dim,
            **kwargs,
        )
        if self.variable_dtype == "bfloat16":
            raise ValueError(
                "`dtype` must not be 'bfloat16' for an LSTM, because Keras "
                "cannot initialize its weights. Use 'mixed_bfloat16'. "
                f"Received: dtype={self.dtype_policy.name!r}"
            )
        self.token_embedding = self._embedding()
        self.layers_of_cells = [
            keras.layers.RNN(
                _Cell(hidden_dim, name="cell", **inherited(self)),
                return_sequences=True,
                name=f"lstm_{i}",
                **inherited(self),
            )
            for i in range(num_layers)
        ]
        build_and_stay_open(self)

    def projection_initializer(self) -> keras.Initializer:
        """Returns the initializer of projections from tables to size D."""
        return self.token_embedding.projection_initializer.clone()

    def layer_flops(self, segment_length, memory_length):
        return 16 * segment_length * self.hidden_dim**2

    @property
    def num_states(self) -> int:
        """Returns 2 L: a hidden state and a cell state per layer."""
        return 2 * self.num_layers

    def check_remembers(self, memory_length: int) -> None:
        """Raises `ValueError` unless `memory_length` is `None` or 1."""
        if memory_length not in (None, self.memory_length):
            raise ValueError(
                "`memory_length` must be None or 1 for an LSTM, which "
                f"remembers one state. Received: memory_length={memory_length}"
            )

    def call(
        self,
        token_ids,
        memory=None,
        reset=None,
        training=None,
        dropout_seed=None,
        first_row=0,
    ):
        token_ids, memory = self._begin(token_ids, memory, reset)
        batch_size = ops.shape(token_ids)[0]
        seeds = self._row_seeds(dropout_seed, first_row, batch_size)
        x, states = self._all_states(token_ids, memory.states, training, seeds)
        last = tuple(
            ops.stop_gradient(state[:, -1:]) for state in states
        )  # truncated BPTT
        return x, memory._replace(states=last)

    def _all_states(self, token_ids, initial, training=False, row_seeds=None):
        """Returns the hidden states, and all layers' states at every token."""
        x = self.token_embedding(token_ids) * self.hidden_dim**0.5
        x = self._drop(x, 0, training, row_seeds)
        states = []
        for i, layer in enumerate(self.layers_of_cells):
            state = [s[:, 0] for s in initial[2 * i : 2 * i + 2]]
            outputs = layer(x, initial_state=state)  # [B, T, 2 D]
            states += ops.split(outputs, 2, axis=-1)
            x = self._drop(states[-2], i + 1, training, row_seeds)
        return x, tuple(states)

    def project_memory(self, memory: Memory) -> Any:
        """Returns the states of a `Memory`; an LSTM projects nothing."""
        return _States(memory.states)

    def project_positions(self, num_distances: int) -> Any:
        """Returns an empty tuple, since an LSTM has no positions."""
        return ()

    def call_projected(
        self, token_ids: Tensor, memory: Memory, positions: Any
    ) -> Any:
        """Returns hidden states and all states at every token `(B, T, D)`."""
        return self._all_states(token_ids, memory.states)


class _States(collections.namedtuple("_States", ["states"])):
    """Holds 2 L states `(B, 1, D)` behind the `ProjectedMemory` interface."""

    __slots__ = ()

    def append(self, states, lengths=None):
        """Keeps the states at each row's last real token, of `(B, T, D)`."""
        if lengths is None:
            return _States(tuple(state[:, -1:] for state in states))

        def choose(before, after):
            after = ops.concatenate([before, after], axis=1)  # [B, 1 + T, D]
            return take_steps(after, lengths[:, None])

        return _States(tuple(map(choose, self.states, states)))


@keras.saving.register_keras_serializable(package="txl_keras")
class _Cell(keras.layers.LSTMCell):
    """Computes an LSTM step and outputs the hidden state and the cell state."""

    # With both states at every token, reading can resume after any token.

    def __init__(self, units, **kwargs):
        super().__init__(units, **kwargs)
        self.output_size = 2 * units

    def call(self, inputs, states, training=False):
        hidden, states = super().call(inputs, states, training=training)
        return ops.concatenate([hidden, states[1]], axis=-1), states


register("backbone", lstm=LSTMBackbone)
