"""Runs train/scaling_table.py."""

import pathlib
import shutil

import pytest

ROOT = pathlib.Path(__file__).parents[2]
GUIDE = "docs/scaling.md"


@pytest.fixture
def root(tmp_path):
    """Files that the command reads and writes."""
    for folder in ("tpu_configs", "train/configs"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / "docs").mkdir()
    shutil.copyfile(ROOT / GUIDE, tmp_path / GUIDE)
    return tmp_path


def test_the_tables_of_the_guide_are_current(root, succeed):
    succeed("scaling_table.py", f"--root={root}")
    assert (root / GUIDE).read_text() == (ROOT / GUIDE).read_text(), (
        "Run python train/scaling_table.py"
    )


def test_a_measured_rate_prints_what_one_host_can_feed(root, succeed):
    output = succeed(
        "scaling_table.py", f"--root={root}", "--feeding_rate=1000"
    )
    assert "of 0.001 M tokens/s" in output
    lines = [line for line in output.splitlines() if line.startswith("| `v")]
    assert lines and all(": no**" in line for line in lines)
    assert (root / GUIDE).read_text() == (ROOT / GUIDE).read_text()


def test_a_guide_without_the_place_of_a_table_is_named(root, fail):
    path = root / GUIDE
    path.write_text(path.read_text().replace("<!-- end of limits -->", ""))
    fail(
        "scaling_table.py", f"--root={root}",
        messages=["<!-- limits -->", "Received: 0"],
    )  # fmt: skip
