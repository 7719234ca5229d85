"""Writing of exported models through a temporary folder."""

import contextlib
import json
import os

import tensorflow as tf

from txl_keras import checks
from txl_keras.data.corpora.files import is_file
from txl_keras.output_folders import check_replaceable
from txl_keras.output_folders import replaced_when_complete
from txl_keras.serving.graph_checks import traced

_SETTINGS = "settings.json"
# The files that servers look for: of a SavedModel, and of OpenVINO.
_MODEL_FILES = ("saved_model.pb", "model.xml")


def check_path(path):
    """Returns a path with `~` expanded, unless no export may be written."""
    path = checks.check_path("path", path)

    def is_export(names):
        settings = os.path.join(path, "assets", _SETTINGS)
        # Other programs write SavedModels and model.xml, too.
        return tf.io.gfile.exists(settings) and not {*names}.isdisjoint(
            _MODEL_FILES
        )

    check_replaceable("path", path, "an earlier export", is_export)
    return path


def write_saved_model(
    path, endpoints, tracked, settings, more_settings, assets, defaults=()
):
    """Writes a SavedModel, with `settings.json` and files in `assets/`."""
    # `endpoints` maps the name of a signature to a function and its input
    # specs; the first is also `serving_default`. `tracked` are the variables,
    # tables and other resources that the functions use. For `defaults` see
    # `traced`.
    # Not `keras.export.ExportArchive`, which traces each function once more.
    signatures = {
        name: traced(*endpoint, settings["max_batch_size"], defaults)
        for name, endpoint in endpoints.items()
    }
    module = tf.Module()
    module.tracked = tracked
    for name, function in signatures.items():
        setattr(module, name, function)
    signatures["serving_default"] = next(iter(signatures.values()))
    with export_folder(path, settings, more_settings, assets) as unfinished:
        tf.saved_model.save(module, unfinished, signatures)


@contextlib.contextmanager
def export_folder(path, settings, more_settings, assets):
    """Yields a folder to write to, which gets the assets and becomes `path`."""
    assets, more_settings = assets or {}, more_settings or {}
    reserved = sorted({*settings} & {*more_settings})
    if reserved:
        raise ValueError(
            "`settings` must not contain keys that the export writes itself: "
            f"{sorted(settings)}. Received: {reserved}"
        )
    try:
        description = json.dumps({**settings, **more_settings}, indent=1)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`settings` must be a dictionary of JSON values: {error}"
        ) from error
    for name, source in assets.items():
        is_name = name != _SETTINGS and os.path.basename(name) == name
        if not is_name or not is_file(source):
            raise ValueError(
                "`assets` must map file names without a folder, other than "
                f"{_SETTINGS}, to paths of existing files. Received: "
                f"{checks.shown(name)}: {checks.shown(source)}"
            )
    with replaced_when_complete(path, last=_MODEL_FILES) as unfinished:
        yield unfinished
        folder = os.path.join(unfinished, "assets")
        tf.io.gfile.makedirs(folder)
        with tf.io.gfile.GFile(os.path.join(folder, _SETTINGS), "w") as file:
            file.write(description + "\n")
        for name, source in assets.items():
            tf.io.gfile.copy(source, os.path.join(folder, name))
