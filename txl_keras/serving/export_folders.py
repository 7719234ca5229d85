"""Writes SavedModels, which check their inputs, and other exports."""

import contextlib
import inspect
import json
import os

import tensorflow as tf

from txl_keras import checks
from txl_keras.checks import checked
from txl_keras.output_folders import check_replaceable
from txl_keras.output_folders import replaced_when_complete

_SETTINGS = os.path.join("assets", "settings.json")


def check_path(path, name="path"):
    """Returns a path with `~` expanded; raises if it must not be replaced."""
    path = checks.check_path(name, path)
    settings = os.path.join(path, _SETTINGS)
    check_replaceable(
        name,
        path,
        "an earlier export",
        lambda _: tf.io.gfile.exists(settings),
    )
    return path


def check_model(model, expected):
    """Raises `ValueError` unless a model is of the expected class."""
    if not isinstance(model, expected):
        raise ValueError(
            f"`model` must be a {expected.__name__}. Received: "
            f"{type(model).__name__}"
        )


def write_saved_model(
    path, endpoints, resources, settings, more_settings, assets, defaults=()
):
    """Writes a SavedModel, with `settings.json` and files in `assets/`."""
    # `endpoints` maps the name of a signature to a function and its input
    # specs; the first is also `serving_default`. `resources` are the tables
    # and other resources that the functions use, besides variables. For
    # `defaults` see `traced`.
    # `keras.export.ExportArchive` would trace each function once more.
    signatures = {
        name: traced(*endpoint, settings["max_batch_size"], defaults)
        for name, endpoint in endpoints.items()
    }
    module = tf.Module()
    module.tracked = [*resources]
    for name, function in signatures.items():
        setattr(module, name, function)
        module.tracked.extend(function.get_concrete_function().variables)
    signatures["serving_default"] = next(iter(signatures.values()))
    with export_folder(path, settings, more_settings, assets) as unfinished:
        tf.saved_model.save(module, unfinished, signatures)


@contextlib.contextmanager
def export_folder(path, settings, more_settings, assets):
    """Yields a folder to write to; adds assets and renames it to `path`."""
    for name in assets or {}:
        if name != os.path.basename(name) or name == "settings.json":
            raise ValueError(
                "`assets` must have file names as keys, without folders, and "
                f"not settings.json. Received: {name!r}"
            )
    settings["model"].pop("tokenizer", None)  # may have megabytes
    description = json.dumps({**(more_settings or {}), **settings}, indent=1)
    # Servers look for `saved_model.pb`.
    with replaced_when_complete(path, last=("saved_model.pb",)) as unfinished:
        yield unfinished
        tf.io.gfile.makedirs(os.path.join(unfinished, "assets"))
        for name, source in (assets or {}).items():
            tf.io.gfile.copy(source, os.path.join(unfinished, "assets", name))
        with tf.io.gfile.GFile(
            os.path.join(unfinished, _SETTINGS), "w"
        ) as file:
            file.write(description + "\n")


def traced(function, specs, max_batch_size, defaults=()):
    """Makes a `tf.function` that checks the ranks and rows of its inputs."""
    # Its arguments have the names of `specs`; `defaults` are by name. The
    # default of a signature must be a tensor.
    arguments = inspect.Signature(
        [
            inspect.Parameter(
                spec.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=tf.constant(defaults[spec.name])
                if spec.name in defaults
                else inspect.Parameter.empty,
            )
            for spec in specs
        ]
    )

    def call(*args, **kwargs):
        inputs = arguments.bind(*args, **kwargs).args
        inputs = list(map(_check_rank, specs, inputs))
        for i, spec in enumerate(specs):
            if spec.shape.rank:
                inputs[i] = checked(
                    inputs[i],
                    tf.shape(inputs[i])[0] <= max_batch_size,
                    f"`{spec.name}` must have at most {max_batch_size} rows. "
                    "Received the shape:",
                    tf.shape(inputs[i]),
                )
        return function(*inputs)

    call.__signature__ = arguments
    return tf.function(call, specs, autograph=False)


def _check_rank(spec, value):
    # TensorFlow assumes the rank in the signature, and would optimize the check
    # away. It cannot infer the rank of the value of an optional. Only floats
    # are placed on accelerators anyway.
    with tf.device(None if value.dtype.is_floating else "CPU:0"):
        (unknown,) = tf.raw_ops.OptionalGetValue(
            optional=tf.raw_ops.OptionalFromValue(components=[value]),
            output_types=[value.dtype],
            output_shapes=[None],
        )
    return checked(
        value,
        tf.equal(tf.rank(unknown), spec.shape.rank),
        f"`{spec.name}` must be a tensor of rank {spec.shape.rank}. Received "
        "the shape:",
        tf.shape(unknown),
    )
