"""Packages whose modules are imported when their names are first used."""

import ast
import importlib
import inspect
import sys


def on_first_use(package):
    """Returns `__getattr__` and `__dir__` of a package for its `__all__`."""
    # Names are imported from where `if TYPE_CHECKING` imports them from, so
    # that type checkers and Python read one list. Others are submodules.
    module = sys.modules[package]
    places = {
        alias.name: node.module
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def get(name):
        if name not in module.__all__:
            raise AttributeError(f"{package!r} has no attribute {name!r}")
        if name not in places:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(places[name]), name)

    return get, lambda: sorted({*vars(module), *module.__all__})
