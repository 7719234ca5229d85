"""Base class of backbones that carry memory between segments."""

import weakref
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from txl_keras import tensor_files
from txl_keras.checks import check_dropout
from txl_keras.checks import check_head_dim
from txl_keras.checks import check_integer
from txl_keras.checks import check_list
from txl_keras.checks import check_mask
from txl_keras.checks import check_number
from txl_keras.checks import check_path
from txl_keras.checks import check_shape
from txl_keras.checks import check_token_ids
from txl_keras.checks import shown
from txl_keras.keras_internals import layers_of
from txl_keras.keras_internals import note_weights
from txl_keras.keras_internals import scope_of
from txl_keras.layers.adaptive_embedding import AdaptiveEmbedding
from txl_keras.layers.compute.dropout import fold_in
from txl_keras.layers.compute.target import Target
from txl_keras.layers.compute.target import prefers_tensorflow_matmul
from txl_keras.layers.config import add_arguments
from txl_keras.layers.config import inherited
from txl_keras.layers.config import part_of
from txl_keras.layers.memory import Memory
from txl_keras.layers.memory import MemoryStack
from txl_keras.layers.memory import check_memory_length
from txl_keras.layers.memory import initial_memory
from txl_keras.layers.row_dropout import RowDropout
from txl_keras.layers.sublayers import LORA_MATRICES
from txl_keras.models.preset_model import PresetModel
from txl_keras.types import PathLike
from txl_keras.types import Shape
from txl_keras.types import Tensor
from txl_keras.weights import normal_initializer

_LORA_SUFFIX = ".lora.safetensors"
_LORA_ALPHA = "lora/alpha"
_REMEDY = (
    "Begin with `memory=None` or `initial_memory(batch_size)` of this model, "
    "and keep the number of rows from call to call."
)


class RecurrentBackbone(PresetModel):
    """Base class of models that read text segment by segment with a memory."""

    # A subclass provides `token_embedding`, `memory_length`, a `call` that
    # begins with `_begin` or its two parts, and, for the softmax,
    # `projection_initializer`. It provides `layer_flops` unless it calls
    # `_set_heads`. `SegmentReader` needs `project_positions`, `call_projected`
    # and `project_memory`, whose result has `append`.

    cold_start = "masked"
    # Callers check these capabilities instead of the class.
    has_attention = True
    # True if `call` takes `return_attention_scores`, with one key per token.
    shows_attention = False
    # True if the layers can be compiled in parts for a CPU.
    has_parts = False
    # True if calls without a memory continue from the last call.
    stateful = False
    # Classes that `initial_memory`, calls and `memory_stack` return.
    memory_class = Memory
    _stack_class = MemoryStack
    # Weights that only `losses` train; their gradient is clipped separately.
    auxiliary_variables = ()
    # Arguments that evaluation may change, because no weight depends on them.
    evaluation_arguments = ()
    # The number of later tokens that a block attends to.
    look_ahead = 0
    # The shortest memory that the model can have.
    shortest_memory = 0
    # False with absolute positions: then no segment continues from another's
    # memory, and padding changes the hidden states of a text.
    remembers = True
    # True if a token depends on a limited number of segments.
    has_finite_reach = True
    # The most tokens that a segment may have, or None.
    max_segment_length = None
    # Registered name of the loader of Hugging Face folders.
    hugging_face_type = "transfo_xl"

    def __init__(
        self,
        vocabulary_size: int | None,
        num_layers: int,
        hidden_dim: int,
        dropout: float = 0.0,
        initializer_stddev: float = 0.02,
        cutoffs: Sequence[int] = (),
        embedding_dim: int | None = None,
        div_val: int = 1,
        project_same_dim: bool = True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        # Models with this backbone, which LoRA freezes and traces again. Keras
        # must not track them here.
        self.owners = weakref.WeakSet()
        if vocabulary_size is not None:
            vocabulary_size = check_integer(
                "vocabulary_size", vocabulary_size, 1
            )
        self.vocabulary_size = vocabulary_size
        self.num_layers = check_integer("num_layers", num_layers, 1)
        self.hidden_dim = check_integer("hidden_dim", hidden_dim, 1)
        self.initializer_stddev = check_number(
            "initializer_stddev", initializer_stddev, 0
        )
        self.dropout = check_dropout("dropout", dropout)
        self._table = {
            "cutoffs": cutoffs,
            "embedding_dim": embedding_dim,
            "div_val": div_val,
            "project_same_dim": project_same_dim,
        }
        if vocabulary_size is None and (cutoffs or embedding_dim is not None):
            raise ValueError(
                "`vocabulary_size` must be given with `cutoffs` or "
                "`embedding_dim`, which describe the token embedding. "
                f"Received: vocabulary_size=None, cutoffs={cutoffs}, "
                f"embedding_dim={embedding_dim}"
            )
        self._dropout = RowDropout(
            dropout, dtype=self.dtype_policy, name="dropout"
        )

    def build(self, token_ids_shape):
        hidden_shape = (*token_ids_shape, self.hidden_dim)
        for layer in self.layers:
            is_embedding = layer is self.token_embedding
            layer.build(token_ids_shape if is_embedding else hidden_shape)

    def _embedding(self, **arguments):
        """Creates the embedding of token ids, if the model has one."""
        if self.vocabulary_size is None:
            return None
        return AdaptiveEmbedding(
            self.vocabulary_size,
            self.hidden_dim,
            embeddings_initializer=self.kernel_initializer(),
            name="token_embedding",
            **inherited(self),
            **self._table,
            **arguments,
        )

    def make_block(self, index: int) -> keras.layers.Layer:
        """Creates a block; its arguments are attributes of this model.

        Args:
            index: Integer, from 0 to L - 1.
        """
        return part_of(
            self,
            self.block_class,
            kernel_initializer=self.kernel_initializer(),
            name=f"block_{index}",
        )

    def _set_heads(self, num_heads, head_dim, intermediate_dim, memory_length):
        """Checks and sets the sizes of a model with attention."""
        self.num_heads = check_integer("num_heads", num_heads, 1)
        self.head_dim = check_head_dim(head_dim, self.hidden_dim, num_heads)
        self.intermediate_dim = check_integer(
            "intermediate_dim", intermediate_dim, 1
        )
        self.memory_length = check_memory_length(memory_length)

    def kernel_initializer(self) -> keras.Initializer:
        """Returns the initializer of kernels and embedding tables."""
        return normal_initializer(self.initializer_stddev)

    def target(self, device: str, training: bool) -> Any:
        """Returns the `Target` that the layers are compiled for."""
        in_parts = (
            device == "cpu"
            # The loops of an LSTM would not be compiled in parts.
            and self.has_parts
            and prefers_tensorflow_matmul(
                self.compute_dtype, training, self.hidden_dim
            )
        )
        return Target(device, in_parts)

    def check_takes_padding(self) -> None:
        """Raises `ValueError` if padding changes a text's hidden states."""
        if not self.remembers:
            raise ValueError(
                "`model` must have relative positions, 'relative' or 'shaw', "
                "for texts of different lengths. Received: attention_type="
                f"{self.attention_type!r}"
            )

    def layer_flops(self, segment_length: int, memory_length: int) -> int:
        """Returns the forward FLOPs per layer and row: see `model_flops`."""
        num_keys = self.past_length(memory_length) + segment_length
        width = self.num_heads * self.head_dim
        matmuls = 3 if self.remembers else 2
        return (
            4 * segment_length * self.hidden_dim * width
            + 4 * num_keys * self.hidden_dim * width
            + 4 * segment_length * self.hidden_dim * self.intermediate_dim
            + 2 * matmuls * segment_length * num_keys * width
        )

    def get_config(self):
        # The embedding's arguments come from its own config.
        return add_arguments(
            super().get_config(), PresetModel, self, self.token_embedding
        )

    @property
    def num_states(self) -> int:
        """Returns the number of tensors `(B, M, D)` in a memory."""
        return self.num_layers

    def compute_output_shape(self, token_ids_shape: Shape) -> Shape:
        """Returns the shape of the hidden states, for `summary`."""
        return (*token_ids_shape[:2], self.hidden_dim)

    def compute_output_spec(self, *args, **kwargs):
        # Keras would conclude from `compute_output_shape` that `call` returns
        # only the hidden states.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def check_remembers(self, memory_length: int) -> None:
        """Raises `ValueError` if the model cannot have this memory length."""
        check_memory_length(memory_length, self.shortest_memory)

    def check_positions(self, segment_length: int) -> None:
        """Raises `ValueError` if a segment is longer than `max_positions`."""
        limit = self.max_segment_length
        if limit is not None and segment_length > limit:
            raise ValueError(
                "`segment_length` must be at most `max_positions` with "
                f"attention_type=al_rfou. Received: "
                f"segment_length={segment_length}, max_positions={limit}"
            )

    def initial_memory(
        self, batch_size: int, memory_length: int | None = None
    ) -> Memory:
        """Returns the memory of a cold start.

        Args:
            batch_size: Integer `B`.
            memory_length: Integer `M`; by default `self.memory_length`.

        Returns:
            `Memory` of `num_states` states `(B, M, D)`.
        """
        return initial_memory(
            self.num_states,
            batch_size,
            self.past_length(memory_length),
            self.hidden_dim,
            self.cold_start,
            self.compute_dtype,
        )

    def memory_stack(
        self,
        batch_size: int,
        memory_length: int | None = None,
        name: str | None = None,
    ) -> MemoryStack:
        """Creates a `MemoryStack` for the memory of this model."""
        return self._stack_class(
            self.num_states,
            batch_size,
            self.past_length(memory_length),
            self.hidden_dim,
            cold_start=self.cold_start,
            dtype=self.dtype_policy,
            name=name,
        )

    def memory_stacks(self) -> tuple[MemoryStack, MemoryStack]:
        """Creates the memories of training and of inference."""
        return [
            self.memory_stack(None, name=f"{use}_memory")
            for use in ("training", "inference")
        ]

    def empty_projected_memory(self, memory_length: int) -> Any:
        """Projects one entry of a cold start's memory, to be broadcast to M."""
        memory = self.initial_memory(1, min(memory_length, 1))
        return self.project_memory(
            memory._replace(valid_length=memory.valid_length * memory_length)
        )

    def past_length(self, memory_length: int | None = None) -> int:
        """Returns how many entries before a segment its queries attend to."""
        if memory_length is None:
            return self.memory_length
        self.check_remembers(memory_length)
        return memory_length

    def past_tokens(self, memory_length: int | None = None) -> int:
        """Returns how many tokens `past_length` entries stand for."""
        return self.past_length(memory_length)

    def append(
        self,
        memory: Memory,
        entries: Any,
        lengths: Tensor | None = None,
        **kwargs,
    ) -> Any:
        """Appends the entries of `call_projected` to a projected memory."""
        return memory.append(*entries, lengths=lengths, **kwargs)

    def _positions(self, x, memory, training, dropout_seed):
        """Computes R, `(S, D)`, with one dropout mask for all rows."""
        encoding = self._position_encoding(x, memory.states[0])
        seed = None if dropout_seed is None else dropout_seed[None]
        return self._dropout(
            encoding[None], training=training, dropout_seed=seed
        )[0]

    def _row_seeds(self, dropout_seed, first_row, batch_size):
        """Returns the dropout seeds of a call's rows, uint32 `(B,)`."""
        return fold_in(dropout_seed, first_row + ops.arange(batch_size))

    def _drop(self, x, site, training, row_seeds):
        """Applies dropout to `x`, with a separate mask per site."""
        seeds = fold_in(row_seeds, site)
        return self._dropout(x, training=training, dropout_seed=seeds)

    def _begin(self, token_ids, memory, reset):
        """Checks the inputs of a call and returns ids and initial memory."""
        token_ids = self._check_token_ids(token_ids)
        batch_size = ops.shape(token_ids)[0]
        return token_ids, self._begin_memory(memory, batch_size, reset)

    def _check_token_ids(self, token_ids):
        # The embedding checks the values of the ids.
        token_ids = ops.convert_to_tensor(token_ids)
        check_shape("token_ids", token_ids, (None, None))
        return token_ids

    def _begin_memory(self, memory, batch_size, reset):
        if memory is None:
            memory = self.initial_memory(batch_size)
        memory = self.check_memory(memory, batch_size)
        reset = check_mask("reset", reset, (batch_size,))
        if reset is not None:
            memory = memory.reset_rows(reset, self.cold_start)
        return memory

    def check_memory(self, memory: Memory, batch_size: int) -> Memory:
        """Checks a memory and casts its `valid_length` to int32."""
        cls = self.memory_class
        are_fields = isinstance(memory, list) and len(memory) == len(
            cls._fields
        )
        if are_fields and isinstance(memory[0], list | tuple):
            # Keras stores it as a list in a Functional model's config.
            memory = cls(
                *(tuple(x) if isinstance(x, list) else x for x in memory)
            )
        if not isinstance(memory, cls):
            raise ValueError(
                f"`memory` must be a {cls.__name__}, as returned by "
                "`initial_memory` and calls of the model. "
                f"Received: memory={shown(memory)}"
            )
        received = len(memory.states)
        if received != self.num_states:
            raise ValueError(
                f"`memory` must have {self.num_states} states, as many as this "
                "model. Received: a memory of another model, with "
                f"{received} states. {_REMEDY}"
            )
        length = memory.states[0].shape[1:2]
        for i, state in enumerate(memory.states):
            expected = (batch_size, *length, self.hidden_dim)
            check_shape(f"memory.states[{i}]", state, expected, _REMEDY)
            if "float" not in keras.backend.standardize_dtype(state.dtype):
                raise ValueError(
                    f"`memory.states[{i}]` must be of floats, as calls of the "
                    f"model return. Received: dtype {state.dtype}"
                )
        valid_length = check_token_ids(
            "memory.valid_length", memory.valid_length, memory.length + 1
        )
        check_shape("memory.valid_length", valid_length, (batch_size,), _REMEDY)
        return memory._replace(valid_length=ops.cast(valid_length, "int32"))

    # Low-rank adaptation: Hu et al., 2022, https://arxiv.org/abs/2106.09685,
    # section 4.

    def enable_lora(
        self,
        rank: int,
        lora_alpha: float | None = None,
        target_layer_names: Sequence[str] = ("query", "value"),
    ) -> None:
        """Adds trainable low-rank matrices to kernels and freezes the rest.

        A kernel becomes `W + lora_alpha / rank A B`, with `B` zero at first.
        All other weights of the backbone and of a language model's softmax are
        frozen; the dense layer of a classifier is still trained. Compile the
        model afterwards. `model.save` and `save_weights` store the merged
        kernels, so a loaded model has no LoRA; quantized kernels are rounded
        again.

        Args:
            rank: Integer `r`.
            lora_alpha: Optional number, the scale; by default `rank`.
            target_layer_names: Names of the layers to adapt: `"query"`,
                `"key"`, `"value"`, `"position"` and `"output"` of the
                attention, `"feed_forward_intermediate"` and
                `"feed_forward_output"`.
        """
        check_integer("rank", rank, 1)
        if lora_alpha is not None:
            check_number("lora_alpha", lora_alpha, 0, exclusive=True)
        if self._lora_layers():
            raise ValueError(
                "LoRA must be enabled only once. Save the model and load it to "
                f"merge the matrices into the kernels. Received: rank={rank}"
            )
        check_list("target_layer_names", target_layer_names)
        layers = self._adaptable_layers().values()
        names = sorted({layer.name for layer in layers})
        if not target_layer_names or not all(
            name in names for name in target_layer_names
        ):
            raise ValueError(
                f"`target_layer_names` must be names of {names}. "
                f"Received: target_layer_names={shown(target_layer_names)}"
            )
        with scope_of(self):  # the variables of all replicas
            for layer in layers:
                if layer.name in target_layer_names:
                    layer.enable_lora(rank, lora_alpha=lora_alpha)
        self.freeze_for_lora()
        self.retrace_owners()

    def save_lora_weights(self, filepath: PathLike) -> None:
        """Writes only the LoRA weights to a file.

        Args:
            filepath: Path that ends in `.lora.safetensors`.
        """
        path, arrays = self._lora_file(filepath)
        tensor_files.write_safetensors(arrays, path)

    def load_lora_weights(self, filepath: PathLike) -> None:
        """Reads LoRA weights that `save_lora_weights` wrote.

        LoRA must be enabled as it was in the saved model.

        Args:
            filepath: Path that ends in `.lora.safetensors`.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the file is damaged, or its rank, scale, layers or
                shapes differ from this model's. Then nothing is changed.
        """
        path, own = self._lora_file(filepath)
        saved = tensor_files.read_safetensors(path)
        tensor_files.check_shapes(
            path, saved.shapes, tensor_files.shapes_of(own)
        )
        arrays = {name: np.float32(saved[name]) for name in saved}
        if name := tensor_files.first_not_finite(arrays):
            raise ValueError(f"{path} is damaged: {name} is not finite")
        if arrays[_LORA_ALPHA] != own[_LORA_ALPHA]:
            raise ValueError(
                f"{path} must have the `lora_alpha` of this model, "
                f"{own[_LORA_ALPHA]}. Received: {arrays[_LORA_ALPHA]}"
            )
        for name, matrix in self._lora_matrices().items():
            matrix.assign(arrays[name])

    def _lora_file(self, filepath):
        """Returns the checked path of a file, and its arrays by name."""
        path = check_path("filepath", filepath)
        if not path.endswith(_LORA_SUFFIX):
            raise ValueError(
                f"`filepath` must be a path that ends in {_LORA_SUFFIX!r}. "
                f"Received: filepath={filepath!r}"
            )
        arrays = {k: w.numpy() for k, w in self._lora_matrices().items()}
        if not arrays:
            raise ValueError(
                "LoRA must be enabled before its weights are saved or loaded. "
                "Call `enable_lora(rank)` first. Received: a model without LoRA"
            )
        (alpha,) = {layer.lora_alpha for layer in self._lora_layers().values()}
        return path, {_LORA_ALPHA: np.float32(alpha), **arrays}

    def freeze_for_lora(self) -> None:
        """Freezes the backbone and the softmax, if they have LoRA matrices."""
        matrices = self._lora_matrices().values()
        if not matrices:
            return
        heads = [getattr(owner, "softmax", None) for owner in self.owners]
        for frozen in (self, *filter(None, heads)):
            for weight in frozen.weights:
                weight.trainable = any(weight is matrix for matrix in matrices)

    def retrace_owners(self) -> None:
        """Traces this model again, and the models that contain it."""
        for model in (self, *self.owners):
            # Keras's functions still hold the old variables.
            model.train_function = None
            model.test_function = None
            model.predict_function = None
            note_weights(model)
            if hasattr(model, "retrace"):
                model.retrace()

    def _adaptable_layers(self):
        """Returns the layers that LoRA may adapt, by path in the backbone."""
        return {
            layer.path.split("/", 1)[1]: layer
            for layer in layers_of(self)
            if isinstance(layer, (keras.layers.Dense, keras.layers.EinsumDense))
        }

    def _lora_layers(self):
        return {
            path: layer
            for path, layer in self._adaptable_layers().items()
            if layer.lora_enabled
        }

    def _lora_matrices(self):
        """Returns the LoRA matrices by their names in a file."""
        return {
            f"lora/{path}/{part}": getattr(layer, part)
            for path, layer in self._lora_layers().items()
            for part in LORA_MATRICES
        }
