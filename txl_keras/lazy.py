"""Imports on first use: of a package's modules, and of optional packages."""

import ast
import importlib
import inspect
import sys

_SUBWORDS = (
    "`pip install sentencepiece tensorflow-text`; on Windows, which has no "
    "TensorFlow Text, use another tokenizer, such as bytes."
)
_REMEDIES = {"sentencepiece": _SUBWORDS, "tensorflow_text": _SUBWORDS}


def on_first_use(package):
    """Returns `__getattr__` and `__dir__` of a package for its `__all__`."""
    # Names come from the modules that `if TYPE_CHECKING` imports them from, so
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


def import_extra(name, purpose=""):
    """Imports an optional module; names the remedy if it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.split(".")[0]
        remedy = _REMEDIES.get(package, f"`pip install {package}`.")
        raise ImportError(
            f"{package} is needed{purpose}, but cannot be imported ({error}). "
            f"Run {remedy}"
        ) from error
