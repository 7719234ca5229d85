"""The SavedModel where there is no txl_keras, no Keras, or no Python."""

import pathlib
import shutil
import subprocess

import keras
import numpy as np
import pytest
import tensorflow as tf
from factories import small_model
from script_runs import run_code
from tensorflow.core.protobuf import saved_model_pb2

from txl_keras.data import ByteTokenizer
from txl_keras.models import TransformerXLCausalLM
from txl_keras.serving import export

V, M = 29, 7
SEGMENTS = 3
SHAPES = [(1, 5), (3, 4)]
HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(3)
    return small_model(
        vocabulary_size=V,
        num_layers=2,
        num_heads=3,
        hidden_dim=16,
        memory_length=M,
        cutoffs=(9, 17),
        div_val=2,
        clamp_length=6,
        same_length=True,
        tie_projections="all_but_first",
    )


@pytest.fixture(scope="module")
def path(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("served") / "tiny" / "1"
    export(model, str(path), max_segment_length=20, num_slots=4)
    return path


def segments_of(batch_size, length):
    shape = (SEGMENTS, batch_size, length)
    return np.random.default_rng(batch_size).integers(V, size=shape)


def expected(model, batch_size, length):
    """Log-probabilities of all segments, `(SEGMENTS, B, T, V)`."""
    memory = model.initial_memory(batch_size)
    answers = []
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
        assert hidden.shape == (*ids.shape, 16), hidden.shape
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
    model = TransformerXLCausalLM.from_preset(
        "quickstart", num_layers=1, hidden_dim=12, initializer_stddev=0.3
    )
    texts = ["né à côté", "to be"]
    path, outputs = tmp_path / "text" / "1", tmp_path / "outputs.npz"
    export(model, str(path), ByteTokenizer(), memory_length=20)
    run_python(TEXT_BY_TENSORFLOW, path, outputs, *texts)
    answers = np.load(outputs)
    model.tokenizer = ByteTokenizer()
    scores = model.score_texts(texts, memory_length=20)
    np.testing.assert_allclose(
        answers["nll"], [np.nansum(nll) for _, nll in scores], rtol=1e-5
    )
    expected = model.generate(
        [ByteTokenizer().encode(text) for text in texts],
        max_new_tokens=4,
        sampler="greedy",
        memory_length=20,
        strip_prompt=True,
    )
    np.testing.assert_array_equal(answers["ids"], expected)


@pytest.fixture(scope="module")
def c_program(tmp_path_factory):
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("There is no gcc.")
    program = tmp_path_factory.mktemp("c") / "score"
    library = pathlib.Path(tf.sysconfig.get_lib())
    subprocess.run(
        [
            compiler,
            "-Wall",
            "-Werror",
            HERE / "score.c",
            f"-I{tf.sysconfig.get_include()}",
            library / "libtensorflow_cc.so.2",
            library / "libtensorflow_framework.so.2",
            f"-Wl,-rpath,{library}",
            # It reads the gigabyte of the library four times as fast.
            *(["-fuse-ld=gold"] if shutil.which("ld.gold") else []),
            "-o",
            program,
        ],
        check=True,
    )
    return program


def signatures_of(path):
    saved_model = saved_model_pb2.SavedModel()
    saved_model.ParseFromString((path / "saved_model.pb").read_bytes())
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


def run_c(program, path, batch_size, length, ids):
    """Runs the C program, which reads ids from its standard input."""
    sizes = str(batch_size), str(length)
    return subprocess.run(
        [program, path, *sizes, *tensor_names(path)],
        input=" ".join(map(str, ids)),
        capture_output=True,
        text=True,
    )


@pytest.mark.large
@pytest.mark.parametrize("shape", SHAPES)
def test_a_c_program_prints_the_same_numbers(model, path, c_program, shape):
    segments = segments_of(*shape)
    done = run_c(c_program, path, *shape, segments.ravel())
    assert done.returncode == 0, done.stderr
    printed = np.array(done.stdout.split(), "float32")
    np.testing.assert_allclose(
        printed.reshape(*segments.shape, V), expected(model, *shape), atol=1e-4
    )


def test_a_c_program_reads_what_is_wrong(path, c_program):
    done = run_c(c_program, path, 1, 2, [3, V])
    assert done.returncode == 1
    assert "`ids` must hold integers" in done.stderr


@pytest.fixture(scope="module")
def request_server(path):
    """Answers as a server does: by a session, which knows nothing of Python."""
    signatures = signatures_of(path)
    session = tf.compat.v1.Session(graph=tf.Graph())
    with session.graph.as_default():
        tf.compat.v1.saved_model.load(session, ["serve"], str(path))

    def answer(name, **inputs):
        signature = signatures[name]
        return session.run(
            {key: info.name for key, info in signature.outputs.items()},
            {signature.inputs[key].name: inputs[key] for key in inputs},
        )

    yield answer
    session.close()


@pytest.mark.large
def test_a_request_may_leave_sampling_parameters_out(request_server):
    request = {
        **request_server("initial_memory", batch_size=1),
        "prompt_ids": [[3, 1]],
        "prompt_length": [2],
        "length": 8,
    }
    written = request_server("generate", **request)
    with_defaults = request_server(
        "generate",
        **request,
        seed=0,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        repetition_penalty=1.0,
    )
    np.testing.assert_array_equal(written["ids"], with_defaults["ids"])


def test_a_server_keeps_memory_in_slots(model, request_server):
    slots = [3, 1, 0]
    for ids, log_probs in zip(
        segments_of(3, 4), expected(model, 3, 4), strict=True
    ):
        answer = request_server("step", ids=ids, slots=slots)
        np.testing.assert_allclose(
            answer["log_probs"], log_probs[:, -1], atol=1e-5
        )
    request_server("reset", slots=slots)
