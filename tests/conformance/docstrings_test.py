"""Every example in a docstring runs as it stands."""

import doctest
import importlib
import inspect
import pkgutil
import re

import pytest
import tensorflow as tf

import txl_keras

_EXAMPLE = re.compile(r"```python\n(.*?)```", re.DOTALL)
MODULES = [
    importlib.import_module(info.name)
    for info in pkgutil.walk_packages(txl_keras.__path__, "txl_keras.")
]


def examples():
    for module in MODULES:
        documented = {"module": module} | {
            name: value
            for name, value in vars(module).items()
            if getattr(value, "__module__", None) == module.__name__
        }
        for name, value in documented.items():
            for example in _EXAMPLE.findall(inspect.getdoc(value) or ""):
                yield pytest.param(example, id=f"{module.__name__}.{name}")


@pytest.fixture
def eagerly(request):
    """Tracing takes most of the time; other tests trace every model."""
    # Those that save a graph, or take many steps.
    needs_graph = re.search("export|Backup|Dynamic", request.node.name)
    tf.config.run_functions_eagerly(not needs_graph)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.mark.parametrize("example", list(examples()))
def test_example_runs(example, tmp_path, monkeypatch, eagerly):
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "example", "exec"), {})


def sessions():
    finder = doctest.DocTestFinder()
    for module in MODULES:
        for session in finder.find(module):
            if session.examples:
                yield pytest.param(session, id=session.name)


@pytest.mark.parametrize("session", list(sessions()))
def test_session_shows_what_happens(session, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "subword" in session.filename or "_piece_" in session.filename:
        pytest.importorskip("tensorflow_text")
        pytest.importorskip("sentencepiece")
    if "library_tok" in session.filename:
        pytest.importorskip("tokenizers")
    failures = []
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(session, out=failures.append)
    assert runner.failures == 0, "".join(failures)


@pytest.mark.parametrize("package", ["layers", "models"])
def test_every_keras_class_has_an_example(package):
    package = importlib.import_module(f"txl_keras.{package}")
    for name in package.__all__:
        value = getattr(package, name)
        if hasattr(value, "get_config"):
            assert _EXAMPLE.search(inspect.getdoc(value)), name
