"""Loads what `from_preset` names: a model, a run, or a Hugging Face folder."""

import functools
import os
import re

from txl_keras import gfile
from txl_keras.checks import shown
from txl_keras.data.corpora.files import is_remote
from txl_keras.extending import registered
from txl_keras.json_files import read_json
from txl_keras.models.hub import download
from txl_keras.models.model_folder import ModelFolder
from txl_keras.models.model_folder import backbone_config
from txl_keras.models.model_folder import class_of
from txl_keras.models.presets import default_backbone
from txl_keras.models.presets import split_overrides
from txl_keras.weights import build_undrawn

# Names of files and folders that may be read.
_READ = re.compile(r".*\.(json|safetensors|bin|pkl|txt)|model")
# Arguments of a backbone without a language model, on which no weights depend.
_LATE = {"look_ahead", "stateful"}


def load_folder(
    model_class, folder, load_weights=True, dtype=None, overrides=()
):
    """Loads the model of a local or remote folder."""
    # Files of the package may be links: some installers make them.
    if folder not in model_class.trained_presets.values():
        check_links(folder)
    path = os.path.join(folder, "config.json")
    content = read_json(path)
    if "training" in content and "weights" not in content:  # a run's folder
        folder = os.path.join(folder, "model")
        if not gfile.exists(os.path.join(folder, "config.json")):
            raise FileNotFoundError(
                f"The run of {path} has no best weights: there is no {folder}. "
                "Train until the first validation score."
            )
    elif "model_type" in content or "n_layer" in content:
        return _load_hugging_face(
            model_class, folder, load_weights, dtype, dict(overrides)
        )
    elif "class_name" not in content:
        raise ValueError(
            f"{path} must be that of a preset or a run, with `class_name`, or "
            "of Hugging Face, with `model_type`. Received: "
            f"{shown(sorted(content))}"
        )
    stored = ModelFolder(folder)
    return load_stored(model_class, stored, load_weights, dtype, overrides)


def find_folder(preset, model_class):
    """Returns the folder that `preset` refers to."""
    folder = ""
    if isinstance(preset, (str, os.PathLike)):
        folder = os.path.expanduser(os.fspath(preset))
    if folder in model_class.trained_presets:
        return model_class.trained_presets[folder]
    if folder.startswith("hf://"):
        folder = download(folder)
    if not folder or not gfile.isdir(folder):
        sizes, trained = [*model_class.presets], [*model_class.trained_presets]
        named = f"a trained model, one of {trained}, " if trained else ""
        named += f"sizes without weights, one of {sizes}, " if sizes else ""
        raise ValueError(
            f"`preset` must be {named}the path of a folder, or "
            f"'hf://owner/name'. Received: preset={preset!r}"
        )
    return folder


def check_links(folder):
    """Raises `ValueError` if a file to read is a link out of the folder."""
    if is_remote(folder):
        return
    root = os.path.realpath(folder)
    roots = [root]
    snapshots = os.path.dirname(root)
    if os.path.basename(snapshots) == "snapshots":
        # The cache of huggingface_hub, whose files are links to the blobs of
        # the repository, and these may be links to blobs of all.
        repository = os.path.dirname(snapshots)
        for owner in (repository, os.path.dirname(repository)):
            roots.append(os.path.join(owner, "blobs"))
    folders = root, os.path.join(root, "model")  # the second in a run
    for parent in filter(os.path.isdir, folders):
        for name in filter(_READ.fullmatch, os.listdir(parent)):
            path = os.path.join(parent, name)
            target = os.path.realpath(path)
            if not any(os.path.commonpath([target, r]) == r for r in roots):
                raise ValueError(
                    "The files of a preset must be in its folder. Replace "
                    f"links by copies. Received: {path}, a link to {target}"
                )


def load_stored(
    model_class, stored, load_weights=True, dtype=None, overrides=()
):
    """Returns the model of a `ModelFolder`."""
    overrides = dict(overrides)
    stored_class = stored.model_class
    is_same = issubclass(model_class, stored_class)
    build_class = model_class if is_same else stored_class
    config = stored.read_model_config()
    backbone_class = build_class
    if "backbone" in config:
        name = config["backbone"]["class_name"]
        backbone_class = class_of(name, stored.path, "backbone")
    _check_gives(model_class, build_class, backbone_class, stored.path)
    own, sizes = split_overrides(
        model_class, overrides, backbone_class, config if is_same else ()
    )
    # A language model would refuse these.
    late = {} if is_same else {k: sizes.pop(k) for k in _LATE & sizes.keys()}
    changed = backbone_config(config)
    changed.update(sizes)
    if is_same:
        config.update(own)
    if not load_weights:  # new weights are neither quantized nor frozen
        for name in ("quantization", "frozen"):
            config.pop(name, None)
            changed.pop(name, None)
    if dtype is not None:
        config["dtype"] = changed["dtype"] = dtype
    config.pop("tokenizer", None)
    build = functools.partial(build_class.from_config, config)
    model = build_undrawn(build, changed) if load_weights else build()
    if load_weights:
        try:
            stored.restore_weights(model)
        except ValueError as error:
            if not sizes and not (is_same and own.keys() - {"tokenizer"}):
                raise
            raise ValueError(
                "Weights must not depend on the arguments that replace those "
                "of the preset, unless load_weights=False. Leave them out. "
                "Received: "
                f"{sorted(overrides.keys() - {'tokenizer'})}. {error}"
            ) from error
    return _as_class(model_class, model, own, stored.load_tokenizer, late)


def _check_gives(model_class, built_class, backbone_class, folder):
    """Raises if the folder's model cannot be loaded as this class."""
    gives = (
        issubclass(built_class, model_class)
        or issubclass(backbone_class, model_class)
        or model_class.takes_new_head
        and issubclass(backbone_class, model_class.backbone_classes)
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


def _as_class(model_class, model, own, load_tokenizer, late=()):
    """Returns a loaded model, its backbone, or its backbone with a new head."""
    backbone = getattr(model, "backbone", model)
    if late:
        trained, config = backbone, {**backbone.get_config(), **late}
        backbone = type(trained).from_config(config)
        backbone.set_weights(trained.get_weights())
    if isinstance(backbone, model_class):
        return backbone
    # The tokenizer that was passed, even `None`, or else the folder's.
    tokenizer = own.pop("tokenizer") if "tokenizer" in own else load_tokenizer()
    if not isinstance(model, model_class):
        model = model_class(backbone, **own)
    model.tokenizer = tokenizer
    return model


def _load_hugging_face(model_class, folder, load_weights, dtype, overrides):
    backbone_class = default_backbone(model_class)
    own, sizes = split_overrides(model_class, overrides, backbone_class)
    if own.keys() - {"tokenizer"} and not model_class.takes_new_head:
        raise ValueError(
            "When a Hugging Face folder is loaded, only `tokenizer` and "
            "arguments of the backbone can be replaced. "
            f"Received: {sorted(own)}"
        )
    if is_remote(folder):
        raise ValueError(
            "A folder of Hugging Face must be local: copy it, or save it as a "
            f"preset. Received: {folder}"
        )
    load = registered("hugging_face")[backbone_class.hugging_face_type]
    is_backbone = model_class is backbone_class
    # The loader also reads the weights, which have the folder's sizes.
    free = {"memory_length", *backbone_class.evaluation_arguments}
    fitting = {k: x for k, x in sizes.items() if load_weights or k in free}
    model, load_tokenizer = load(folder, dtype, is_backbone, **fitting)
    backbone = getattr(model, "backbone", model)
    _check_gives(model_class, type(model), type(backbone), folder)
    if not load_weights:
        config = model.get_config()
        backbone_config(config).update(sizes)
        model = type(model).from_config(config)
    return _as_class(model_class, model, own, load_tokenizer)
