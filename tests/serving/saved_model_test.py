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
from txl_keras.serving.served_model import SAMPLING

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


def run_python(script, *args):
    done = run_code(script, *args)
    assert done.returncode == 0, done.stderr


ONLY_TENSORFLOW = """
import sys
sys.modules["keras"] = sys.modules["txl_keras"] = None
sys.modules["jax"] = None  # TensorFlow Lite would import it for a second
import numpy as np
import tensorflow as tf
path, segments_path, outputs_path = sys.argv[1:]
loaded = tf.saved_model.load(path)
call = loaded.signatures
outputs = {}
for name, segments in np.load(segments_path).items():
    segments = tf.constant(segments, tf.int32)
    batch_size = segments.shape[1]
    memory = call["initial_memory"](batch_size=tf.constant(batch_size))
    slots = tf.range(batch_size) + 1
    call["reset"](slots=slots)
    kept = []
    for ids in segments:
        hidden = call["hidden_states"](ids=ids, **memory)["hidden_states"]
        assert hidden.shape == (*ids.shape, 8), hidden.shape
        nll = call["score"](ids=ids, targets=ids, **memory)["nll"]
        memory = call["serving_default"](ids=ids, **memory)
        log_probs = memory.pop("log_probs").numpy()
        likelihood = np.take_along_axis(log_probs, ids.numpy()[..., None], -1)
        np.testing.assert_allclose(nll, -likelihood[..., 0], atol=1e-5)
        last = call["step"](ids=ids, slots=slots)["log_probs"]
        np.testing.assert_allclose(last, log_probs[:, -1], atol=1e-5)
        kept.append(log_probs)
    outputs[name] = np.stack(kept)
    # A method has defaults and takes numbers, a signature neither.
    written = loaded.generate(
        segments[-1], [segments.shape[2]] * batch_size, **memory,
        length=batch_size + 1,
    )
    assert written["ids"].shape == (batch_size, batch_size + 1)
    same = call["generate"](
        prompt_ids=segments[-1],
        prompt_length=tf.fill([batch_size], segments.shape[2]),
        length=tf.constant(batch_size + 1), seed=tf.constant(0),
        temperature=tf.constant(1.0), top_k=tf.constant(0),
        top_p=tf.constant(1.0),
        repetition_penalty=tf.constant(1.0), **memory,
    )
    np.testing.assert_array_equal(written["ids"], same["ids"])
assert set(call) == {
    "serving_default", "initial_memory", "score", "hidden_states", "generate",
    "step", "reset"}, set(call)
np.savez(outputs_path, **outputs)
"""


def test_tensorflow_alone_runs_every_signature(model, path, tmp_path):
    segments, outputs = tmp_path / "segments.npz", tmp_path / "outputs.npz"
    np.savez(segments, **{str(s): segments_of(*s) for s in SHAPES})
    run_python(ONLY_TENSORFLOW, path, segments, outputs)
    answers = np.load(outputs)
    for shape in SHAPES:
        np.testing.assert_allclose(
            answers[str(shape)], expected(model, *shape), atol=1e-5
        )


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


@pytest.mark.large
def test_tensorflow_alone_takes_text(tmp_path):
    model, texts = byte_model(), ["né à côté", "to be"]
    path, outputs = tmp_path / "text" / "1", tmp_path / "outputs.npz"
    export(model, str(path), model.tokenizer)
    run_python(TEXT_BY_TENSORFLOW, path, outputs, *texts)
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


@pytest.mark.large
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


def test_a_server_has_defaults_and_keeps_memory_in_slots(model, path):
    """By a session, as a server does, which knows nothing of Python."""
    signatures, log_probs = signatures_of(path), expected(model, 3, 4)
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        tf.compat.v1.saved_model.load(session, ["serve"], path)

        def answer(name, **inputs):
            signature = signatures[name]
            return session.run(
                {key: info.name for key, info in signature.outputs.items()},
                {signature.inputs[key].name: inputs[key] for key in inputs},
            )

        slots = [3, 1, 0]
        for ids, answers in zip(segments_of(3, 4), log_probs, strict=True):
            last = answer("step", ids=ids, slots=slots)["log_probs"]
            np.testing.assert_allclose(last, answers[:, -1], atol=1e-5)
        answer("reset", slots=slots)
        request = {
            **answer("initial_memory", batch_size=1),
            "prompt_ids": [[3, 1]],
            "prompt_length": [2],
            "length": 8,
        }
        # Sampling parameters are left out, or at their defaults.
        written = [
            answer("generate", **request, **more)["ids"]
            for more in ({}, SAMPLING)
        ]
        np.testing.assert_array_equal(*written)
