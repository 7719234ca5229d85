"""Imports go one way, so that each part can be read without the next."""

import ast
import os
import pathlib
import re
import subprocess
import sys

import pytest

from txl_keras.data import corpora
from txl_keras.data import load_corpus

ROOT = pathlib.Path(__file__).parents[2]
# The parts from the bottom up. Each may import those above it in this list.
PARTS = [
    "lazy",
    "keras_without_log",
    "backend",
    "gfile",
    "types",
    "needs_tensorflow",
    "extending",
    "keras_internals",
    "checks",
    "json_files",
    "file_lock",
    "tensor_files",
    "weights",
    "metrics",
    "optimizers",
    "data",
    "output_folders",
    "layers",
    "compilation",
    "samplers",
    "models",
    "checkpoints",
    "training",
    "callbacks",
    "workdir",
    "evaluation",
    "serving",
    "scripts",
    "extensions",
    "tpu",
    "pages",
]


def imported_parts(path):
    """Parts of txl_keras that a file imports when it is loaded."""
    # In a function, `compile` and `fit` import the training, which is above.
    for node in ast.parse(path.read_text("utf-8")).body:
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.startswith("txl_keras."):
                yield name.split(".")[1]


FILES = sorted((ROOT / "txl_keras").glob("*/**/*.py")) + [
    *(ROOT / "txl_keras").glob("[a-z]*.py"),
]


def test_imports_go_one_way():
    for path in FILES:
        path_in_package = path.relative_to(ROOT / "txl_keras")
        part = path_in_package.parts[0].removesuffix(".py")
        allowed = PARTS[: PARTS.index(part) + 1]
        assert set(imported_parts(path)) <= {*allowed}, path


def test_what_keras_does_not_document_is_used_in_one_file():
    undocumented = re.compile(
        r"_flatten_layers|\._initial_epoch|_loss_tracker|symbolic_build|_getframe|"
        "_use_cached_eval|_should_use_adamw|_muon_update_step|_save_signature"
    )
    found = [x for x in FILES if undocumented.search(x.read_text("utf-8"))]
    assert [path.name for path in found] == ["keras_internals.py"]


def test_scripts_do_not_import_each_other():
    scripts = {path.stem: path for path in (ROOT / "train").glob("*.py")}
    assert {"main", "evaluate", "generate", "export"} <= set(scripts)
    for path in scripts.values():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.module.split(".")[0] not in {*scripts, "train"}


@pytest.mark.parametrize(
    "path", ["txl_keras/serving/__init__.py", "train/main.py"]
)
def test_another_backend_of_keras_is_refused_at_once(path, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    done = subprocess.run(
        [sys.executable, "-X", "importtime", path],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    *imports, error = done.stderr.splitlines()
    assert "Set KERAS_BACKEND=tensorflow" in error
    assert error.endswith("Received: KERAS_BACKEND=jax")
    assert not any("tensorflow.python" in line for line in imports)
    assert done.returncode == 1


def test_own_text_needs_no_extra_and_others_name_theirs(tmp_path, monkeypatch):
    # As if it were not installed.
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    monkeypatch.delitem(sys.modules, f"{corpora.__name__}.tfds_text", False)
    monkeypatch.delattr(corpora, "tfds_text", False)
    (tmp_path / "mine.txt").write_text("to be or not to be\n" * 100)
    load_corpus(str(tmp_path / "mine.txt"))
    load_corpus("enwik8")
    with pytest.raises(ImportError, match="needs TensorFlow Datasets") as error:
        load_corpus("tfds:lm1b")
    assert 'pip install -e ".[datasets]"' in str(error.value)
