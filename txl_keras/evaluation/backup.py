"""Keeps the state of a long measurement in a folder until it is finished."""

import hashlib
import json

import numpy as np

from txl_keras.training import bundles
from txl_keras.weights import weights_by_name


class Backup:
    """Saves arrays by name, and restores them for the same settings only."""

    # `settings` is a dictionary that JSON can hold, of all that the state
    # depends on. Only arrays named `results/...` may hold NaN.

    def __init__(self, folder, settings):
        self._folder = folder
        self._names = ", ".join(settings)
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
        self._hash = int.from_bytes(digest.digest()[:8], "big", signed=True)

    def save(self, step, state):
        """Saves a state in place of the one before."""
        numbers = {"step": np.int64(step), "run": np.int64(self._hash)}
        bundles.write_checkpoint(
            self._folder, {**numbers, **state}, max_to_keep=1
        )

    def restore(self, shapes):
        """Returns the saved state, with its `step`; `None` without any."""
        if not bundles.saved_steps(self._folder):
            return None
        shapes = {"step": (), "run": (), **shapes}
        try:
            return bundles.read_newest(self._folder, shapes, self._hash)
        except ValueError as error:
            raise ValueError(
                f"{self._folder} holds a part of another measurement, or is "
                f"damaged. It goes on only with the same {self._names}: run "
                "the command that was stopped, or remove the folder to begin "
                f"again. ({error})"
            ) from error

    def remove(self):
        """Removes the files, and the folder if it holds nothing else."""
        bundles.remove_checkpoints(self._folder)


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
