"""Safe loading of a model's configuration from the files of a stranger.

Keras would look up any class that an untrusted config.json names, and allocate
any size. Here only the classes below are allowed, and sizes are compared with
the saved weights.
"""

import copy
import inspect
import random
import re

import tensorflow as tf
from absl import logging

from txl_keras.checks import shown
from txl_keras.json_files import check_fields
from txl_keras.json_files import check_known
from txl_keras.models import LSTMBackbone
from txl_keras.models import TransformerXLBackbone
from txl_keras.models import XLNetBackbone
from txl_keras.weights import weights_by_name

MAX_LENGTH = 1 << 20
_BACKBONES = {
    backbone.__name__: backbone
    for backbone in (TransformerXLBackbone, LSTMBackbone, XLNetBackbone)
}


def check_model_config(content, model_class, path, field="model"):
    """Checks and returns a model's config, which names only our classes."""
    if model_class in _BACKBONES.values():
        return _backbone_arguments(content, field, model_class, path)
    at = f"{field}.backbone"
    kinds = {
        field: "an object",
        at: "an object",
        f"{at}.class_name": "a string",
        f"{at}.config": "an object",
    }
    check_fields(content, kinds, path)
    model = content[field]
    name = model["backbone"]["class_name"]
    registered_name = f"txl_keras>{name}"
    # No class is looked up, but a file that names another is no file of ours.
    for key, pattern in (
        ("class_name", "|".join(_BACKBONES)),
        ("module", r"txl_keras\.[\w.]+"),
        ("registered_name", registered_name),
    ):
        received = model["backbone"].get(key)
        if received is not None and not re.fullmatch(pattern, str(received)):
            raise ValueError(
                f"{path} is damaged: its field `{at}.{key}` must be that of "
                f"one of {sorted(_BACKBONES)}. Received: {shown(received)}"
            )
    backbone = _backbone_arguments(
        content, f"{at}.config", _BACKBONES[name], path
    )
    own = {key: value for key, value in model.items() if key != "backbone"}
    return {
        **_arguments(content, own, model_class, field, path),
        "backbone": {
            "module": _BACKBONES[name].__module__,
            "class_name": name,
            "config": backbone,
            "registered_name": registered_name,
        },
    }


def _backbone_arguments(content, field, backbone_class, path):
    kinds = {
        field: "an object",
        f"{field}.num_layers": "an integer",
        f"{field}.cutoffs": "a list or null",
    }
    check_fields(content, kinds, path)
    arguments = content
    for name in field.split("."):
        arguments = arguments[name]
    return _arguments(content, arguments, backbone_class, field, path)


def check_limit(field, value, maximum, path):
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
        check_limit(name, number, max_layers, path)
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


def _arguments(content, arguments, model_class, field, path):
    """Returns the arguments in a field, whose values the constructor checks."""
    parameters = inspect.signature(model_class).parameters
    known = {*parameters, "name", "trainable", "dtype"}
    check_known(arguments, known, f"{path} is damaged: its field `{field}`")
    for name, parameter in parameters.items():
        has_default = parameter.default is not parameter.empty
        is_named = parameter.kind == parameter.POSITIONAL_OR_KEYWORD
        if (
            is_named
            and not has_default
            and name not in {*arguments, "backbone"}
        ):
            raise ValueError(
                f"{path} is damaged: it has no field `{field}.{name}`"
            )
    for name, value in arguments.items():
        if type(value) is int:
            # No weight depends on lengths of memory.
            is_length = name.endswith("length") or name == "compression_rate"
            limit = MAX_LENGTH if is_length else 2**31 - 1
            check_limit(f"{field}.{name}", value, limit, path)
    arguments = dict(arguments)
    if isinstance(arguments.get("dtype"), dict):
        # A dtype policy by its name: an object could name any class.
        name = f"{field}.dtype.config.name"
        check_fields(content, {name: "a string"}, path)
        arguments["dtype"] = arguments["dtype"]["config"]["name"]
    return arguments
