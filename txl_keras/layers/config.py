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
        if isinstance(value, tuple):
            value = list(value)
        elif callable(value):  # initializers and layers
            value = keras.saving.serialize_keras_object(value)
        config[name] = value
    return config
