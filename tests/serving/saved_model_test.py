"""The SavedModel where there is no txl_keras, no Keras, or no Python."""

import pathlib
import shutil
import subprocess

import numpy as np
import pytest
import tensorflow as tf
from factories import V
from factories import byte_model
from factories import random_ids
from script_runs import run_code
from tensorflow.core.protobuf import saved_model_pb2

from txl_keras.serving import export

# `export_test` starts TensorFlow alone with ids.
pytestmark = pytest.mark.large
SHAPES = [(1, 5), (3, 4)]


def segments_of(batch_size, length):
    """Three of them."""
    return random_ids(3, batch_size, length, seed=batch_size)


def expected(model, batch_size, length):
    """Log-probabilities of all segments, `(3, B, T, V)`."""
    memory, answers = None, []
    for ids in segments_of(batch_size, length):
        log_probs, memory = model.log_probs(ids, memory)
        answers.append(log_probs.numpy())
    return np.stack(answers)


TEXT_BY_TENSORFLOW = """
import sys
sys.modules["keras"] = sys.modules["txl_keras"] = None
import numpy as np
import tensorflow as tf
path, outputs_path, *texts = sys.argv[1:]
loaded = tf.saved_model.load(path)
call = loaded.signatures
assert set(call) == {
    "score_text", "generate_text", "serving_default"}, set(call)
scores = call["score_text"](text=tf.constant(texts))
written = loaded.generate_text(texts, length=4, temperature=0.0)
for text, ids in zip(written["text"].numpy(), written["ids"].numpy()):
    assert text == bytes(ids.tolist()), (text, ids)
np.savez(outputs_path, nll=scores["nll"], ids=written["ids"])
"""


def test_tensorflow_alone_takes_text(tmp_path):
    model, texts = byte_model(), ["né à côté", "to be"]
    path, outputs = tmp_path / "text" / "1", tmp_path / "outputs.npz"
    export(model, str(path), model.tokenizer)
    done = run_code(TEXT_BY_TENSORFLOW, path, outputs, *texts)
    assert done.returncode == 0, done.stderr
    answers = np.load(outputs)
    np.testing.assert_allclose(
        answers["nll"],
        [np.nansum(nll) for _, nll in model.score_texts(texts)],
        rtol=1e-5,
    )
    written = model.generate(
        [model.tokenizer.encode(text) for text in texts],
        max_new_tokens=4,
        sampler="greedy",
        strip_prompt=True,
    )
    np.testing.assert_array_equal(answers["ids"], written)


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


def signatures_of(path):
    saved_model = saved_model_pb2.SavedModel()
    data = pathlib.Path(path, "saved_model.pb").read_bytes()
    saved_model.ParseFromString(data)
    return saved_model.meta_graphs[0].signature_def


def tensor_names(path):
    """Arguments of the C program."""
    signatures = signatures_of(path)
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

    def run(batch_size, length, ids):
        sizes = str(batch_size), str(length)
        return subprocess.run(
            [program, path, *sizes, *tensor_names(path)],
            input=" ".join(map(str, ids)),
            capture_output=True,
            text=True,
        )

    for shape in SHAPES:
        done = run(*shape, segments_of(*shape).ravel())
        assert done.returncode == 0, done.stderr
        printed = np.array(done.stdout.split(), "float32")
        log_probs = expected(model, *shape)
        np.testing.assert_allclose(
            printed.reshape(log_probs.shape), log_probs, atol=1e-4
        )
    done = run(1, 2, [3, V])
    assert done.returncode == 1
    assert "`ids` must hold integers" in done.stderr
