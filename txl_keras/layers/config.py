"""Configurations of layers from the names of their arguments."""

import inspect

import keras


def config_of(cls, *objects):
    """Returns the arguments of a class by name, as JSON may hold them.

    The value of each is the attribute of that name of the first object that has
    it; its default, if an object that may have it is `None`. The class is
    named, because subclasses may have other arguments.
    """
    config = {}
    for name, parameter in inspect.signature(cls).parameters.items():
        if parameter.kind == parameter.VAR_KEYWORD:
            continue
        owner = next((x for x in objects if hasattr(x, name)), objects[-1])
        value = parameter.default if owner is None else getattr(owner, name)
        config[name] = _stored(value)
    return config


class ConfiguredLayer(keras.layers.Layer):
    """Base class of layers that keep each argument as an attribute."""

    def get_config(self):
        config = super().get_config()
        for cls in type(self).__mro__:
            if cls is ConfiguredLayer:
                return config
            # Subclasses of users may have arguments that are no attributes.
            for name in inspect.signature(cls).parameters:
                if name not in config and hasattr(self, name):
                    config[name] = _stored(getattr(self, name))


def _stored(value):
    if isinstance(value, tuple):
        return list(value)
    if callable(value):  # initializers and layers
        return keras.saving.serialize_keras_object(value)
    return value
