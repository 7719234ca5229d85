"""Imports on first use: of a package's modules, and of optional packages."""

import ast
import contextlib
import importlib
import inspect
import os
import re
import sys
import tempfile

_SUBWORDS = (
    "`pip install sentencepiece tensorflow-text`; on Windows, which has no "
    "TensorFlow Text, use another tokenizer, such as bytes."
)
_LOG_LINE = re.compile(
    rb"[IWE]\d{4} |\d{4}-.*: [IWE] |WARNING: All log messages before absl|"
    rb"To enable the following instructions"
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
        with without_tensorflow_log():
            if name not in places:
                return importlib.import_module(f"{package}.{name}")
            return getattr(importlib.import_module(places[name]), name)

    return get, lambda: sorted({*vars(module), *module.__all__})


@contextlib.contextmanager
def without_tensorflow_log():
    """Leaves out what TensorFlow logs before it reads its log level."""
    # The level that txl_keras sets by default shows only fatal errors: the
    # others also come as exceptions, or are harmless, such as "failed call to
    # cuInit" without a GPU. TF_CPP_MIN_LOG_LEVEL=0 shows all lines.
    is_imported = "tensorflow" in sys.modules
    is_shown = os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0"
    try:
        stderr = None if is_imported or is_shown else os.dup(2)
    except OSError:  # it is closed
        stderr = None
    if stderr is None:
        yield
        return
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            log.seek(0)
            others = [line for line in log if not _LOG_LINE.match(line)]
            os.write(2, b"".join(others))


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
