"""Runs train/tpu_table.py."""

import json
import pathlib

FOLDER = pathlib.Path(__file__).parents[2] / "tpu_configs"


def test_the_table_is_that_of_the_reports(here):
    files = FOLDER / "README.md", FOLDER / "compiled.jsonl"
    before = [path.read_text("utf-8") for path in files]
    try:
        _, code = here("tpu_table.py", "--write_only")
        after = [path.read_text("utf-8") for path in files]
    finally:
        for path, text in zip(files, before, strict=True):
            path.write_text(text, "utf-8")
    assert code is None
    assert after == before, "Run python train/tpu_table.py --write_only"
    # Not because nothing was found.
    peak = json.loads(before[1].splitlines()[0])["peak"]
    assert f"| {peak / 2**30:.1f} |" in before[0]
