"""Registers what extensions add by name: backbones, presets, command options.

An extension is a module of `txl_keras.extensions` or `txl_keras.pages`, the
package `txl_keras.tpu`, a module that an installed package names as an entry
point of the group `txl_keras.extensions`, or any imported module. The rest of
the package imports no extension: it looks up objects with `registered`. Models
find the loaders of `txl_keras.checkpoints`, which import models, in this way.
"""

import functools
import importlib.metadata
import importlib.util
import pkgutil
from typing import Any

import txl_keras
from txl_keras.backend import ON_TENSORFLOW

_GROUP = "txl_keras.extensions"
_found = {}  # by kind, then by name


def register(kind: str, **named: Any) -> None:
    """Registers objects of a kind, which other modules look up by name.

    Args:
        kind: String, such as `"backbone"`. docs/extending.md lists the kinds
            and the requirements on an object of each kind.
        **named: The objects by name.

    Raises:
        ValueError: If another object of that kind has one of the names.

    Example:

    ```python
    from txl_keras.extending import register, registered

    register("greeting", short="hello")
    assert registered("greeting")["short"] == "hello"
    ```
    """
    known = _found.setdefault(kind, {})
    for name, value in named.items():
        if known.setdefault(name, value) is not value:
            raise ValueError(
                f"`{name}` must be a new name of the kind {kind!r}. Received: "
                f"{value!r}, but {known[name]!r} is registered"
            )


def registered(kind: str) -> dict[str, Any]:
    """Returns the registered objects of a kind by name, in order of names."""
    _import_extensions()
    return dict(sorted(_found.get(kind, {}).items()))


@functools.cache
def _import_extensions():
    # Modules of the package itself that register what they define.
    for name in txl_keras.models.__all__:
        getattr(txl_keras.models, name)
    importlib.import_module("txl_keras.checkpoints")
    for entry in importlib.metadata.entry_points(group=_GROUP):
        entry.load()
    if not ON_TENSORFLOW:  # these modules need it
        return
    for path in txl_keras.__path__:
        for folder in ("extensions", "pages"):
            for module in pkgutil.iter_modules([f"{path}/{folder}"]):
                importlib.import_module(f"txl_keras.{folder}.{module.name}")
    if importlib.util.find_spec("txl_keras.tpu"):
        importlib.import_module("txl_keras.tpu")
