"""Configurations of layers from the names of their arguments."""

import inspect

import keras


def config_of(cls, *objects):
    """Returns the arguments of a class by name, as JSON may hold them.

    The value of each is the attribute of that name of the first object that has
    it, or its default. The class is named, because subclasses may have others.
    """
    config = {}
    for name, parameter in inspect.signature(cls).parameters.items():
        if parameter.kind == parameter.VAR_KEYWORD:
            continue
        values = (getattr(x, name) for x in objects if hasattr(x, name))
        value = next(values, parameter.default)
        if isinstance(value, tuple):
            value = list(value)
        elif callable(value):  # initializers and layers
            value = keras.saving.serialize_keras_object(value)
        config[name] = value
    return config
