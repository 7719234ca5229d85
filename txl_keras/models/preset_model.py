"""Base classes of models that presets and folders describe."""

from typing import Any
from typing import Self

import keras
import numpy as np
from keras import ops

import txl_keras.optimizers  # noqa: F401, registers them for `load_model`
from txl_keras.checks import check_dtype_policy
from txl_keras.checks import check_model_name
from txl_keras.checks import check_one_of
from txl_keras.checks import check_shape_in_graph
from txl_keras.checks import check_token_ids
from txl_keras.checks import check_vocabulary
from txl_keras.checks import shown
from txl_keras.keras_internals import IntegerBatches
from txl_keras.keras_internals import ModelAsLayer
from txl_keras.keras_internals import layers_of
from txl_keras.keras_internals import make_quantized
from txl_keras.layers.config import add_arguments
from txl_keras.layers.memory import Memory
from txl_keras.models.presets import PRESETS
from txl_keras.models.presets import TRAINED
from txl_keras.models.presets import build_preset
from txl_keras.types import DType
from txl_keras.types import PathLike

# Classes of `keras.quantizers` that a config may name.
_MODES = ("int8", "int4", "float8")
_QUANTIZERS = (
    "AbsMaxQuantizer",
    "Float8QuantizationConfig",
    "Int4QuantizationConfig",
    "Int8QuantizationConfig",
)


class PresetModel(ModelAsLayer, keras.Model):
    """Base class of models with `from_preset` and `save_to_preset`."""

    # Arguments of the presets by name; weights are newly initialized. A class
    # ignores sizes that it does not have.
    presets = PRESETS
    # Folders of trained models that come with the package, by name.
    trained_presets = TRAINED
    # Classes of the argument `backbone`; presets by name build the first.
    backbone_classes = ()
    # True if the backbone in a folder can get a new head.
    takes_new_head = False

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        check_model_name(self.name)
        check_dtype_policy(self.dtype_policy)

    @classmethod
    def from_preset(
        cls,
        preset: PathLike,
        load_weights: bool = True,
        dtype: DType | None = None,
        **overrides,
    ) -> Self:
        """Builds the model of a preset.

        Names in `presets` are sizes without weights. Names in `trained_presets`
        are trained models that come with the package, in folders as below. The
        files of a folder determine its kind:

        - a preset that `save_to_preset` or `train/convert.py` wrote,
        - a run of `train/main.py`, whose best weights are loaded,
        - a Hugging Face folder of `transfo-xl`, or `xlnet` for XLNet classes.
          In a folder of `transfo-xl`, `vocab.pkl`, `vocab.bin` or `vocab.txt`
          becomes the tokenizer.

        A backbone class also loads the backbone of a language model, and a
        classifier adds a new head to it. A model with an argument `tokenizer`
        gets the folder's tokenizer. Loading executes no code from a file, and
        compares all sizes with the weights before it allocates memory.

        Args:
            preset: String, one of `presets` or of `trained_presets`; the path
                of a folder; or `"hf://owner/name"`, a repository of the Hugging
                Face Hub, which requires huggingface_hub.
            load_weights: Boolean. If false, weights are newly initialized. A
                folder must have weights even then, to check its sizes.
            dtype: Optional dtype policy: `"float32"`, `"mixed_bfloat16"`,
                `"mixed_float16"`, or `"bfloat16"` (for weights, too).
            **overrides: Arguments of this class or of the backbone that replace
                the preset's. If weights are loaded, arguments that they depend
                on cannot be replaced.

        Returns:
            A model of this class.

        Example:

        >>> import tempfile
        >>> from txl_keras.data import ByteTokenizer
        >>> from txl_keras.models import TransformerXLBackbone
        >>> from txl_keras.models import TransformerXLCausalLM
        >>> model = TransformerXLCausalLM.from_preset(
        ...     "quickstart", num_layers=1, tokenizer=ByteTokenizer()
        ... )
        >>> folder = tempfile.mkdtemp()
        >>> model.save_to_preset(folder)
        >>> loaded = TransformerXLCausalLM.from_preset(folder, memory_length=9)
        >>> loaded.backbone.memory_length
        9
        >>> backbone = TransformerXLBackbone.from_preset(folder, dropout=0.1)
        """
        if not isinstance(load_weights, bool):
            raise ValueError(
                "`load_weights` must be a boolean. Pass all other arguments by "
                f"name. Received: load_weights={load_weights!r}"
            )
        trainable = overrides.pop("trainable", None)
        if isinstance(preset, str) and preset in cls.presets:
            model = build_preset(cls, preset, dtype, overrides)
        else:
            from txl_keras.models.loading import find_folder
            from txl_keras.models.loading import load_folder

            folder = find_folder(preset, cls)
            model = load_folder(cls, folder, load_weights, dtype, overrides)
        if trainable is not None:
            # Our constructors would not freeze the layers that they make. First
            # the opposite, because TensorFlow ignores a value that is the same.
            model.trainable = not trainable
            model.trainable = trainable
        return model

    def save_to_preset(
        self,
        folder: PathLike,
        training: dict | None = None,
        dtype: str = "float32",
    ) -> None:
        """Writes a folder that `from_preset` reads.

        The folder has `config.json`, the class and the arguments of the model;
        `model.safetensors`, its weights; and `tokenizer.json`, if the model has
        a tokenizer. LoRA matrices are merged into the kernels. The state of
        `compile` and of the memory is not saved.
        An earlier preset in the folder is kept until everything is written.

        Args:
            folder: String or path, local or in a bucket. The folder must not
                exist, be empty, or hold a preset, which is replaced.
            training: Optional JSON-serializable dictionary that describes how
                the model was trained.
            dtype: String, dtype of the weights in the file: `"float32"`;
                `"bfloat16"`, rounded, for half the size; or `"int8"`, for a
                quarter: matrices are rounded to int8 with one scale per row or
                column, and other weights stay float32. All are loaded as
                float32. After `quantize("int8")` the kernels are saved and
                loaded as they are, and `dtype` must be `"float32"`.

        Example: see `from_preset`.
        """
        from txl_keras.models.model_folder import save_preset

        save_preset(self, folder, training, dtype)

    def quantize(
        self, mode: str | None = None, config: Any = None, **kwargs
    ) -> None:
        """Quantizes the kernels, as `keras.Model.quantize` does.

        The tables of the token embedding and of the softmax stay float32, since
        they may be shared. If a model of your own has this model as a layer,
        call `quantize` of your model: Keras traces it again only then.
        """
        super().quantize(mode, config=config, **kwargs)
        getattr(self, "backbone", self).retrace_owners()

    def get_config(self):
        return {
            **super().get_config(),
            **_quantization_config(self),
            **_frozen_config(self),
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        quantized = config.pop("quantization", {})
        frozen = config.pop("frozen", None)
        if "backbone" in config:
            config["backbone"] = keras.saving.deserialize_keras_object(
                config["backbone"]
            )
        if config.get("tokenizer") is not None:
            from txl_keras.data.tokenizers.saving import deserialize_tokenizer

            config["tokenizer"] = deserialize_tokenizer(
                config["tokenizer"], "The model's config"
            )
        is_frozen = config.get("trainable") is False
        if is_frozen:
            # Set below: the constructor would not freeze the layers it makes.
            del config["trainable"]
        model = cls(**config)
        _quantize_layers(model, quantized)
        if is_frozen:
            model.trainable = False
        if frozen is not None:
            _freeze_layers(model, frozen)
        return model


class BackboneModel(IntegerBatches, PresetModel):
    """Base class of models that have a backbone, and maybe a tokenizer."""

    backbone: keras.Model

    def __init__(
        self,
        backbone: keras.Model,
        tokenizer: Any = None,
        **kwargs,
    ):
        if not isinstance(backbone, self.backbone_classes):
            known = " or ".join(x.__name__ for x in self.backbone_classes)
            raise ValueError(
                f"`backbone` must be of class {known}. Received: "
                f"backbone={type(backbone).__name__}"
            )
        if backbone.vocabulary_size is None or backbone.stateful:
            raise ValueError(
                "`backbone` must have a `vocabulary_size` and be created "
                "without `stateful`, because this model reads token ids and "
                "holds the memory itself. Received: vocabulary_size="
                f"{backbone.vocabulary_size}, stateful={backbone.stateful}"
            )
        kwargs.setdefault("dtype", backbone.dtype_policy)
        super().__init__(**kwargs)
        self.backbone = backbone
        self.tokenizer = tokenizer
        backbone.owners.add(self)

    @property
    def tokenizer(self) -> Any:
        """Returns the tokenizer of the model's vocabulary, or `None`."""
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer):
        if tokenizer is not None:
            check_vocabulary(tokenizer, self.backbone.vocabulary_size)
        self._tokenizer = tokenizer

    def get_config(self):
        config = super().get_config()
        if self.tokenizer is not None:
            from txl_keras.data.tokenizers.saving import serialize_tokenizer

            config["tokenizer"] = serialize_tokenizer(self.tokenizer)
        softmax = getattr(self, "softmax", None)
        return add_arguments(config, BackboneModel, self, softmax)

    def compile(
        self, optimizer: Any = "adam", loss: Any = None, **kwargs
    ) -> None:
        """Compiles like `keras.Model.compile`; the loss must take logits."""
        name = loss if isinstance(loss, str) else ""
        if getattr(loss, "__module__", "").startswith("keras."):
            # A function, a class, or an object of a class.
            name = getattr(loss, "__name__", type(loss).__name__)
        name, ends = name.lower(), ("crossentropy", "divergence", "dice")
        takes_probabilities = not getattr(
            loss,
            "from_logits",
            not name.endswith((*ends, "tversky"))
            and name not in ("ce", "bce", "kld"),
        )
        # A subclass may return probabilities.
        is_own = type(self).call.__module__.startswith("txl_keras.")
        if takes_probabilities and is_own:
            raise ValueError(
                "`loss` must take logits, which this model returns: pass "
                "`keras.losses.SparseCategoricalCrossentropy(from_logits=True)"
                f"`, or leave it out. Received: loss={loss!r}, which takes "
                "probabilities"
            )
        super().compile(optimizer, loss, **kwargs)

    def compile_from_config(self, config):
        """Compiles a loaded model as it was compiled when it was saved."""
        # Keras requires this of every model that overrides `compile`.
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None:
            self.optimizer.build(self.trainable_variables)

    def get_compile_config(self):
        """Returns the arguments of `compile`, for saving."""
        config = super().get_compile_config()
        optimizer = (config or {}).get("optimizer")
        if isinstance(optimizer, dict) and ".torch." in optimizer["module"]:
            # Other backends cannot import a class of PyTorch's optimizers.
            config["optimizer"] = {**optimizer, "module": "keras.optimizers"}
        return config

    def compute_loss(self, x=None, y=None, y_pred=None, *args, **kwargs):
        """Computes the loss; checks targets if it is the default loss."""
        # Another loss may take targets of another kind.
        ids = self._integer_targets(y)
        if ids is None:
            return super().compute_loss(x, y, y_pred, *args, **kwargs)
        num_classes = y_pred.shape[-1]
        ids = check_token_ids("y", ids, num_classes)
        ids = check_shape_in_graph("y", ids, ops.shape(y_pred)[:-1])
        if self.loss.ignore_class is None:
            y = ids
        loss = super().compute_loss(x, y, y_pred, *args, **kwargs)
        # XLA drops checks, and JAX would ignore invalid targets.
        is_known = ops.all((ids >= 0) & (ids < num_classes))
        return ops.where(is_known, loss, float("nan"))

    def _integer_targets(self, y: Any) -> Any:
        """Returns targets that must be ids, with 0 for those to ignore."""
        # `None` if the loss takes other targets.
        crossentropy = keras.losses.SparseCategoricalCrossentropy
        if y is None or not isinstance(self.loss, crossentropy):
            return None
        ignored = self.loss.ignore_class
        if ignored is None:
            return y
        where = np.where if isinstance(y, np.ndarray) else ops.where
        return where(y == ignored, 0, y)

    def initial_memory(
        self, batch_size: int, memory_length: int | None = None
    ) -> Memory:
        """Returns the memory of a cold start: see `RecurrentBackbone`."""
        return self.backbone.initial_memory(batch_size, memory_length)


# Keras stores a `DTypePolicyMap` in the config, but then cannot save a model
# that was loaded (Keras 3.15).


def _quantization_config(model):
    """Returns the part of a config that describes the quantized layers."""
    quantized = {
        path: {
            "mode": layer.quantization_mode,
            "config": keras.saving.serialize_keras_object(
                getattr(layer, "quantization_config", None)
            ),
        }
        for path, layer in _layers(model).items()
        if layer.quantization_mode is not None
    }
    return {"quantization": quantized} if quantized else {}


def _quantize_layers(model, quantized):
    """Gives a new model the variables of the quantized layers in its config."""
    layers = _layers(model)
    for path, how in quantized.items():
        layer = layers.get(path)
        if getattr(layer, "kernel", None) is None:
            raise ValueError(
                "`quantization` must have the paths of layers with kernels. "
                f"Received: {shown(path)}"
            )
        mode = check_one_of("quantization", how["mode"], _MODES)
        make_quantized(layer, mode, _quantizer(how["config"]))


def _frozen_config(model):
    """Returns the part of a config that names the layers that are frozen."""
    # Keras knows them only in models of its functional API.
    layers = _layers(model)
    frozen = [path for path, layer in layers.items() if not layer.trainable]
    default = [] if model.trainable else [*layers]
    return {} if frozen == default else {"frozen": frozen}


def _freeze_layers(model, frozen):
    layers = _layers(model)
    if unknown := {*frozen} - layers.keys():
        raise ValueError(
            "`frozen` must have the paths of layers of the model. "
            f"Received: {shown(min(unknown))}"
        )
    for path, layer in layers.items():  # the layers inside of others last
        layer.trainable = path not in frozen


def _quantizer(config):
    """Creates a quantizer from a config that names only `_QUANTIZERS`."""
    if config is None:
        return None
    name = check_one_of("quantization", config["class_name"], _QUANTIZERS)
    parts = {
        key: _quantizer(value) if key.endswith("_quantizer")
        else tuple(value) if isinstance(value, list)
        else value
        for key, value in config["config"].items()
    }  # fmt: skip
    return getattr(keras.quantizers, name)(**parts)


def _layers(model):
    """Returns the layers by path in the model, in a stable order."""
    prefix = f"{model.name}/"
    parts = [x for x in layers_of(model) if (x.path or "").startswith(prefix)]
    parts.sort(key=lambda layer: layer.path)
    return {layer.path.removeprefix(prefix): layer for layer in parts}
