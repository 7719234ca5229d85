"""Reading the folder of a run: its configuration, weights and tokenizer."""

import copy
import functools
import hashlib
import inspect
import json
import os
import random
import re

import tensorflow as tf
from absl import logging

from txl_keras.checks import check_path
from txl_keras.checks import shown
from txl_keras.data.preparation import tokenizer_hash
from txl_keras.data.tokenizers import load_tokenizer
from txl_keras.json_files import check_fields
from txl_keras.json_files import check_known
from txl_keras.json_files import read_json
from txl_keras.models import LSTMBackbone
from txl_keras.models import TransformerXLBackbone
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models import XLNetBackbone
from txl_keras.training.bundles import DamagedCheckpointError
from txl_keras.training.bundles import check_saved_shapes
from txl_keras.training.bundles import restore_weights
from txl_keras.training.bundles import saved_steps
from txl_keras.weights import weights_by_name

_MAX_LENGTH = 1 << 20
_BACKBONES = {
    backbone.__name__: backbone
    for backbone in (TransformerXLBackbone, LSTMBackbone, XLNetBackbone)
}
_CONFIG_FIELDS = {
    "flags": "an object",
    "flags.segment_length": "an integer or null",
    "flags.batch_size": "an integer or null",
    "flags.learning_rate": "a number or null",
    "flags.max_steps": "an integer or null",
    "flags.minutes": "a number or null",
    "flags.reset_documents": "a boolean or null",
    "model": "an object",
    "tokenizer": "a string or null",
    "corpus": "an object or null",
    "corpus.corpus": "a string or null",
    "corpus.data_dir": "a string or null",
    "corpus.manual_dir": "a string or null",
    "corpus.document_separator": "a string or null",
    "corpus.text_key": "a string or null",
    "data": "an object",
}


class RunFolder:
    """Reads from the folder of a run what its model needs."""

    def __init__(self, path):
        path = check_path("workdir", path)
        self.path = path
        self.tokenizer = os.path.join(path, "tokenizer.json")
        self.checkpoints = os.path.join(path, "checkpoints")
        self.best = os.path.join(path, "best")
        self.metrics = os.path.join(path, "metrics.jsonl")
        self.events = os.path.join(path, "events")

    def file(self, name):
        """Returns the path of a file of the run."""
        return os.path.join(self.path, name)

    def is_claimed(self):
        """Returns whether a run was started here."""
        return tf.io.gfile.exists(self.file("config.json"))

    def read_config(self):
        """Returns the configuration of the run, a dictionary."""
        path = self.file("config.json")
        if not self.is_claimed():
            raise FileNotFoundError(
                f"`workdir` must be that of a run: there is no {path}."
            )
        config = read_json(path)
        check_fields(config, _CONFIG_FIELDS, path)
        length = config["flags"].get("segment_length") or 0
        _check_limit("flags.segment_length", length, _MAX_LENGTH, path)
        return {**config, "corpus": config.get("corpus") or {}}

    def run_hash(self):
        """Returns a 64-bit integer that identifies the run's configuration."""
        # Without the location of the text, which may change.
        config = {**self.read_config(), "corpus": None}
        digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
        return int.from_bytes(digest.digest()[:8], "big", signed=True)

    def load_model(
        self,
        checkpoint="latest",
        model_class=TransformerXLCausalLM,
        **overrides,
    ):
        """Returns the run's model with its weights, and their step."""
        model = self.build_model(model_class, checkpoint, **overrides)
        return model, self.restore_weights(model, checkpoint)

    def restore_weights(self, model, checkpoint="latest"):
        """Loads the weights of the run into a model and returns their step."""
        run = self.run_hash()
        return self._read_weights(
            checkpoint, lambda folder: restore_weights(model, folder, run)
        )

    def _read_weights(self, checkpoint, read):
        """Returns `read(folder)` of the best weights, or of the newest."""
        # "best" is by validation score, and the latest if there is none.
        if checkpoint == "best" and saved_steps(self.best):
            try:
                return read(self.best)
            except DamagedCheckpointError as error:
                logging.error("%s The newest weights are taken.", error)
        return read(self.checkpoints)

    def build_model(
        self,
        model_class=TransformerXLCausalLM,
        checkpoint="latest",
        **overrides,
    ):
        """Builds the run's model; `overrides` are arguments of its backbone."""
        config = self.read_model_config(model_class, checkpoint)
        warn_of_memory_source(config["backbone"]["config"], overrides)
        config["backbone"]["config"].update(overrides)
        return model_class.from_config(config)

    def read_model_config(
        self, model_class=TransformerXLCausalLM, checkpoint="latest"
    ):
        """Returns `get_config()` of the run's model, if the weights match."""
        self.check_model_class(model_class)
        path = self.file("config.json")
        config = check_model_config(self.read_config(), model_class, path)
        shapes = functools.partial(weight_shapes, config, model_class, path)
        self._read_weights(
            checkpoint, lambda folder: check_saved_shapes(folder, shapes)
        )
        return config

    def check_model_class(self, model_class=TransformerXLCausalLM):
        """Raises `ValueError` if the run has a model of another class."""
        received = self.model_class_name()
        if received != model_class.__name__:
            raise ValueError(
                f"`workdir` must be that of a {model_class.__name__}. "
                f"Received: {self.path}, of class {received}"
            )

    def model_class_name(self):
        """Returns the class name of the run's model, a string."""
        config = self.read_config()
        if "num_classes" in config["model"]:
            return "TransformerXLTextClassifier"
        kinds = {
            "model.backbone": "an object",
            "model.backbone.class_name": "a string",
        }
        check_fields(config, kinds, self.file("config.json"))
        if config["model"]["backbone"]["class_name"] == "XLNetBackbone":
            return "XLNetPermutationLM"
        return "TransformerXLCausalLM"

    def load_tokenizer(self):
        """Loads the tokenizer of the run, unless it has changed since."""
        config = self.read_config()
        if not tf.io.gfile.exists(self.tokenizer):
            remedy = "convert the checkpoint again, with --vocabulary"
            # Runs of `Workdir.create` name their source; others are trained.
            if config.get("tokenizer") and "source" not in config:
                remedy = (
                    "`txl train` writes it again when the run goes on, or "
                    "bring back a copy, as in export/STEP/assets"
                )
            raise FileNotFoundError(f"There is no {self.tokenizer}: {remedy}.")
        tokenizer = load_tokenizer(self.tokenizer)
        received = tokenizer_hash(tokenizer)
        if (config.get("tokenizer") or received) != received:
            raise ValueError(
                f"{self.tokenizer} is not that of the run: it was changed "
                f"after the run began. Expected: {config['tokenizer']}. "
                f"Received: {received}"
            )
        return tokenizer

    def generation_memory_length(self, backbone):
        """Returns the memory length for generating token by token."""
        if not backbone.has_attention:
            return backbone.memory_length
        # In training a token also attended to its segment. Without memory it
        # would now attend to the last token only.
        segment_length = self.read_config()["flags"].get("segment_length")
        return max(backbone.memory_length, segment_length or 0)


# ------------------------------ Configurations ------------------------------
# Keras would look up any class that an untrusted config.json names, and
# allocate any size. Here only the classes above are allowed, and sizes are
# compared with the saved weights.


def check_model_config(content, model_class, path, field="model"):
    """Checks and returns a model's config, which names only our classes."""
    if model_class in _BACKBONES.values():
        return _arguments(content, model_class, field, path)
    at = f"{field}.backbone"
    kinds = {
        field: "an object",
        at: "an object",
        f"{at}.class_name": "a string",
    }
    check_fields(content, kinds, path)
    name = content[field]["backbone"]["class_name"]
    if name not in _BACKBONES:
        raise ValueError(
            f"{path} is damaged: its field `{at}.class_name` must be that of "
            f"one of {sorted(_BACKBONES)}. Received: {shown(name)}"
        )
    return {
        **_arguments(content, model_class, field, path),
        # No module or class is looked up by what the file says.
        "backbone": {
            "module": _BACKBONES[name].__module__,
            "class_name": name,
            "config": _arguments(
                content, _BACKBONES[name], f"{at}.config", path
            ),
            "registered_name": f"txl_keras>{name}",
        },
    }


def _arguments(content, model_class, field, path):
    """Returns the arguments in a field, whose values the constructor checks."""
    kinds = {field: "an object"}
    if model_class in _BACKBONES.values():
        kinds[f"{field}.num_layers"] = "an integer"
        kinds[f"{field}.cutoffs"] = "a list or null"
    check_fields(content, kinds, path)
    arguments = content
    for name in field.split("."):
        arguments = arguments[name]
    parameters = inspect.signature(model_class).parameters
    known = {*parameters, "name", "trainable", "dtype"}
    check_known(arguments, known, f"{path} is damaged: its field `{field}`")
    for name, parameter in parameters.items():
        is_needed = (
            parameter.kind == parameter.POSITIONAL_OR_KEYWORD
            and parameter.default is parameter.empty
        )
        if is_needed and name not in arguments:
            raise ValueError(
                f"{path} is damaged: it has no field `{field}.{name}`"
            )
    for name, value in arguments.items():
        if type(value) is int:
            # No weight depends on lengths of memory.
            is_length = name.endswith("length") or name == "compression_rate"
            limit = _MAX_LENGTH if is_length else 2**31 - 1
            _check_limit(f"{field}.{name}", value, limit, path)
    arguments = dict(arguments)
    if isinstance(arguments.get("dtype"), dict):
        # A dtype policy by its name: an object could name any class.
        name = f"{field}.dtype.config.name"
        check_fields(content, {name: "a string"}, path)
        arguments["dtype"] = arguments["dtype"]["config"]["name"]
    return arguments


def _check_limit(field, value, maximum, path):
    """Raises `ValueError` unless a JSON field is from 0 to `maximum`."""
    if not 0 <= value <= maximum:
        raise ValueError(
            f"{path} is damaged: its field `{field}` must be from 0 to "
            f"{maximum:,}. Received: {shown(value)}"
        )


def warn_of_memory_source(trained, overrides):
    """Warns if weights `trained` with one memory source get another."""
    before = trained.get("memory_source", "inputs")
    after = overrides.get("memory_source", before)
    if after != before:
        logging.warning(
            "The weights were trained with memory_source=%s and will be worse "
            "with memory_source=%s, unless they are trained on.",
            before,
            after,
        )


def weight_shapes(config, model_class, path, max_layers):
    """Returns the shapes of weights by name, without allocating the weights."""
    sizes = backbone_config(config)
    for name, number in (
        ("num_layers", sizes["num_layers"]),
        ("cutoffs", len(sizes.get("cutoffs") or ())),
    ):
        _check_limit(name, number, max_layers, path)
    one_layer = copy.deepcopy(config)
    backbone_config(one_layer)["num_layers"] = 1
    # Building draws random seeds, which would change later initial weights.
    state = random.getstate()
    try:
        with tf.Graph().as_default():
            model = model_class.from_config(one_layer)
            shapes = {
                name: tuple(weight.shape)
                for name, weight in weights_by_name(model).items()
            }
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(
            f"The model in {path} does not describe a {model_class.__name__}: "
            f"{str(error)[-500:]}"
        ) from error
    finally:
        random.setstate(state)
    return {
        re.sub(r"^(block|lstm|compression)_0/", rf"\g<1>_{layer}/", name): shape
        for name, shape in shapes.items()
        for layer in range(sizes["num_layers"])
    }


def backbone_config(config):
    """Returns the part of a model's config that configures its backbone."""
    return config["backbone"]["config"] if "backbone" in config else config
