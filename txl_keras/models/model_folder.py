"""The folder of a model: presets, and the best weights of a run.

config.json        class and config of the model, how it was trained, and the
                   hashes of the other files
model.safetensors  weights by name, as float32 or bfloat16, or matrices as int8
                   with scales
tokenizer.json     the tokenizer, if the model has one

The hashes detect a folder whose writing was interrupted, or whose files were
mixed up: it would otherwise load as another model.
"""

import contextlib
import copy
import functools
import json
import os

import keras
import numpy as np
from keras import ops
from keras.backend import standardize_dtype

from txl_keras import gfile
from txl_keras.checks import check_one_of
from txl_keras.checks import check_path
from txl_keras.checks import shown
from txl_keras.data import load_tokenizer
from txl_keras.data import save_tokenizer
from txl_keras.data.corpora.files import file_digest
from txl_keras.data.corpora.files import renamed_when_complete
from txl_keras.data.corpora.files import write_text
from txl_keras.data.tokenizers.saving import tokenizer_hash
from txl_keras.extending import registered
from txl_keras.json_files import MAX_BYTES
from txl_keras.json_files import check_fields
from txl_keras.json_files import check_known
from txl_keras.json_files import read_json
from txl_keras.keras_internals import layers_of
from txl_keras.models.hub import is_preset
from txl_keras.models.presets import arguments
from txl_keras.models.presets import required_arguments
from txl_keras.output_folders import check_replaceable
from txl_keras.tensor_files import check_shapes
from txl_keras.tensor_files import first_not_finite
from txl_keras.tensor_files import int8_with_scale
from txl_keras.tensor_files import read_safetensors
from txl_keras.tensor_files import shapes_of
from txl_keras.tensor_files import write_safetensors
from txl_keras.weights import build_in_graph
from txl_keras.weights import of_all_layers
from txl_keras.weights import to_tensor
from txl_keras.weights import weights_by_name

_FIELDS = {
    "class_name": "a string",
    "config": "an object",
    "training": "an object",
    "weights": "a string",
    "tokenizer": "a string or null",
}
# Fields of a model's config with the paths of layers.
_BY_LAYER = {"quantization", "frozen"}
_WEIGHT_DTYPES = ("float32", "bfloat16", "int8")
_WEIGHTS = "model.safetensors"
MAX_LENGTH = 1 << 20


class ModelFolder:
    """Reads the folder of a model."""

    def __init__(self, path):
        self.path = path
        self._config_path = os.path.join(path, "config.json")
        content = self._content = read_json(self._config_path)
        check_fields(content, _FIELDS, self._config_path)
        damaged = f"{self._config_path} is damaged: it"
        check_known(content, _FIELDS.keys(), damaged)
        self.model_class = class_of(content["class_name"], self._config_path)
        self.training = content["training"]
        self._weights_path = os.path.join(path, _WEIGHTS)

    @functools.cached_property
    def _tensors(self):
        # Opened when needed, because opening copies a whole file from a bucket.
        return read_safetensors(self._weights_path)

    def read_model_config(self):
        """Returns `get_config()` of the model, if the weights match."""
        path, cls = self._config_path, self.model_class
        config = check_model_config(self._content, cls, path)
        self._check_weights(weight_specs(config, cls, path, len(self._tensors)))
        return config

    def _check_weights(self, expected):
        """Compares the header of the weight file with a model's specs."""
        path, tensors = self._weights_path, self._tensors
        saved, shapes = (
            {f"weights/{name}": shape for name, shape in shapes.items()}
            for shapes in (tensors.shapes, shapes_of(expected))
        )
        check_shapes(path, saved, shapes)
        for name, spec in expected.items():
            is_int8 = name in tensors.int8
            if is_int8 != (standardize_dtype(spec.dtype) == "int8"):
                kind = f"of floats, or of int8 beside {shown(name + '/scale')}"
                raise ValueError(
                    f"{path} is of another model: {shown(name)} must be "
                    f"{kind if is_int8 else 'of int8'}. Received: "
                    f"{'I8' if is_int8 else 'floats'}"
                )

    def restore_weights(self, model):
        """Loads the weights into a model."""
        weights = weights_by_name(model)
        self._check_weights(weights)
        received = file_digest(self._weights_path)
        if received != self._content["weights"]:
            raise ValueError(
                f"{self._weights_path} is damaged, or is not the file that was "
                "saved with the config.json beside it. Bring back the files of "
                "one preset, or save it again."
            )
        for name, weight in weights.items():
            if name in self._tensors.int8:
                weight.assign(self._tensors.read(name))
                continue
            # In float32, large float64 values are infinite.
            value = to_tensor(self._tensors[name])
            if not np.isfinite(value).all():
                raise ValueError(
                    f"{self._weights_path} is damaged: {name} is not finite"
                )
            weight.assign(ops.cast(value, weight.dtype))

    def load_tokenizer(self):
        """Returns the tokenizer, or `None` if the model has none."""
        return read_tokenizer(self.path, self._content.get("tokenizer"))


def class_of(name, path, *kinds):
    """Returns the registered class that a config.json names."""
    # Keras would look up any class, and the file is not trusted.
    classes = {
        registered_class.__name__: registered_class
        for kind in kinds or ("backbone", "model")
        for registered_class in registered(kind).values()
    }
    if name not in classes:
        raise ValueError(
            f"{path} must have a `class_name` that is one of "
            f"{sorted(classes)}. Received: {shown(name)}"
        )
    return classes[name]


def read_tokenizer(folder, expected):
    """Returns the tokenizer of a hash in a folder, or `None` without both."""
    path, received = os.path.join(folder, "tokenizer.json"), None
    if gfile.exists(path):
        tokenizer = load_tokenizer(path)
        received = tokenizer_hash(tokenizer)
    elif expected is not None:
        raise FileNotFoundError(
            f"{folder} has no tokenizer: there is no {path}. Bring it back, or "
            "pass `tokenizer`. For a run, `txl train` writes it again."
        )
    if received != expected:
        raise ValueError(
            f"{path} is not the tokenizer of the model: `tokenizer` in "
            f"config.json is {shown(expected)}. Bring back the files that were "
            f"written together, or pass `tokenizer`. Received: {received}"
        )
    return tokenizer if expected else None


# ------------------------------ Configurations ------------------------------
# Only registered classes are allowed. Sizes are compared with the saved weights
# before any memory is allocated.


def check_model_config(content, model_class, path):
    """Checks and returns a model's config; only our classes may be in it."""
    config = _arguments(content, model_class, "config", path)
    if "backbone" not in arguments(model_class):
        return config
    at = "config.backbone"
    kinds = {at: "an object", f"{at}.class_name": "a string"}
    check_fields(content, kinds, path)
    cls = class_of(config["backbone"]["class_name"], path, "backbone")
    # No module or class is looked up by a name in the file.
    config["backbone"] = {
        "module": cls.__module__,
        "class_name": cls.__name__,
        "config": _arguments(content, cls, f"{at}.config", path),
        "registered_name": keras.saving.get_registered_name(cls),
    }
    return config


def _arguments(content, model_class, field, path):
    """Returns the arguments in a field; the constructor checks their values."""
    kinds, parameters = {field: "an object"}, arguments(model_class)
    if "backbone" not in parameters:
        kinds[f"{field}.num_layers"] = "an integer"
        kinds[f"{field}.cutoffs"] = "a list or null"
    check_fields(content, kinds, path)
    config = dict(functools.reduce(dict.get, field.split("."), content))
    known = {*parameters, "name", "trainable", "dtype", *_BY_LAYER}
    check_known(config, known, f"{path} is damaged: its field `{field}`")
    for name in sorted(required_arguments(model_class) - config.keys()):
        raise ValueError(f"{path} is damaged: it has no field `{field}.{name}`")
    for name, value in config.items():
        if type(value) is int:
            # Weights do not depend on memory lengths.
            limit = MAX_LENGTH if name.endswith("length") else 2**31 - 1
            check_limit(f"{field}.{name}", value, limit, path)
    if isinstance(config.get("dtype"), dict):
        # A dtype policy by name: an object could name any class.
        name = f"{field}.dtype.config.name"
        check_fields(content, {name: "a string"}, path)
        config["dtype"] = config["dtype"]["config"]["name"]
    return config


def check_limit(field, value, maximum, path):
    """Raises `ValueError` unless a JSON field is from 0 to `maximum`."""
    if not 0 <= value <= maximum:
        raise ValueError(
            f"{path} is damaged: its field `{field}` must be from 0 to "
            f"{maximum:,}. Received: {shown(value)}"
        )


def weight_specs(config, model_class, path, max_layers):
    """Returns the specs of weights by name, without allocating the weights."""
    sizes = backbone_config(config)
    for name, number in (
        ("num_layers", sizes["num_layers"]),
        ("cutoffs", len(sizes.get("cutoffs") or ())),
    ):
        check_limit(name, number, max_layers, path)
    config = copy.deepcopy(config)
    # Each quantized or frozen layer has its own entry, and may differ.
    differ = bool(_BY_LAYER & sizes.keys())
    if not differ:
        backbone_config(config)["num_layers"] = 1
    try:
        model = build_in_graph(lambda: model_class.from_config(config))
        specs = {
            name: keras.KerasTensor(weight.shape, weight.dtype)
            for name, weight in weights_by_name(model).items()
        }
    except (
        *(AttributeError, KeyError, TypeError),
        *(ValueError, ArithmeticError),
    ) as error:
        raise ValueError(
            f"The model in {path} does not describe a {model_class.__name__}: "
            f"{str(error)[-500:]}"
        ) from error
    return specs if differ else of_all_layers(specs, sizes["num_layers"])


def backbone_config(config):
    """Returns the part of a model's config that configures its backbone."""
    return config["backbone"]["config"] if "backbone" in config else config


# -------------------------------- Writing ---------------------------------


def save_preset(model, folder, training, dtype):
    """Writes a preset: see `PresetModel.save_to_preset`."""
    folder = check_path("folder", folder)
    check_one_of("dtype", dtype, _WEIGHT_DTYPES)
    name = type(model).__name__
    class_of(name, "A preset")
    tokenizer = getattr(model, "tokenizer", None)
    config = model.get_config()
    config.pop("tokenizer", None)
    is_quantized = "quantization" in {**config, **backbone_config(config)}
    if is_quantized and dtype != "float32":
        raise ValueError(
            "`dtype` must be 'float32' for a quantized model, whose int8 "
            f"kernels are saved as they are. Received: dtype={dtype!r}"
        )
    try:
        training = dict(training or {})
        text = json.dumps({"training": training}, indent=1)
        is_small = len(text) <= MAX_BYTES // 2
    except (TypeError, ValueError):
        is_small = False
    if not is_small:
        raise ValueError(
            "`training` must be None or a dictionary that JSON can hold in "
            f"{MAX_BYTES // 2:,} bytes. Received: {shown(training)}"
        )
    content = {
        "class_name": name,
        "config": config,
        "training": training,
        "tokenizer": tokenizer and tokenizer_hash(tokenizer),
    }
    weights = _merged_weights(model)
    _check_loads(type(model), content, weights)
    weights = {name: ops.convert_to_numpy(w) for name, w in weights.items()}
    check_replaceable("folder", folder, "a preset", lambda _: is_preset(folder))
    write_tokenizer = tokenizer and functools.partial(save_tokenizer, tokenizer)
    write_model(folder, content, weights, write_tokenizer, dtype)


def write_model(
    folder, content, weights, write_tokenizer=None, dtype="float32"
):
    """Writes a folder of weights by name; `write_tokenizer` takes a path."""
    name = first_not_finite(weights)
    if name:
        raise FloatingPointError(f"Not saved: {name} is not finite.")
    if dtype == "int8":
        weights, dtype = _with_int8_matrices(weights), "float32"
    weights_path, tokenizer_path, config_path = (
        os.path.join(folder, name)
        for name in (_WEIGHTS, "tokenizer.json", "config.json")
    )
    rename = renamed_when_complete
    try:
        gfile.makedirs(folder)
        # The config last: until then, its hashes differ from those in an
        # earlier config.
        with rename(config_path) as new_config:
            with contextlib.ExitStack() as files:
                if write_tokenizer:
                    write_tokenizer(files.enter_context(rename(tokenizer_path)))
                new = files.enter_context(rename(weights_path))
                write_safetensors(weights, new, dtype=dtype)
                content = {**content, "weights": file_digest(new)}
                write_text(json.dumps(content, indent=1) + "\n", new_config)
            if not write_tokenizer and gfile.exists(tokenizer_path):
                gfile.remove(tokenizer_path)
    except gfile.errors() as error:
        raise OSError(
            f"The model {folder} could not be written: {error}. Is "
            "the disk full?"
        ) from error


def _check_loads(model_class, content, received):
    """Raises `ValueError` if `from_preset` could not load these weights."""
    content = json.loads(json.dumps(content))
    source = "the preset to be saved"
    config = check_model_config(content, model_class, source)
    expected = weight_specs(config, model_class, source, len(received))
    received, expected = shapes_of(received), shapes_of(expected)
    different = sorted({*received.items()} ^ {*expected.items()})
    if different:
        raise ValueError(
            "To be saved as a preset, a model must have exactly the weights "
            "that its config describes, except for LoRA: save it before you "
            f"add other weights. Received: {shown(different)}"
        )


def _merged_weights(model):
    """Returns the weights by name, with LoRA merged into the kernels."""
    weights = weights_by_name(model)
    for layer in layers_of(model):
        if not hasattr(layer, "lora_kernel_a"):
            continue
        if getattr(layer, "quantization_mode", None) is not None:
            raise ValueError(
                "A quantized model with LoRA cannot be saved as a preset, "
                "because its kernels would have to be rounded again. Use "
                "`model.save`, or `save_lora_weights` of the backbone. "
                f"Received: LoRA of {layer.path}"
            )
        a, b = layer.lora_kernel_a, layer.lora_kernel_b
        # `layer.kernel` would be rounded to the compute dtype.
        update = ops.matmul(a.value, b.value)
        weights[layer._kernel.path.split("/", 1)[1]] = (
            layer._kernel.value + layer.lora_alpha / layer.lora_rank * update
        )
        for part in (a, b):
            del weights[part.path.split("/", 1)[1]]
    return weights


def _with_int8_matrices(weights):
    """Returns weights by name; matrices become int8 and scales."""
    stored = {}
    for name, weight in weights.items():
        # Attention biases have a heads axis and are not matrices.
        if weight.ndim < 2 or "bias" in name.rsplit("/", 1)[-1]:
            stored[name] = weight
        else:
            stored |= int8_with_scale(name, weight)
    return stored
