"""Losses of a long measurement, kept in a folder until all are measured.

Letters: `G` models of the group, `C` context lengths, `P` positions of a text.
"""

import hashlib
import os

import numpy as np
import tensorflow as tf

from txl_keras.data.corpora.files import remove_if_empty
from txl_keras.json_files import read_json
from txl_keras.training.bundles import read_newest
from txl_keras.training.bundles import remove_checkpoints
from txl_keras.training.bundles import saved_steps
from txl_keras.training.bundles import write_checkpoint
from txl_keras.weights import weights_by_name
from txl_keras.workdir import write_json

_NOT_MEASURED = -1.0  # a checkpoint must be finite


class SavedLosses:
    """Holds losses `(G, C, P)` in nats, NaN where they are not yet measured."""

    # `settings` is a dictionary that JSON can hold, of all that the losses
    # depend on. If the folder holds losses of other settings, `ValueError` is
    # raised.

    def __init__(self, folder, shape, settings):
        self._folder = folder
        self._settings_path = os.path.join(folder, "settings.json")
        self.losses = np.full(shape, np.nan, np.float32)
        if saved_steps(folder):
            self._restore(settings)
        else:
            tf.io.gfile.makedirs(folder)
            write_json(settings, self._settings_path)

    def num_rows(self):
        """Returns how many of the G C rows are measured."""
        return int(np.isfinite(self.losses).all(axis=-1).sum())

    def save(self):
        """Saves all rows that are measured."""
        is_measured = np.isfinite(self.losses).all(axis=-1, keepdims=True)
        state = {
            "step": np.int64(self.num_rows()),
            "losses": np.where(is_measured, self.losses, _NOT_MEASURED),
        }
        write_checkpoint(self._folder, state, max_to_keep=1)

    def remove(self):
        """Removes the folder, when the result is written elsewhere."""
        # In this order: losses without settings would be damaged.
        remove_checkpoints(self._folder)
        tf.io.gfile.remove(self._settings_path)
        remove_if_empty(self._folder)

    def _restore(self, settings):
        remedy = (
            "Run the command that was stopped to go on with it, or remove the "
            "folder to begin again"
        )
        try:
            found = read_json(self._settings_path)
            shapes = {"step": (), "losses": self.losses.shape}
            differences = [
                f"{name} was {found.get(name)}, now {settings[name]}"
                for name in settings
                if found.get(name) != settings[name]
            ]
            if not differences:
                losses = read_newest(self._folder, shapes)["losses"]
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{self._folder}, of a measurement that was stopped, is "
                f"damaged. Remove the folder to begin again. ({error})"
            ) from error
        if differences:
            raise ValueError(
                f"{self._folder} holds a part of another measurement: "
                f"{'; '.join(differences)}. {remedy}."
            )
        self.losses[:] = np.where(losses == _NOT_MEASURED, np.nan, losses)


def weights_hash(model):
    """Returns a hash that identifies the weights of a model."""
    digest = hashlib.sha256()
    for name, variable in sorted(weights_by_name(model).items()):
        digest.update(name.encode())
        digest.update(variable.numpy().tobytes())
    return digest.hexdigest()[:16]
