"""Low-rank adaptation (LoRA) of backbones, and files of its weights.

Letters: `r` rank.
"""

import itertools
import os
import pathlib
import weakref

import h5py
import keras
import numpy as np

from txl_keras.checks import check_integer
from txl_keras.checks import check_list
from txl_keras.checks import check_number
from txl_keras.checks import shown
from txl_keras.layers.sublayers import LORA_MATRICES

_SUFFIX = ".lora.h5"
# Far more than a model needs. HDF5 reads deep groups in quadratic time.
_MAX_DEPTH = 16
_MAX_ITEMS = 1 << 16


class LoraBackbone(keras.Model):
    """Base class of backbones that can be fine-tuned by LoRA.

    Example:

    ```python
    import numpy as np
    from txl_keras.models import TransformerXLCausalLM

    model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
    model.backbone.enable_lora(rank=4)
    model.compile("adam")
    ids = np.arange(60).reshape(3, 20)
    model.fit(ids[:, :-1], ids[:, 1:], batch_size=3, verbose=0)
    model.backbone.save_lora_weights("mine.lora.h5")
    ```

    Reference:
        [Hu et al., 2022](https://arxiv.org/abs/2106.09685), section 4.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        # Models that this is the backbone of. Keras must not track them here.
        self._owners = weakref.WeakSet()

    def add_owner(self, model):
        """Registers a model that this is the backbone of.

        With LoRA its `softmax`, if it has one, is frozen too. Its compiled
        functions are traced again when the layers here change.

        Args:
            model: Keras model. It may have a method `retrace`.
        """
        self._owners.add(model)

    def quantize(self, mode=None, config=None, **kwargs):
        """Quantizes the kernels, and not the embeddings: see `keras.Model`."""
        super().quantize(mode, config=config, **kwargs)
        self._retrace_owners()

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
            filepath: Path that ends in `.lora.h5`.
        """
        path = _checked_path(filepath)
        layers = self._lora_layers()
        if not layers:
            raise ValueError(
                "LoRA must be enabled before its weights are saved. Call "
                "`enable_lora(rank)` first. Received: a model without LoRA"
            )
        with h5py.File(path, "w") as file:
            group = file.create_group("lora")
            for name, layer in layers.items():
                for part in LORA_MATRICES:
                    group[f"{name}/{part}"] = np.asarray(getattr(layer, part))
                group[name].attrs["lora_alpha"] = float(layer.lora_alpha)

    def load_lora_weights(self, filepath):
        """Reads the weights of LoRA that `save_lora_weights` wrote.

        Enables LoRA as in the file if it is not enabled yet.

        Args:
            filepath: Path that ends in `.lora.h5`.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the file is damaged, or its rank, scale, layers or
                shapes are not those of this model. Nothing is changed then.
        """
        path = _checked_path(filepath)
        if not path.is_file():
            raise FileNotFoundError(f"There is no file {path}.")
        arrays, alphas = _read(path)
        adaptable, enabled = self._adaptable_layers(), self._lora_layers()
        expected = enabled or adaptable
        unknown = sorted(alphas.keys() - expected.keys())
        missing = sorted(enabled.keys() - alphas.keys())
        if unknown or missing or not alphas:
            raise ValueError(
                f"{path} must have the layers of this model. Received: "
                f"unknown {shown(unknown)}, missing {shown(missing)}"
            )
        ranks = {a.shape[-1] for a, _ in arrays.values()}
        rank = self._rank() if enabled else min(ranks)
        scales = {alphas[name] / rank for name in alphas}
        if enabled:
            scales |= {layer.lora_alpha / rank for layer in enabled.values()}
        if ranks != {rank} or len(scales) > 1:
            raise ValueError(
                f"{path} must have the rank and the scale of this model, which "
                f"are the same for all layers: rank {rank}. Load it before "
                "`enable_lora`, which then takes them from the file. Received: "
                f"ranks {sorted(ranks)}, scales {sorted(scales)}"
            )
        for name, (a, b) in arrays.items():
            shape = expected[name].kernel.shape
            wanted = (*shape[:-1], rank), (rank, shape[-1])
            if (a.shape, b.shape) != wanted:
                raise ValueError(
                    f"{path} must have matrices of shapes {wanted} for {name}. "
                    f"Received: {a.shape}, {b.shape}"
                )
        if not enabled:
            chosen = {name: adaptable[name] for name in arrays}
            self._enable(chosen, rank, min(alphas.values()))
        for name, parts in arrays.items():
            for part, array in zip(LORA_MATRICES, parts, strict=True):
                getattr(adaptable[name], part).assign(array)

    def freeze_for_lora(self):
        """Freezes the backbone and the softmax, if LoRA has matrices in it."""
        matrices = [
            getattr(layer, name)
            for layer in self._lora_layers().values()
            for name in LORA_MATRICES
        ]
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
        self._retrace_owners()

    def _retrace_owners(self):
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
            for layer in self._flatten_layers(include_self=False)
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
    is_path = isinstance(filepath, (str, os.PathLike))
    if not is_path or not os.fspath(filepath).endswith(_SUFFIX):
        raise ValueError(
            f"`filepath` must be a path that ends in {_SUFFIX!r}. Received: "
            f"filepath={filepath!r}"
        )
    return pathlib.Path(filepath).expanduser()


def _read(path):
    """Returns pairs of matrices and the alphas of a file, by layer.

    The file may come from a stranger: no array is read that is not in it.
    """
    arrays, alphas = {}, {}
    visited = itertools.count(1)

    def visit(name, item):
        if name.count("/") > _MAX_DEPTH or next(visited) > _MAX_ITEMS:
            raise ValueError("it has too many groups")
        # Links to other places and files are not visited.
        _, _, layer = name.partition("/")
        if isinstance(item, h5py.Dataset):
            _check_dataset(item)
            layer, _, part = layer.rpartition("/")
            arrays.setdefault(layer, {})[part] = item[()]
        elif "lora_alpha" in item.attrs:
            alphas[layer] = float(item.attrs["lora_alpha"])

    try:
        with h5py.File(path) as file:
            file.visititems(visit)
        pairs = {
            layer: tuple(parts[part] for part in LORA_MATRICES)
            for layer, parts in arrays.items()
        }
    except (
        OSError,
        KeyError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise ValueError(
            f"{path} is damaged, or was not written by `save_lora_weights`: "
            f"{error}"
        ) from error
    # In float32, as layers compute with it.
    scales = np.array([*alphas.values()]).astype(np.float32)
    is_valid = np.isfinite(scales).all() and (scales > 0).all()
    if pairs.keys() != alphas.keys() or not is_valid:
        raise ValueError(
            f"{path} is damaged: each layer must have two matrices and a "
            f"positive `lora_alpha`. Received: {shown(sorted(pairs))} and "
            f"{shown(alphas)}"
        )
    for layer, pair in pairs.items():
        if not all(np.isfinite(matrix).all() for matrix in pair):
            raise ValueError(f"{path} is damaged: {layer} is not finite")
    return pairs, alphas


def _check_dataset(dataset):
    """Checks that a matrix has as many bytes in the file as in memory."""
    is_plain = (
        dataset.ndim >= 2
        and dataset.dtype == np.float32
        and not dataset.is_virtual
        and dataset.external is None
        and dataset.id.get_storage_size() == dataset.nbytes > 0
    )
    if not is_plain:
        raise ValueError(
            f"{shown(dataset.name)} must be float32 values in the file itself. "
            f"Received: {shown(dataset)}"
        )
