"""Writes SavedModels, whole or not at all."""

import contextlib
import json
import os

import keras
import tensorflow as tf

from txl_keras.checks import shown
from txl_keras.serving.graph_checks import with_checked_inputs

_SETTINGS = "settings.json"


def check_path(path):
    """Checks where a SavedModel shall be written.

    Args:
        path: String.

    Raises:
        ValueError: If it is empty, begins with `~`, or is something else than
            a SavedModel.
    """
    if not path or path.startswith("~"):
        raise ValueError(
            "`path` must be a folder, its name written out. "
            f"Received: path={path!r}"
        )
    if tf.io.gfile.exists(path) and not _is_saved_model(path):
        raise ValueError(
            "`path` must be new or a SavedModel, which is then replaced. "
            f"Received: path={path}"
        )


def _is_saved_model(path):
    return tf.io.gfile.exists(os.path.join(path, "saved_model.pb"))


def write_saved_model(
    path, endpoints, tracked, settings, more_settings=None, assets=None
):
    """Writes the folder of one version, with files for clients in `assets/`.

    Args:
        path: String, checked by `check_path`.
        endpoints: Dictionary of the name of a signature to the pair of a
            function and a list of `tf.TensorSpec`. The first is
            `serving_default` too.
        tracked: List of what they use beside the weights that they read.
        settings: Dictionary of what the SavedModel is, with `max_batch_size`,
            the most rows that its signatures take.
        more_settings: Optional dictionary of the caller's. Both must be JSON,
            and are written to `assets/settings.json`.
        assets: Optional dictionary of file names to paths of files to be
            copied.

    Raises:
        ValueError: If a setting is in both, or is no JSON, or a file cannot be
            copied under its name.
    """
    assets = assets or {}
    description = _description(settings, more_settings or {})
    _check_assets(assets)
    archive = keras.export.ExportArchive()
    for part in tracked:
        archive.track(part)
    for name, (function, specs) in endpoints.items():
        checked = with_checked_inputs(
            function, specs, settings["max_batch_size"]
        )
        archive.add_endpoint(name, checked, specs)
    with _whole_or_not_at_all(path) as unfinished:
        archive.write_out(unfinished, verbose=False)
        _write_assets(unfinished, description, assets)


def _description(settings, more_settings):
    """The text of `settings.json`."""
    taken = sorted({*settings} & {*more_settings})
    if taken:
        raise ValueError(
            f"`settings` must leave out {sorted(settings)}, which the export "
            f"writes itself. Received: {taken}"
        )
    try:
        return json.dumps({**settings, **more_settings}, indent=1) + "\n"
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`settings` must be a dictionary that JSON can hold: {error}"
        ) from error


def _check_assets(assets):
    for name, source in assets.items():
        is_file = tf.io.gfile.exists(source) and not tf.io.gfile.isdir(source)
        if name == _SETTINGS or os.path.basename(name) != name or not is_file:
            raise ValueError(
                "`assets` must map names of files, other than "
                f"{_SETTINGS}, to paths of files that exist. Received: "
                f"{shown(name)}: {shown(source)}"
            )


def _write_assets(path, description, assets):
    folder = os.path.join(path, "assets")
    tf.io.gfile.makedirs(folder)
    with tf.io.gfile.GFile(os.path.join(folder, _SETTINGS), "w") as file:
        file.write(description)
    for name, source in assets.items():
        tf.io.gfile.copy(source, os.path.join(folder, name))


@contextlib.contextmanager
def _whole_or_not_at_all(path):
    """A folder to write in, which takes the place of `path` at the end."""
    # Beside it, and of a name that no server takes for a version.
    parent, name = os.path.split(path.rstrip("/"))
    unfinished = os.path.join(parent, f"unfinished.{name}")
    _remove(unfinished)
    try:
        yield unfinished
        _remove(path)
        _move(unfinished, path)
    finally:
        _remove(unfinished)


def _remove(path):
    if tf.io.gfile.exists(path):
        tf.io.gfile.rmtree(path)


def _move(source, target):
    gfile = tf.io.gfile
    if "://" not in target:
        gfile.rename(source, target)
        return
    # Buckets have no folders to rename. What servers look for comes last.
    for folder, _, names in sorted(gfile.walk(source), reverse=True):
        new_folder = target + folder[len(source) :]
        gfile.makedirs(new_folder)
        for name in sorted(names, key="saved_model.pb".__eq__):
            gfile.copy(
                os.path.join(folder, name), os.path.join(new_folder, name)
            )
