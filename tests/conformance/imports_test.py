"""Imports go one way, so that each part can be read without the next."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
# What a part may import, besides itself.
ALLOWED = {
    "checkpoints": {"checks", "data", "json_files", "layers", "models"},
    "callbacks": {"layers"},
    "checks": set(),
    "data": {"checks", "json_files"},
    "json_files": {"checks"},
    "layers": {"checks"},
    "metrics": set(),
    "models": {
        "callbacks",
        "checks",
        "data",
        "layers",
        "metrics",
        "samplers",
    },
    "samplers": {"checks", "layers"},
    "training": {
        "checks",
        "data",
        "json_files",
        "layers",
        "metrics",
        "models",
        "tpu",
    },
    "tpu": {"data"},
    "evaluation": {"checks", "data", "layers", "metrics", "models", "training"},
    "serving": {"checks", "data", "layers", "models", "samplers"},
    "scripts": {
        "checkpoints",
        "data",
        "evaluation",
        "json_files",
        "layers",
        "models",
        "serving",
        "tpu",
        "training",
    },
}


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
    part = path.relative_to(ROOT / "txl_keras").parts[0].removesuffix(".py")
    assert set(imported_parts(path)) <= ALLOWED[part] | {part}


def test_scripts_do_not_import_each_other():
    scripts = {path.stem: path for path in (ROOT / "train").glob("*.py")}
    assert {"main", "evaluate", "generate", "export"} <= set(scripts)
    for path in scripts.values():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.module.split(".")[0] not in {*scripts, "train"}
