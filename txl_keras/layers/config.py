"""Configurations of layers, from the names of their arguments."""

import inspect

import keras
import numpy as np

from txl_keras.keras_internals import layers_of


def parameters(cls, base):
    """Returns the parameters of a class and of bases below `base`, by name."""
    found = {}
    for parent in cls.__mro__[: cls.__mro__.index(base)]:
        for name, parameter in inspect.signature(parent).parameters.items():
            if parameter.kind not in (
                parameter.VAR_KEYWORD,
                parameter.VAR_POSITIONAL,
            ):
                found.setdefault(name, parameter)
    return found


def add_arguments(config, base, layer, *others):
    """Reads each argument from the first object with that attribute."""
    for name in parameters(type(layer), base):
        # Users' subclasses may have arguments that are not attributes.
        owner = next((x for x in (layer, *others) if hasattr(x, name)), None)
        if owner is not None and name not in config:
            value = getattr(owner, name)
            if isinstance(value, np.generic):
                value = value.item()
            elif isinstance(value, tuple):
                value = list(value)
            elif callable(value):  # initializers and layers
                value = keras.saving.serialize_keras_object(value)
            config[name] = value
    return config


class ConfiguredLayer(keras.layers.Layer):
    """Base class of layers that keep each argument as an attribute."""

    def get_config(self):
        if any(layer.quantization_mode for layer in layers_of(self)):
            raise ValueError(
                f"`{self.name}` is quantized, and a model of your own that has "
                "such a layer could not be loaded again. Save the model before "
                "`quantize`, and quantize it again after loading; or build it "
                "with a whole model of `txl_keras.models`, which keeps int8. "
                f"Received: a quantized {type(self).__name__}"
            )
        return add_arguments(super().get_config(), ConfiguredLayer, self)

    def _parameter(self, name, *shape):
        """Adds a weight with the initializer of the layer's kernels."""
        return self.add_weight(
            name=name,
            shape=shape,
            initializer=self.kernel_initializer.clone(),
        )


def part_of(owner, layer_class, **kwargs):
    """Creates a layer whose other arguments are attributes of its owner."""
    names = parameters(layer_class, ConfiguredLayer).keys() - kwargs.keys()
    owned = {name: getattr(owner, name) for name in names}
    return layer_class(**inherited(owner), **owned, **kwargs)


def inherited(owner):
    """Returns the arguments of Keras that a layer shares with its owner."""
    # Keras itself does not freeze layers inside of a layer that is created, or
    # loaded, with `trainable=False`.
    return {"dtype": owner.dtype_policy, "trainable": owner.trainable}
