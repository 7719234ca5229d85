"""Type checkers of users know the arguments of what the package exports."""

import inspect
import pathlib
import runpy

import txl_keras

ROOT = pathlib.Path(__file__).parents[1]
API = runpy.run_path(str(ROOT / "docs" / "generate.py"))
# Keras calls them, or they only pass their arguments on to it.
OF_KERAS = {
    "build", "call", "compile_from_config", "compute_loss", "from_config",
    "get_compile_config", "get_config",
}  # fmt: skip


def exported():
    for module in API["_modules"]():
        for name in API["_exports"](module):
            yield getattr(module, name)


def documented(cls):
    """Yields the constructor and the methods that a class of ours documents."""
    for base in cls.__mro__:
        if base.__module__.startswith("txl_keras"):
            for name, value in vars(base).items():
                value = getattr(value, "__func__", value)
                is_public = value.__doc__ and not name.startswith("_")
                if name == "__init__" or is_public and name not in OF_KERAS:
                    yield value


def missing_hints(function):
    if not inspect.isfunction(function) or function.__module__ == "builtins":
        return
    signature = inspect.signature(function)
    variable = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    for name, parameter in signature.parameters.items():
        needs_hint = name not in ("self", "cls")
        needs_hint &= parameter.kind not in variable
        if needs_hint and parameter.annotation is parameter.empty:
            yield f"{function.__qualname__}: {name}"
    has_result = function.__name__ != "__init__"
    if has_result and signature.return_annotation is signature.empty:
        yield f"{function.__qualname__}: what it returns"


def test_arguments_and_results_of_the_api_have_type_hints():
    functions = [
        function
        for value in exported()
        for function in (
            documented(value) if inspect.isclass(value) else [value]
        )
    ]
    assert len(functions) > 300
    assert not {x for function in functions for x in missing_hints(function)}
    # Without this file type checkers ignore the hints.
    assert pathlib.Path(txl_keras.__file__).with_name("py.typed").exists()
