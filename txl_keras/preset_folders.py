"""Folders of models, read and written: presets, runs, and Hugging Face's.

A preset has these files:

config.json        class and config of the model, how it was trained, and the
                   hashes of the other files
model.safetensors  weights by name, float32 or bfloat16, or matrices as int8
                   with scales
tokenizer.json     the tokenizer, if the model has one

The hashes prevent a folder whose writing was interrupted, or whose files were
mixed up, from loading as another model than was saved.
"""

import contextlib
import json
import os
import re

import numpy as np
import tensorflow as tf

from txl_keras.checkpoints import load_hugging_face
from txl_keras.checkpoints import load_hugging_face_xlnet
from txl_keras.checkpoints import load_vocabulary
from txl_keras.checks import check_one_of
from txl_keras.checks import check_path
from txl_keras.checks import check_vocabulary
from txl_keras.checks import shown
from txl_keras.data.corpora.files import file_digest
from txl_keras.data.corpora.files import is_remote
from txl_keras.data.corpora.files import renamed_when_complete
from txl_keras.data.corpora.files import write_text
from txl_keras.data.preparation import tokenizer_hash
from txl_keras.data.tokenizers import WordTokenizer
from txl_keras.data.tokenizers import load_tokenizer
from txl_keras.data.tokenizers import save_tokenizer
from txl_keras.json_files import MAX_BYTES
from txl_keras.json_files import check_fields
from txl_keras.json_files import check_known
from txl_keras.json_files import read_json
from txl_keras.keras_internals import layers_of
from txl_keras.models import LSTMBackbone
from txl_keras.models import TransformerXLBackbone
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models import TransformerXLTextClassifier
from txl_keras.models import XLNetBackbone
from txl_keras.models import XLNetPermutationLM
from txl_keras.models.presets import check_required
from txl_keras.models.presets import own_arguments
from txl_keras.models.presets import split_overrides
from txl_keras.models.run_folder import RunFolder
from txl_keras.models.run_folder import backbone_config
from txl_keras.models.run_folder import check_model_config
from txl_keras.models.run_folder import warn_of_memory_source
from txl_keras.models.run_folder import weight_shapes
from txl_keras.output_folders import check_replaceable
from txl_keras.tensor_files import int8_with_scale
from txl_keras.tensor_files import read_safetensors
from txl_keras.tensor_files import write_safetensors
from txl_keras.training.bundles import check_shapes
from txl_keras.training.bundles import shapes_of
from txl_keras.weights import to_tensor
from txl_keras.weights import weights_by_name

_CLASSES = {
    model_class.__name__: model_class
    for model_class in (
        LSTMBackbone,
        TransformerXLBackbone,
        TransformerXLCausalLM,
        TransformerXLTextClassifier,
        XLNetBackbone,
        XLNetPermutationLM,
    )
}
_FIELDS = {
    "class_name": "a string",
    "config": "an object",
    "training": "an object",
    "weights": "a string",
    "tokenizer": "a string or null",
}
_WEIGHT_DTYPES = ("float32", "bfloat16", "int8")
_STDDEVS = ("initializer_stddev", "projection_initializer_stddev")
_WEIGHTS = "model.safetensors"
# Symbols of a Hugging Face `transfo-xl`, in its order of preference.
_VOCABULARIES = ("vocab.pkl", "vocab.bin", "vocab.txt")
# What is downloaded: PyTorch's file only if there is no other.
_DOWNLOADED = (
    "config.json", "tokenizer.json", "model*.safetensors",
    "model.safetensors.index.json", *_VOCABULARIES,
)  # fmt: skip
_DOWNLOADED_ELSE = ("pytorch_model*.bin", "pytorch_model.bin.index.json")
# Names of files and folders that may be read.
_READ = re.compile(
    r".*\.(json|safetensors|bin|pkl|txt)|checkpoints|best|ckpt-.*|checkpoint"
)


# -------------------------------- Reading ---------------------------------


def load_preset(model_class, preset, load_weights, dtype, overrides):
    """Loads a folder or a Hub repository: see `PresetModel.from_preset`."""
    folder = _find_folder(model_class, preset)
    path = os.path.join(folder, "config.json")
    content = read_json(path)
    if "class_name" in content:
        stored = _Preset(folder, content)
    elif "model" in content and "flags" in content:
        stored = _Run(folder)
    elif "model_type" in content or "n_layer" in content:
        return _load_hugging_face(
            model_class, folder, load_weights, dtype, overrides
        )
    else:
        raise ValueError(
            f"{path} must be that of a preset, with `class_name`; of a run, "
            "with `model` and `flags`; or of Hugging Face, with `model_type`. "
            f"Received: {shown(sorted(content))}"
        )
    return _load(model_class, stored, load_weights, dtype, overrides)


def _find_folder(model_class, preset):
    """Returns the local folder that `preset` names."""
    folder = ""
    if isinstance(preset, (str, os.PathLike)):
        folder = os.path.expanduser(os.fspath(preset))
    if folder in model_class.trained_presets:
        # Its files may be links, as some installers make them.
        return model_class.trained_presets[folder]
    if folder.startswith("hf://"):
        folder = _download(folder)
    if not folder or not tf.io.gfile.isdir(folder):
        sizes, trained = [*model_class.presets], [*model_class.trained_presets]
        named = f"a trained model, one of {trained}, " if trained else ""
        named += f"sizes without weights, one of {sizes}, " if sizes else ""
        raise ValueError(
            f"`preset` must be {named}the path of a folder, or "
            f"'hf://owner/name'. Received: preset={preset!r}"
        )
    _check_links(folder)
    return folder


def _download(preset):
    """Returns the local copy of the files of a Hub repository."""
    repository = preset.removeprefix("hf://")
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", repository):
        raise ValueError(
            "`preset` must be 'hf://owner/name' for a repository of the "
            f"Hugging Face Hub. Received: preset={preset!r}"
        )
    try:
        import huggingface_hub
    except ImportError as error:
        raise ImportError(
            f"Reading {preset} requires huggingface_hub. Run "
            "`pip install huggingface_hub`."
        ) from error
    for patterns in (_DOWNLOADED, _DOWNLOADED + _DOWNLOADED_ELSE):
        folder = huggingface_hub.snapshot_download(
            repository, allow_patterns=[*patterns]
        )
        if any("safetensors" in name for name in os.listdir(folder)):
            break
    return folder


def _check_links(folder):
    """Raises `ValueError` if a file to read is a link out of the folder."""
    if is_remote(folder):
        return
    root = os.path.realpath(folder)
    roots = [root]
    snapshots = os.path.dirname(root)
    if os.path.basename(snapshots) == "snapshots":
        # The cache of huggingface_hub, whose files are links to these.
        roots.append(os.path.join(os.path.dirname(snapshots), "blobs"))
    folders = (root, *(os.path.join(root, n) for n in ("checkpoints", "best")))
    for parent in filter(os.path.isdir, folders):
        for name in filter(_READ.fullmatch, os.listdir(parent)):
            path = os.path.join(parent, name)
            target = os.path.realpath(path)
            if not any(os.path.commonpath([target, r]) == r for r in roots):
                raise ValueError(
                    "The files of a preset must be in its folder. Copy what "
                    f"links refer to. Received: {path}, a link to {target}"
                )


class _Preset:
    """Reads a folder of `save_preset`, with the interface of `RunFolder`."""

    def __init__(self, folder, content):
        self.path = folder
        path = self._config_path = os.path.join(folder, "config.json")
        check_fields(content, _FIELDS, path)
        check_known(content, _FIELDS.keys(), f"{path} is damaged: it")
        if content["class_name"] not in _CLASSES:
            raise ValueError(
                f"{path} must have a `class_name` that is one of "
                f"{sorted(_CLASSES)}. Received: {shown(content['class_name'])}"
            )
        self._content = content
        self._weights_path = os.path.join(folder, _WEIGHTS)
        if not tf.io.gfile.exists(self._weights_path):
            raise FileNotFoundError(
                f"{folder} has no weights: there is no {self._weights_path}."
            )
        self._tensors = read_safetensors(self._weights_path)

    def model_class_name(self):
        return self._content["class_name"]

    def read_model_config(self, model_class, _):
        path, limit = self._config_path, len(self._tensors)
        config = check_model_config(self._content, model_class, path, "config")
        self._check_shapes(weight_shapes(config, model_class, path, limit))
        return config

    def _check_shapes(self, expected):
        saved, expected = (
            {f"weights/{name}": shape for name, shape in shapes.items()}
            for shapes in (self._tensors.shapes, expected)
        )
        check_shapes(self._weights_path, saved, expected)

    def restore_weights(self, model, _):
        weights = weights_by_name(model)
        self._check_shapes(shapes_of(weights))
        received = file_digest(self._weights_path, "sha256")
        if received != self._content["weights"]:
            raise ValueError(
                f"{self._weights_path} is damaged, or is not the file that was "
                "saved with the config.json beside it. Bring back the files of "
                "one preset, or save it again."
            )
        for name, weight in weights.items():
            # In float32, where large float64 values are infinite.
            value = to_tensor(self._tensors[name])
            if not np.isfinite(value).all():
                raise ValueError(
                    f"{self._weights_path} is damaged: {name} is not finite"
                )
            weight.assign(tf.cast(value, weight.dtype))

    def load_tokenizer(self):
        path = os.path.join(self.path, "tokenizer.json")
        expected, received = self._content.get("tokenizer"), None
        if tf.io.gfile.exists(path):
            tokenizer = load_tokenizer(path)
            received = tokenizer_hash(tokenizer)
        elif expected is not None:
            raise FileNotFoundError(
                f"{self.path} has no tokenizer: there is no {path}. Bring it "
                "back, or pass `tokenizer`."
            )
        if received != expected:
            raise ValueError(
                f"{path} is not the tokenizer of the preset: `tokenizer` in "
                f"config.json is {shown(expected)}. Bring back the files of "
                "one preset, or pass `tokenizer`."
            )
        return tokenizer if expected else None


class _Run(RunFolder):
    """Reads the folder of a run, which has no tokenizer if it was converted."""

    def load_tokenizer(self):
        has_file = tf.io.gfile.exists(self.tokenizer)
        if has_file or self.read_config().get("tokenizer"):
            return super().load_tokenizer()
        return None


def _load(model_class, stored, load_weights, dtype, overrides):
    """Builds a model of a class from a `_Preset` or a `RunFolder`."""
    stored_class = _CLASSES[stored.model_class_name()]
    is_same = issubclass(model_class, stored_class)
    build_class = model_class if is_same else stored_class
    config = stored.read_model_config(stored_class, "best")
    serialized = config.get("backbone", {})
    backbone_class = _CLASSES.get(serialized.get("class_name"), build_class)
    _check_gives(model_class, build_class, backbone_class, stored.path)
    own, sizes = split_overrides(model_class, overrides, backbone_class)
    if not is_same:
        check_required(model_class, own)
    changed = backbone_config(config)
    if load_weights:
        warn_of_memory_source(changed, sizes)
    changed.update(sizes)
    tokenizer = _tokenizer(
        model_class, own, stored.load_tokenizer, changed["vocabulary_size"]
    )
    if is_same:
        config.update(own)
    if dtype is not None:
        config["dtype"] = changed["dtype"] = dtype
    if load_weights:
        # Drawing weights that those of the file replace would take seconds.
        stddevs = {n: changed[n] for n in _STDDEVS if n in changed}
        changed.update(dict.fromkeys(stddevs, 0.0))
    config.pop("tokenizer", None)
    model = build_class.from_config(config)
    if load_weights:
        for name, value in stddevs.items():
            setattr(getattr(model, "backbone", model), name, value)
        try:
            stored.restore_weights(model, "best")
        except ValueError as error:
            if not sizes and not (is_same and own):
                raise
            raise ValueError(
                "Weights must not depend on the arguments that replace those "
                "of the preset, unless load_weights=False. Received: "
                f"{sorted(overrides)}. {error}"
            ) from error
    return _as_class(model_class, model, own, tokenizer)


def _check_gives(model_class, built_class, backbone_class, folder):
    """Raises `ValueError` if the model in a folder gives none of a class."""
    gives = (
        issubclass(built_class, model_class)
        or issubclass(backbone_class, model_class)
        or issubclass(model_class, TransformerXLTextClassifier)
        and not issubclass(backbone_class, XLNetBackbone)
    )
    if not gives:
        held = built_class.__name__
        if built_class is not backbone_class:
            held += f" with a {backbone_class.__name__}"
        raise ValueError(
            f"`preset` must hold a {model_class.__name__}; for a backbone or a "
            "classifier, any model with such a backbone. Received: "
            f"{folder}, which holds a {held}"
        )


def _tokenizer(model_class, own, load, vocabulary_size):
    """Returns the tokenizer for a model: the one passed, or that of a file."""
    if "tokenizer" not in own_arguments(model_class):
        return None
    tokenizer = own.pop("tokenizer") if "tokenizer" in own else load()
    if tokenizer is not None:
        check_vocabulary(tokenizer, vocabulary_size)
    return tokenizer


def _as_class(model_class, model, own, tokenizer):
    """Returns a loaded model, its backbone, or its backbone with a new head."""
    if not isinstance(model, model_class):
        backbone = getattr(model, "backbone", model)
        if isinstance(backbone, model_class):
            return backbone
        model = model_class(backbone, **own)
    if tokenizer is not None:
        model.tokenizer = tokenizer
    return model


def _load_hugging_face(model_class, folder, load_weights, dtype, overrides):
    own, sizes = split_overrides(model_class, overrides)
    if issubclass(model_class, TransformerXLTextClassifier):
        check_required(model_class, own)
    elif own.keys() - {"tokenizer"}:
        raise ValueError(
            "Of the arguments of a model that is loaded from a folder of "
            "Hugging Face, only `tokenizer` and those of the backbone can be "
            f"replaced. Received: {sorted(own)}"
        )
    if issubclass(model_class, (XLNetBackbone, XLNetPermutationLM)):
        drop_head = issubclass(model_class, XLNetBackbone)
        model = load_hugging_face_xlnet(folder, dtype, drop_head, **sizes)
    else:
        model = load_hugging_face(folder, dtype, **sizes)
    backbone = getattr(model, "backbone", model)
    _check_gives(model_class, type(model), type(backbone), folder)
    if not load_weights:
        model = type(model).from_config(model.get_config())
    size = backbone.vocabulary_size

    def load():
        names = (os.path.join(folder, name) for name in _VOCABULARIES)
        for path in filter(os.path.isfile, names):
            symbols = load_vocabulary(path, size)
            line_end = "<eos>" if "<eos>" in symbols else None
            return WordTokenizer(symbols, line_end=line_end)

    tokenizer = _tokenizer(model_class, own, load, size)
    return _as_class(model_class, model, own, tokenizer)


# -------------------------------- Writing ---------------------------------


def save_preset(model, folder, training, dtype):
    """Writes a preset: see `PresetModel.save_to_preset`."""
    folder = check_path("folder", folder)
    check_one_of("dtype", dtype, _WEIGHT_DTYPES)
    name = type(model).__name__
    if _CLASSES.get(name) is not type(model):
        raise ValueError(
            f"A preset must hold a model of one of {sorted(_CLASSES)}, which "
            f"other programs know. Received: a {name}"
        )
    tokenizer = getattr(model, "tokenizer", None)
    config = model.get_config()
    config.pop("tokenizer", None)
    if "quantization" in {**config, **backbone_config(config)}:
        raise ValueError(
            "A preset must hold float32 weights: save the model before "
            "`quantize`, and quantize what `from_preset` returns. Received: a "
            f"quantized {name}"
        )
    content = {
        "class_name": name,
        "config": config,
        "training": _training(model, training),
        "weights": "",
        "tokenizer": tokenizer and tokenizer_hash(tokenizer),
    }
    _check_loads(model, content)
    weights = _weights(model)
    check_replaceable("folder", folder, "a preset", lambda _: _is_ours(folder))
    if dtype == "int8":
        weights, dtype = _with_int8_matrices(weights), "float32"
    weights_path, tokenizer_path, config_path = (
        os.path.join(folder, name)
        for name in (_WEIGHTS, "tokenizer.json", "config.json")
    )
    rename = renamed_when_complete
    try:
        tf.io.gfile.makedirs(folder)
        # The config last: until then, hashes differ from those in an earlier
        # one.
        with rename(config_path) as new_config:
            with contextlib.ExitStack() as files:
                if tokenizer:
                    new = files.enter_context(rename(tokenizer_path))
                    save_tokenizer(tokenizer, new)
                new = files.enter_context(rename(weights_path))
                write_safetensors(weights, new, dtype=dtype)
                content["weights"] = file_digest(new, "sha256")
                write_text(json.dumps(content, indent=1) + "\n", new_config)
            if not tokenizer and tf.io.gfile.exists(tokenizer_path):
                tf.io.gfile.remove(tokenizer_path)
    except tf.errors.OpError as error:
        raise OSError(
            f"The preset {folder} could not be written: {error.message}. Is "
            "the disk full?"
        ) from error


def _training(model, training):
    """Returns how the model was trained, with what it knows itself."""
    optimizer, known = getattr(model, "optimizer", None), {}
    if optimizer is not None:
        known = {
            "optimizer": type(optimizer).__name__,
            "steps": int(optimizer.iterations.numpy()),
        }
    try:
        known.update(training or {})
        size = len(json.dumps(known))
    except (TypeError, ValueError) as error:
        raise ValueError(
            "`training` must be None or a dictionary that JSON can hold. "
            f"Received: {shown(training)} ({error})"
        ) from error
    if size > MAX_BYTES // 2:
        raise ValueError(
            f"`training` must have at most {MAX_BYTES // 2:,} bytes. "
            f"Received: {size:,} bytes"
        )
    return known


def _check_loads(model, content):
    """Raises `ValueError` if `from_preset` could not load the model."""
    content = json.loads(json.dumps(content))
    received = shapes_of(_merged_weights(model))
    source = "the preset to be saved"
    config = check_model_config(content, type(model), source, "config")
    expected = weight_shapes(config, type(model), source, len(received))
    different = sorted({*received.items()} ^ {*expected.items()})
    if different:
        raise ValueError(
            "The weights of a model must be those that its config describes to "
            "be saved as a preset: save before you add weights, other than "
            f"those of LoRA. Received: {shown(different)}"
        )


def _merged_weights(model):
    """Returns the weights by name, with those of LoRA merged into kernels."""
    weights = weights_by_name(model)
    for layer in layers_of(model):
        if hasattr(layer, "lora_kernel_a"):
            name = layer._kernel.path.split("/", 1)[1]
            weights[name] = layer.kernel
            for part in (layer.lora_kernel_a, layer.lora_kernel_b):
                del weights[part.path.split("/", 1)[1]]
    return weights


def _weights(model):
    """Returns the weights by name; raises an error if one is not finite."""
    weights = {}
    for name, weight in _merged_weights(model).items():
        weights[name] = weight.numpy()
        if not np.isfinite(weights[name]).all():
            raise FloatingPointError(f"Not saved: {name} is not finite.")
    return weights


def _with_int8_matrices(weights):
    """Returns weights by name, with int8 and scales in place of matrices."""
    stored = {}
    for name, weight in weights.items():
        # Attention biases have an axis of heads, and are no matrices.
        if weight.ndim < 2 or "bias" in name.rsplit("/", 1)[-1]:
            stored[name] = weight
        else:
            stored |= int8_with_scale(name, weight)
    return stored


def _is_ours(folder):
    """Returns whether a folder that is not empty has the files of a preset."""
    path = os.path.join(folder, "config.json")
    try:
        return read_json(path).get("class_name") in _CLASSES
    except (FileNotFoundError, ValueError):
        return False
