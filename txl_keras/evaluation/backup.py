"""Keeps the state of a long measurement in a file until it is finished."""

import hashlib
import json
import math

import numpy as np
import safetensors.numpy
import tensorflow as tf

from txl_keras.data.corpora.files import renamed_when_complete
from txl_keras.json_files import open_checked
from txl_keras.weights import weights_by_name


class Backup:
    """Saves arrays by name, and restores them for the same settings only."""

    # `settings` is a dictionary that JSON can hold, of all that the state
    # depends on. NumPy's safetensors read no bfloat16.

    def __init__(self, path, settings):
        self._path = path
        self._names = ", ".join(settings)
        settings = json.dumps(settings, sort_keys=True).encode()
        self._settings = np.frombuffer(settings, np.uint8)

    def save(self, state):
        """Saves a state in place of the one before."""
        data = safetensors.numpy.save({**state, "settings": self._settings})
        with (
            renamed_when_complete(self._path) as unfinished,
            tf.io.gfile.GFile(unfinished, "wb") as file,
        ):
            file.write(data)

    def restore(self):
        """Returns the saved state; `None` without any."""
        if not tf.io.gfile.exists(self._path):
            return None
        with open_checked(self._path, math.inf) as file:
            data = file.read()
        try:
            state = safetensors.numpy.load(data)
        except safetensors.SafetensorError:
            state = {}
        if not np.array_equal(state.get("settings"), self._settings):
            raise ValueError(
                f"{self._path} holds a part of another measurement, or is "
                f"damaged. It goes on only with the same {self._names}: run "
                "the command that was stopped, or remove the file to begin "
                "again."
            )
        return state

    def remove(self):
        """Removes the file, if there is one."""
        if tf.io.gfile.exists(self._path):
            tf.io.gfile.remove(self._path)


def weights_hash(model):
    """Returns a hash that identifies the weights of a model."""
    return arrays_hash(sorted(weights_by_name(model).items()))


def arrays_hash(pairs):
    """Returns a hash of pairs of a name and an array."""
    digest = hashlib.sha256()
    for name, array in pairs:
        digest.update(name.encode())
        digest.update(np.asarray(array).tobytes())
    return digest.hexdigest()[:16]
