"""Every example in a docstring runs as it stands."""

import importlib
import inspect
import pkgutil
import re

import pytest

import txl_keras

_EXAMPLE = re.compile(r"```python\n(.*?)```", re.DOTALL)
_PACKAGES = ("checkpoints", "layers", "models", "serving", "metrics")


def modules():
    for info in pkgutil.walk_packages(txl_keras.__path__, "txl_keras."):
        if info.name.split(".")[1] in _PACKAGES:
            yield importlib.import_module(info.name)


def examples():
    for module in modules():
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) != module.__name__:
                continue
            for example in _EXAMPLE.findall(inspect.getdoc(value) or ""):
                yield pytest.param(example, id=f"{module.__name__}.{name}")


@pytest.mark.parametrize("example", list(examples()))
def test_example_runs(example):
    exec(compile(example, "example", "exec"), {})


@pytest.mark.parametrize("package", ["layers", "models"])
def test_every_keras_class_has_an_example(package):
    package = importlib.import_module(f"txl_keras.{package}")
    for name in package.__all__:
        value = getattr(package, name)
        if hasattr(value, "get_config"):
            assert _EXAMPLE.search(inspect.getdoc(value)), name
