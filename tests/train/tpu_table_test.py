"""Runs train/tpu_table.py."""

import pathlib
import shutil

import pytest
from script_runs import run_script

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def root(tmp_path):
    """Files that the command reads and writes."""
    for folder in ("tpu_configs", "train/configs"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


def test_the_table_is_that_of_the_reports(root, here):
    _, code = here("tpu_table.py", f"--root={root}", "--write_only")
    assert code == 0
    name = "tpu_configs/README.md"
    assert (root / name).read_text() == (ROOT / name).read_text(), (
        "Run python train/tpu_table.py --write_only"
    )


@pytest.mark.tpu
def test_an_unknown_name_is_told(root):
    done = run_script("tpu_table.py", f"--root={root}", "--only=v4_8,enwik9")
    assert done.returncode == 1
    assert "Received: enwik9" in done.stderr
