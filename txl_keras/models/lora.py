"""Low-rank adaptation (LoRA) of backbones, and files of its weights.

Letters: `r` rank.
"""

import weakref

import keras
import numpy as np

from txl_keras.checks import check_integer
from txl_keras.checks import check_list
from txl_keras.checks import check_number
from txl_keras.checks import check_path
from txl_keras.checks import shown
from txl_keras.keras_internals import ModelAsLayer
from txl_keras.keras_internals import layers_of
from txl_keras.layers.sublayers import LORA_MATRICES
from txl_keras.tensor_files import read_safetensors
from txl_keras.tensor_files import write_safetensors
from txl_keras.training.checkpointing import check_shapes

_SUFFIX = ".lora.safetensors"
_ALPHA = "lora/alpha"


class LoraBackbone(ModelAsLayer, keras.Model):
    """Base class of backbones that can be fine-tuned by LoRA."""

    # Hu et al., 2022, https://arxiv.org/abs/2106.09685, section 4.

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        # Models that this is the backbone of. Keras must not track them here.
        self._owners = weakref.WeakSet()

    def add_owner(self, model):
        """Registers a model to freeze for LoRA, and to trace again."""
        self._owners.add(model)

    def enable_lora(
        self, rank, lora_alpha=None, target_layer_names=("query", "value")
    ):
        """Adds trainable low-rank matrices to kernels and freezes the rest.

        A kernel becomes `W + lora_alpha / rank A B`, with `B` zero at first.
        All other weights of the backbone are frozen, and those of the softmax
        of a language model; the dense layer of a classifier is still trained.
        Compile the model afterwards. The files of `model.save` and
        `save_weights` hold the merged kernels, so a loaded model has no LoRA,
        unless its kernels are quantized.

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
            largest = float(np.finfo(np.float32).max)
            check_number("lora_alpha", lora_alpha, 0, largest, exclusive=True)
        if self._lora_layers():
            raise ValueError(
                "LoRA must be enabled only once. Save the model and load it to "
                "merge the matrices into the kernels. Received: "
                f"rank={rank}, and a model with LoRA of rank {self._rank()}"
            )
        check_list("target_layer_names", target_layer_names)
        layers = self._adaptable_layers()
        names = sorted({layer.name for layer in layers.values()})
        if not target_layer_names or not all(
            name in names for name in target_layer_names
        ):
            raise ValueError(
                f"`target_layer_names` must be names of {names}. "
                f"Received: target_layer_names={shown(target_layer_names)}"
            )
        self._enable(
            {
                path: layer
                for path, layer in layers.items()
                if layer.name in target_layer_names
            },
            rank,
            lora_alpha,
        )

    def save_lora_weights(self, filepath):
        """Writes the weights of LoRA, and nothing else, to a file.

        Args:
            filepath: Path that ends in `.lora.safetensors`.
        """
        path = _checked_path(filepath)
        layers = self._lora_layers()
        if not layers:
            raise ValueError(
                "LoRA must be enabled before its weights are saved. Call "
                "`enable_lora(rank)` first. Received: a model without LoRA"
            )
        arrays = {name: w.numpy() for name, w in _matrices(layers).items()}
        (alpha,) = {layer.lora_alpha for layer in layers.values()}
        write_safetensors({_ALPHA: np.float32(alpha), **arrays}, path)

    def load_lora_weights(self, filepath):
        """Reads the weights of LoRA that `save_lora_weights` wrote.

        Enables LoRA as in the file if it is not enabled yet.

        Args:
            filepath: Path that ends in `.lora.safetensors`.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the file is damaged, or its rank, scale, layers or
                shapes are not those of this model. Nothing is changed then.
        """
        path = _checked_path(filepath)
        saved = read_safetensors(path)
        enabled = self._lora_layers()
        layers = enabled or {
            name: layer
            for name, layer in self._adaptable_layers().items()
            if f"lora/{name}/{LORA_MATRICES[0]}" in saved
        }
        ranks = {shape[-1] for name, shape in saved.shapes.items() if shape}
        rank = self._rank() if enabled else min(ranks, default=1)
        expected = {_ALPHA: ()}
        for name, layer in layers.items():
            shape = layer.kernel.shape
            shapes = (*shape[:-1], rank), (rank, shape[-1])
            expected |= zip(_names(name), shapes, strict=True)
        check_shapes(path, saved.shapes, expected)
        arrays = {name: np.float32(saved[name]) for name in saved}
        alpha = float(arrays.pop(_ALPHA))
        are_finite = all(np.isfinite(array).all() for array in arrays.values())
        if not (are_finite and layers and rank and 0 < alpha < np.inf):
            raise ValueError(
                f"{path} is damaged: it must have finite matrices of layers of "
                f"this model, and a positive alpha. Received: rank {rank}, "
                f"alpha {alpha}, layers {shown(sorted(layers))}"
            )
        if any(layer.lora_alpha != alpha for layer in enabled.values()):
            raise ValueError(
                f"{path} must have the `lora_alpha` of this model. Load it "
                "before `enable_lora`, which then takes it from the file. "
                f"Received: {alpha}"
            )
        if not enabled:
            self._enable(layers, rank, alpha)
        for name, matrix in _matrices(layers).items():
            matrix.assign(arrays[name])

    def freeze_for_lora(self):
        """Freezes the backbone and the softmax, if LoRA has matrices in it."""
        matrices = _matrices(self._lora_layers()).values()
        if not matrices:
            return
        heads = [getattr(owner, "softmax", None) for owner in self._owners]
        for frozen in (self, *filter(None, heads)):
            for weight in frozen.weights:
                weight.trainable = any(weight is matrix for matrix in matrices)

    def _enable(self, layers, rank, lora_alpha):
        with self.distribute_strategy.scope():  # the variables of all replicas
            for layer in layers.values():
                layer.enable_lora(rank, lora_alpha=lora_alpha)
        self.freeze_for_lora()
        self.retrace_owners()

    def retrace_owners(self):
        """Traces this model again, and the models that this is part of."""
        for model in (self, *self._owners):
            # Keras's functions hold the variables as they were.
            model.train_function = None
            model.test_function = None
            model.predict_function = None
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

    def _rank(self):
        return next(iter(self._lora_layers().values())).lora_rank


def _checked_path(filepath):
    path = check_path("filepath", filepath)
    if not path.endswith(_SUFFIX):
        raise ValueError(
            f"`filepath` must be a path that ends in {_SUFFIX!r}. Received: "
            f"filepath={filepath!r}"
        )
    return path


def _names(layer):
    """Returns the names in a file of the two matrices of a layer."""
    return [f"lora/{layer}/{part}" for part in LORA_MATRICES]


def _matrices(layers):
    """Returns the matrices of layers by their names in a file."""
    return {
        name: getattr(layer, part)
        for path, layer in layers.items()
        for name, part in zip(_names(path), LORA_MATRICES, strict=True)
    }
