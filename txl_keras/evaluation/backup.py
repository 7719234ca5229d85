"""Keeps the state of a long measurement in a file until it is finished."""

import json
import math

import numpy as np
import safetensors.numpy
import tensorflow as tf

from txl_keras.data.corpora.files import written_when_complete
from txl_keras.json_files import open_checked


class Backup:
    """Saves arrays by name, and restores them only for the same settings."""

    def __init__(self, path, settings):
        self._path = path
        settings = json.dumps(settings, sort_keys=True).encode()
        self._settings = np.frombuffer(settings, np.uint8)

    def save(self, state):
        """Saves a state; replaces the previous one."""
        data = safetensors.numpy.save({**state, "settings": self._settings})
        with written_when_complete(self._path) as file:
            file.write(data)

    def restore(self):
        """Returns the saved state, or `None` if there is none."""
        if not tf.io.gfile.exists(self._path):
            return None
        try:
            with open_checked(self._path, math.inf) as file:
                state = safetensors.numpy.load(file.read())
        except safetensors.SafetensorError:
            state = {}
        if not np.array_equal(state.get("settings"), self._settings):
            raise ValueError(
                f"{self._path} holds a part of another measurement, or is "
                "damaged. Run the command that was stopped, or remove the file "
                "to begin again."
            )
        return state

    def remove(self):
        """Removes the file, if there is one."""
        if tf.io.gfile.exists(self._path):
            tf.io.gfile.remove(self._path)
