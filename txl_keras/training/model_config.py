"""Safe loading of a model's configuration from the files of a run.

Keras would look up any class that an untrusted config.json names, and allocate
any size. Here only the classes below are allowed, and sizes are compared with
the saved weights.
"""

import inspect
import random
import re

import keras
import tensorflow as tf

from txl_keras.checks import shown
from txl_keras.json_files import check_fields
from txl_keras.models import LSTMBackbone
from txl_keras.models import TransformerXLBackbone
from txl_keras.models import XLNetBackbone
from txl_keras.models.weights import weights_by_name

# No weight depends on the memory length, so it only has an upper limit.
MAX_LENGTH = 1 << 20
_BACKBONES = {
    backbone.__name__: backbone
    for backbone in (TransformerXLBackbone, LSTMBackbone, XLNetBackbone)
}
# The JSON type of an argument, by the type of its default.
_KINDS = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    tuple: "a list",
    type(None): "a number or null",
    type(inspect.Parameter.empty): "an integer",
}


def check_model_config(config, model_class, path):
    """Checks and returns `config["model"]`, the `get_config()` of a model.

    `config` is from JSON, `model_class` is a class of `txl_keras.models`, and
    `path` names the file in errors. The result names only classes of this
    package; raises `ValueError` for unknown fields, other types or other
    classes.
    """
    kinds = {
        "model": "an object",
        "model.backbone": "an object",
        "model.backbone.class_name": "a string",
        "model.backbone.config": "an object",
        "model.backbone.config.num_layers": "an integer",
    }
    check_fields(config, kinds, path)
    model = config["model"]
    name = model["backbone"]["class_name"]
    if name not in _BACKBONES:
        raise ValueError(
            f"{path} is damaged: its field `model.backbone.class_name` must "
            f"be one of {sorted(_BACKBONES)}. Received: {shown(name)}"
        )
    backbone = _arguments(
        config, model["backbone"]["config"], _BACKBONES[name],
        "model.backbone.config", path,
    )  # fmt: skip
    check_limit(
        "model.backbone.config.memory_length",
        backbone.get("memory_length", 0),
        MAX_LENGTH,
        path,
    )
    own = {key: value for key, value in model.items() if key != "backbone"}
    return {
        **_arguments(config, own, model_class, "model", path),
        "backbone": {
            "module": _BACKBONES[name].__module__,
            "class_name": name,
            "config": backbone,
            "registered_name": keras.saving.get_registered_name(
                _BACKBONES[name]
            ),
        },
    }


def check_limit(field, value, maximum, path):
    """Raises `ValueError` unless a JSON field is from 0 to `maximum`."""
    if not 0 <= value <= maximum:
        raise ValueError(
            f"{path} is damaged: its field `{field}` must be from 0 to "
            f"{maximum:,}. Received: {shown(value)}"
        )


def weight_shapes(config, model_class, path, max_layers):
    """Returns the shapes of a model's weights by name, without allocating them.

    An entry is such as `{"block_0/attention/query/kernel": (16, 2, 8)}`.
    `config` is the result of `check_model_config`. Raises `ValueError` if it
    describes no model or one with more than `max_layers` layers or clusters.
    """
    backbone = config["backbone"]
    sizes = backbone["config"]
    for name, number in (
        ("num_layers", sizes["num_layers"]),
        ("cutoffs", len(sizes.get("cutoffs", ()))),
    ):
        field = f"model.backbone.config.{name}"
        check_limit(field, number, max_layers, path)
    one_layer = {**backbone, "config": {**sizes, "num_layers": 1}}
    # Building draws random seeds, which would change later initial weights.
    state = random.getstate()
    try:
        with tf.Graph().as_default():
            model = model_class.from_config({**config, "backbone": one_layer})
            shapes = {
                name: tuple(weight.shape)
                for name, weight in weights_by_name(model).items()
            }
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(
            f"`model` in {path} does not describe a {model_class.__name__}: "
            f"{error}"
        ) from error
    finally:
        random.setstate(state)
    return {
        re.sub(r"^(block|lstm)_0/", rf"\g<1>_{layer}/", name): shape
        for name, shape in shapes.items()
        for layer in range(sizes["num_layers"])
    }


def _arguments(config, arguments, model_class, field, path):
    """Returns the constructor arguments in a field; checks their types."""
    parameters = inspect.signature(model_class).parameters
    kinds = {
        name: _KINDS[type(parameter.default)]
        for name, parameter in parameters.items()
        if parameter.kind == parameter.POSITIONAL_OR_KEYWORD
    }
    kinds |= {
        "name": "a string",
        "trainable": "a boolean",
        "dtype": "an object or a string",
        "tie_projections": "a boolean or a list or a string",
        "same_length": "a boolean or a string",
        "tokenizer": "an object or null",
    }
    unknown = sorted(arguments.keys() - kinds)
    if unknown:
        raise ValueError(
            f"{path} is damaged: its field `{field}` has the unknown key "
            f"{shown(unknown[0])}"
        )
    required = [
        name
        for name in kinds.keys() & parameters.keys()
        if parameters[name].default is inspect.Parameter.empty
        and name != "backbone"  # an object of its own, checked before
    ]
    names = sorted({*required, *arguments})
    fields = {f"{field}.{name}": kinds[name] for name in names}
    check_fields(config, fields, path)
    arguments = dict(arguments)
    if isinstance(arguments.get("dtype"), dict):
        # A dtype policy by its name: an object could name any class.
        name = f"{field}.dtype.config.name"
        check_fields(config, {name: "a string"}, path)
        arguments["dtype"] = arguments["dtype"]["config"]["name"]
    return arguments
