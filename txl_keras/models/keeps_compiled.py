"""Keeps what a model compiles from call to call."""

import tensorflow as tf


class KeepsCompiled:
    """Base of models that compile readers, such as a `Generator`, for reuse."""

    _kept = None

    def _keep(self, make, *settings):
        """Returns `make(self, *settings)`, the same object for the same call.

        A new one is made if the model has other variables, as after
        `quantize`; new values of the variables need none.
        """
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if replicas > 1:
            raise RuntimeError(
                "Text is read and written on one device. Call this method "
                "outside of `strategy.scope()`. Received: a strategy of "
                f"{replicas} replicas"
            )
        if self._kept is None:
            self._kept = _Kept()
        return self._kept.get(
            make, settings, self.weights, lambda: make(self, *settings)
        )


class _Kept:
    """Holds the last object of each kind, with what it was made of.

    Keras tracks what is in a dictionary, but not what is in this object.
    """

    def __init__(self):
        self._found = {}

    def get(self, kind, settings, variables, make):
        ids = [id(variable) for variable in variables]
        before, ids_before, _, found = self._found.get(kind, (None,) * 4)
        if before != settings or ids_before != ids:
            found = make()
            # The variables, too, so that no new one gets their id.
            self._found[kind] = settings, ids, variables, found
        return found
