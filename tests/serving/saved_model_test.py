"""The SavedModel where there is no Python: a client in C."""

import pathlib
import shutil
import subprocess

import numpy as np
import pytest
import tensorflow as tf
from factories import V
from factories import random_ids
from tensorflow.core.protobuf import saved_model_pb2

# `export_test` starts TensorFlow alone.
pytestmark = pytest.mark.large
B, T = 3, 4


def compile_c(program):
    """Compiles the client in C against the library of TensorFlow's wheel."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("There is no gcc.")
    library = pathlib.Path(tf.sysconfig.get_lib())
    command = [
        compiler,
        "-Wall",
        "-Werror",
        pathlib.Path(__file__).with_name("score.c"),
        f"-I{tf.sysconfig.get_include()}",
        library / "libtensorflow_cc.so.2",
        library / "libtensorflow_framework.so.2",
        f"-Wl,-rpath,{library}",
        "-o",
        program,
    ]
    subprocess.run(command, check=True)


def tensor_names(path):
    """Arguments of the C program."""
    saved_model = saved_model_pb2.SavedModel()
    data = pathlib.Path(path, "saved_model.pb").read_bytes()
    saved_model.ParseFromString(data)
    signatures = saved_model.meta_graphs[0].signature_def
    start, predict = signatures["initial_memory"], signatures["serving_default"]
    tensors = [
        start.inputs["batch_size"],
        *(start.outputs[key] for key in ("memory", "valid_length")),
        *(predict.inputs[key] for key in ("ids", "memory", "valid_length")),
        *(predict.outputs[k] for k in ("log_probs", "memory", "valid_length")),
    ]
    return [tensor.name for tensor in tensors]


def test_a_c_program_prints_the_same_numbers_and_what_is_wrong(
    model, path, tmp_path
):
    program = tmp_path / "score"
    compile_c(program)

    def run(ids):
        return subprocess.run(
            [program, path, str(B), str(T), *tensor_names(path)],
            input=" ".join(map(str, ids.ravel())),
            capture_output=True,
            text=True,
        )

    segments, memory = random_ids(3, B, T), None
    done = run(segments)
    assert done.returncode == 0, done.stderr
    printed = np.array(done.stdout.split(), "float32").reshape(3, B, T, V)
    for ids, found in zip(segments, printed, strict=True):
        expected, memory = model.log_probs(ids, memory)
        np.testing.assert_allclose(found, expected, atol=1e-4)
    done = run(np.full((B, T), V))
    assert done.returncode == 1
    assert "`ids` must hold integers" in done.stderr
