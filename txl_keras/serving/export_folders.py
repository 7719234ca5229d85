"""Writing of exported models through a temporary folder."""

import contextlib
import json
import os

import tensorflow as tf

from txl_keras import checks
from txl_keras.output_folders import check_replaceable
from txl_keras.output_folders import replaced_when_complete
from txl_keras.serving.graph_checks import traced

_SETTINGS = os.path.join("assets", "settings.json")


def check_path(path):
    """Returns a path with `~` expanded, unless no export may be written."""
    path = checks.check_path("path", path)
    settings = os.path.join(path, _SETTINGS)
    check_replaceable(
        "path",
        path,
        "an earlier export",
        lambda _: tf.io.gfile.exists(settings),
    )
    return path


def write_saved_model(
    path, endpoints, resources, settings, more_settings, assets, defaults=()
):
    """Writes a SavedModel, with `settings.json` and files in `assets/`."""
    # `endpoints` maps the name of a signature to a function and its input
    # specs; the first is also `serving_default`. `resources` are the tables
    # and other resources that the functions use, besides variables. For
    # `defaults` see `traced`.
    # Not `keras.export.ExportArchive`, which traces each function once more.
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
    """Yields a folder to write to, which gets the assets and becomes `path`."""
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
