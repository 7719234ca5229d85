"""Keeps what a model compiles from call to call."""

import types

import tensorflow as tf


class KeepsCompiled:
    """Base of models that compile readers, such as a `Generator`, for reuse."""

    _kept = None

    def _keep(self, make, *settings):
        """Returns `make(self, *settings)`, one object for equal calls."""
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if replicas > 1:
            raise RuntimeError(
                "Text is read and written on one device. Call this method "
                "outside of `strategy.scope()`. Received: a strategy of "
                f"{replicas} replicas"
            )
        if self._kept is None:
            # In a dictionary of the model Keras would track its variables.
            self._kept = types.SimpleNamespace(made={})
        # A model with other variables, as after `quantize`, needs a new one.
        variables = self.weights
        ids = [id(variable) for variable in variables]
        before, _, found = self._kept.made.get(make, (None,) * 3)
        if before != (settings, ids):
            found = make(self, *settings)
            # The variables, too, so that no new one gets their id.
            self._kept.made[make] = (settings, ids), variables, found
        return found
