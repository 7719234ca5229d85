"""Runs train/export.py."""

import tensorflow as tf


def test_a_run_is_exported(run, succeed, tmp_path):
    served = tmp_path / "served"
    flags = f"--workdir={run[0]}", f"--output={served}", "--num_slots=0"
    printed = succeed("export.py", *flags)
    assert f"of step 60 written to {served}" in printed
    signatures = tf.saved_model.load(served).signatures
    assert {"initial_memory", "serving_default"} <= signatures.keys()
    assert not {"step", "reset"} & signatures.keys()


def test_an_output_that_cannot_be_written_is_named(run, refuse, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    cases = (
        ([f"--output={tmp_path}"], ["`output` must be new", "notes.txt"]),
        ([f"--output={tmp_path}/notes.txt/1"], ["`output` must be a folder"]),
    )
    refuse("export.py", cases, f"--workdir={run[0]}")
