"""Keeps the state of a long measurement in a folder until it is finished."""

import hashlib
import os

import numpy as np
import tensorflow as tf

from txl_keras.checks import shown
from txl_keras.data.corpora.files import remove_if_empty
from txl_keras.json_files import read_json
from txl_keras.training.bundles import read_newest
from txl_keras.training.bundles import remove_checkpoints
from txl_keras.training.bundles import saved_steps
from txl_keras.training.bundles import write_checkpoint
from txl_keras.weights import weights_by_name
from txl_keras.workdir import write_json


class Backup:
    """Saves arrays by name, and restores them for the same settings only."""

    # `settings` is a dictionary that JSON can hold, of all that the state
    # depends on. Only arrays named `results/...` may hold NaN.

    def __init__(self, folder, settings):
        self._folder = folder
        self._settings = settings
        self._settings_path = os.path.join(folder, "settings.json")

    def save(self, step, state):
        """Saves a state in place of the one before."""
        tf.io.gfile.makedirs(self._folder)
        write_json(self._settings, self._settings_path)
        state = {"step": np.int64(step), **state}
        write_checkpoint(self._folder, state, max_to_keep=1)

    def restore(self, shapes):
        """Returns the saved state, with its `step`; `None` without any."""
        if not saved_steps(self._folder):
            return None
        try:
            found = read_json(self._settings_path)
            differences = [
                f"{name} was {shown(found.get(name))}, now {shown(value)}"
                for name, value in self._settings.items()
                if found.get(name) != value
            ]
            if not differences:
                return read_newest(self._folder, {"step": (), **shapes})
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{self._folder}, of a measurement that was stopped, is "
                f"damaged. Remove the folder to begin again. ({error})"
            ) from error
        raise ValueError(
            f"{self._folder} holds a part of another measurement: "
            f"{'; '.join(differences)}. Run the command that was stopped to go "
            "on with it, or remove the folder to begin again."
        )

    def remove(self):
        """Removes the files, and the folder if it holds nothing else."""
        # In this order: a state without settings would be damaged.
        remove_checkpoints(self._folder)
        if tf.io.gfile.exists(self._settings_path):
            tf.io.gfile.remove(self._settings_path)
        remove_if_empty(self._folder)


def weights_hash(model):
    """Returns a hash that identifies the weights of a model."""
    return arrays_hash(
        (name, variable.numpy())
        for name, variable in sorted(weights_by_name(model).items())
    )


def arrays_hash(pairs):
    """Returns a hash of pairs of a name and an array."""
    digest = hashlib.sha256()
    for name, array in pairs:
        digest.update(name.encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]
