"""Runs train/export.py."""

import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from txl_keras.workdir import Workdir


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--raw_text", "--num_slots=3"], "`num_slots` .* with --raw_text"),
        (["--num_rows=2"], "`num_rows` .* with --format=saved_model"),
        (
            ["--format=openvino", "--max_batch_size=3"],
            "`max_batch_size` .* with --format=openvino",
        ),
        (["--weights_dtype=int8"], "`weights_dtype` must be float32 or bfl"),
        (
            ["--format=openvino", "--raw_text"],
            "`raw_text` .* with --format=openvino",
        ),
    ],
)
def test_an_option_without_effect_on_an_export_is_refused(
    flags, message, fail, tmp_path
):
    error = fail("export.py", f"--workdir={tmp_path}", *flags)
    assert re.search(message.replace(".*", "must be left out"), error)


def test_a_run_is_exported(run, succeed, tmp_path):
    served = tmp_path / "served"
    printed = succeed("export.py", f"--workdir={run[0]}", f"--output={served}")
    assert f"of step 60 written to {served}" in printed
    signatures = tf.saved_model.load(served).signatures
    assert {"initial_memory", "serving_default"} <= signatures.keys()


@pytest.mark.large
@pytest.mark.parametrize("fixture", ["run", "words_run"])
def test_the_savedmodel_loads_where_there_is_only_tensorflow(
    fixture, request, succeed, tmp_path
):
    workdir = request.getfixturevalue(fixture)[0]
    succeed(
        "export.py",
        f"--workdir={workdir}",
        f"--output={tmp_path / 'served'}",
        "--memory_length=9",
    )
    script = """
import sys
sys.modules["keras"] = None
import numpy as np
import tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
serve = loaded.signatures["serving_default"]
start = loaded.signatures["initial_memory"]
outputs = {}
for batch, length in ((1, 5), (3, 4)):
    memory = start(batch_size=tf.constant(batch))
    for segment in range(3):
        ids = np.arange(batch * length).reshape(batch, length) + segment
        answer = serve(ids=tf.constant(ids, tf.int32), **memory)
        outputs[f"{batch}_{segment}"] = answer.pop("log_probs").numpy()
        memory = answer
np.savez(sys.argv[2], **outputs)
"""
    path = tmp_path / "outputs.npz"
    subprocess.run(
        [sys.executable, "-c", script, tmp_path / "served", path], check=True
    )
    outputs = np.load(path)
    model, _ = Workdir(str(workdir)).load_model(memory_length=9)
    for batch, length in ((1, 5), (3, 4)):
        memory = model.initial_memory(batch)
        for segment in range(3):
            ids = np.arange(batch * length).reshape(batch, length) + segment
            log_probs, memory = model.log_probs(ids, memory)
            np.testing.assert_allclose(
                outputs[f"{batch}_{segment}"], log_probs, atol=1e-5
            )
