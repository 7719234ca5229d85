"""Imports go one way, so that each part can be read without the next."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
# The parts from the bottom up. Each may import those above it in this list.
PARTS = [
    "checks",
    "json_files",
    "file_lock",
    "tensor_files",
    "weights",
    "metrics",
    "data",
    "layers",
    "samplers",
    "tpu",
    "training",
    "callbacks",
    "models",
    "checkpoints",
    "preset_folders",
    "workdir",
    "evaluation",
    "serving",
    "scripts",
]
# `from_preset` is a method of the classes whose objects it reads.
UPWARDS = {"models/preset_model.py": {"preset_folders"}}


def imported_parts(path):
    """Parts of txl_keras that a file imports."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
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


@pytest.mark.parametrize(
    "path", FILES, ids=lambda path: str(path.relative_to(ROOT))
)
def test_imports_go_one_way(path):
    path_in_package = path.relative_to(ROOT / "txl_keras")
    part = path_in_package.parts[0].removesuffix(".py")
    allowed = {*PARTS[: PARTS.index(part) + 1]}
    allowed |= UPWARDS.get(str(path_in_package), set())
    assert set(imported_parts(path)) <= allowed


def test_scripts_do_not_import_each_other():
    scripts = {path.stem: path for path in (ROOT / "train").glob("*.py")}
    assert {"main", "evaluate", "generate", "export"} <= set(scripts)
    for path in scripts.values():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.module.split(".")[0] not in {*scripts, "train"}
