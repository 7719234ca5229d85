"""Compares the table of train/tpu_table.py with the reports it is of."""

import json
import pathlib
import runpy

ROOT = pathlib.Path(__file__).parents[2]


def test_the_table_is_that_of_the_reports():
    lines = (ROOT / "tpu_configs/compiled.jsonl").read_text().splitlines()
    reports = [json.loads(line) for line in lines]
    table = runpy.run_path(str(ROOT / "train/tpu_table.py"))["table"](reports)
    guide = (ROOT / "tpu_configs/README.md").read_text("utf-8")
    assert f"<!-- tpu_table -->\n{table}<!-- end of tpu_table -->" in guide
    # Not because nothing was found.
    assert f"| {reports[0]['peak'] / 2**30:.1f} |" in table
