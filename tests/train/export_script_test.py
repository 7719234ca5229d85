"""Runs train/export.py."""

import re

import pytest
import tensorflow as tf


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--raw_text", "--num_slots=3"], "`num_slots` must be left out"),
        (["--num_rows=2"], "`num_rows` can only .* --format=openvino"),
        (
            ["--format=openvino", "--max_batch_size=3"],
            "`max_batch_size` can only .* --format=saved_model",
        ),
        (
            ["--format=openvino", "--raw_text"],
            "`raw_text` can only .* --format=saved_model",
        ),
        (("--weights_dtype=int8",), "`weights_dtype` can only .*=openvino"),
    ],
)
def test_an_option_without_effect_on_an_export_is_refused(
    flags, message, fail, tmp_path
):
    error = fail("export.py", f"--workdir={tmp_path}", *flags)
    assert re.search(message, error)


def test_a_run_is_exported(run, succeed, tmp_path):
    served = tmp_path / "served"
    printed = succeed("export.py", f"--workdir={run[0]}", f"--output={served}")
    assert f"of step 60 written to {served}" in printed
    signatures = tf.saved_model.load(served).signatures
    assert {"initial_memory", "serving_default"} <= signatures.keys()
