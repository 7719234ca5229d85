import concurrent.futures
import json

import numpy as np
import pytest
import tensorflow as tf
from factories import H
from factories import M
from factories import V
from factories import random_ids
from script_runs import run_code

from txl_keras.models import TransformerXLCausalLM
from txl_keras.samplers.sampler import NO_EFFECT
from txl_keras.serving import Sampler
from txl_keras.serving import export
from txl_keras.serving.export_folders import traced
from txl_keras.serving.served_model import SAMPLING
from txl_keras.serving.served_model import ServedModel
from txl_keras.serving.slots import Slots

L, N = 1, 3
MAX_T, MAX_B, MAX_W = 20, 16, 15  # of one request, as in conftest.py
InvalidArgumentError = tf.errors.InvalidArgumentError
GREEDY = {"temperature": 0.0}


def signatures_of(model, memory_length=M, num_slots=0):
    """Those of a model that is not saved first, which takes seconds."""
    served = ServedModel(model, memory_length, MAX_T)
    endpoints = served.endpoints()
    if num_slots:
        slots = Slots(served, num_slots)
        slots._initialize()  # as loading does
        endpoints |= slots.endpoints()
    return {name: traced(*e, MAX_B) for name, e in endpoints.items()}


def start(signatures, batch_size):
    return dict(
        signatures["initial_memory"](batch_size=tf.constant(batch_size))
    )


def call(signatures, name, memory, **inputs):
    """The answer and the new memory."""
    inputs = {key: tf.constant(value) for key, value in inputs.items()}
    outputs = dict(signatures[name](**inputs, **memory))
    memory = {key: outputs.pop(key) for key in memory}
    (answer,) = outputs.values()
    return answer.numpy(), memory


def predict(signatures, ids, memory):
    """The log-probabilities after each token, and the new memory."""
    return call(signatures, "serving_default", memory, ids=ids)


def assert_close(found, expected, atol=1e-5):
    np.testing.assert_allclose(found, expected, atol=atol)


def write(signatures, prompts, length, memory, seed=0, **sampling):
    """What `generate` writes after prompts of any lengths."""
    prompt_ids = np.full((len(prompts), max(map(len, prompts))), -7, "int32")
    for row, prompt in zip(prompt_ids, prompts, strict=True):
        row[: len(prompt)] = prompt
    lengths = np.array([len(prompt) for prompt in prompts], "int32")
    return call(
        signatures,
        "generate",
        memory,
        prompt_ids=prompt_ids,
        prompt_length=lengths,
        length=length,
        **{**SAMPLING, "seed": seed, **sampling},
    )


@pytest.fixture(scope="module")
def loaded(path):
    return tf.saved_model.load(path)


@pytest.fixture
def served(loaded):
    signatures = loaded.signatures
    signatures["reset"](slots=tf.range(16))
    return signatures


# === Functional signatures ===


@pytest.mark.parametrize(
    "settings",
    [
        {"num_layers": 2},
        {
            "same_length": "pytorch",
            "tie_attention_biases": False,
            "cutoffs": (4, 7),
            "div_val": 2,
        },
        {"cold_start": "zeros", "normalize_first": True},
        {"attention_type": "shaw", "max_positions": 9, "cold_start": "zeros"},
        {"attention_type": "vaswani", "memory_length": 0},
        {"attention_type": "al_rfou", "memory_length": 0, "max_positions": 30},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_answers_are_those_of_the_model(make_model, settings):
    # Two blocks show how they share a memory, one what a setting does.
    model = make_model(**settings)
    served = signatures_of(model, settings.get("memory_length", M))
    memory, expected_memory = start(served, 3), None
    # Shorter than memory, longer, of one token when memory is full.
    for length in (4, 9, 1):
        ids = random_ids(3, length, seed=length)
        answer, memory = predict(served, ids, memory)
        expected, expected_memory = model.log_probs(ids, expected_memory)
        assert_close(answer, expected)
        assert memory["valid_length"].dtype == tf.int32
        np.testing.assert_array_equal(
            memory["valid_length"], expected_memory.valid_length
        )


def test_a_saved_model_answers_as_the_model(model, served):
    memory, expected_memory = start(served, 3), None
    for length in (4, 9):
        ids, targets = random_ids(3, length, seed=1), random_ids(3, length)
        inputs = {"ids": ids, "targets": targets}
        log_probs, _ = predict(served, ids, memory)
        expected, _ = model.log_probs(ids, expected_memory)
        assert_close(log_probs, expected)
        hidden, _ = call(served, "hidden_states", memory, ids=ids)
        expected, _ = model.backbone(ids, memory=expected_memory)
        assert_close(hidden, expected)
        nll, memory = call(served, "score", memory, **inputs)
        expected, expected_memory = model.score(ids, targets, expected_memory)
        assert_close(nll, expected)


# === Generation ===


def test_the_generator_writes_the_same(model, served):
    # Variables, so that the generator is compiled once.
    variables = {name: tf.Variable(x) for name, x in NO_EFFECT.items()}
    sampler = Sampler(**variables)
    # Longer than memory, of one token, between.
    prompts = [[3, 1, 4, 1, 5, 9, 2], [6], [5, 3]]
    for sampling in (
        GREEDY,
        {},
        {"temperature": 0.7, "top_k": 3},
        {"top_p": 0.8, "repetition_penalty": 1.5},
    ):
        for name, value in {**NO_EFFECT, **sampling}.items():
            variables[name].assign(value)
        found, _ = write(served, prompts, 15, start(served, 3), 8, **sampling)
        expected = model.generate(
            prompts,
            max_new_tokens=15,
            sampler=sampler,
            seed=8,
            strip_prompt=True,
        )
        np.testing.assert_array_equal(found, expected)


def test_a_prompt_may_be_much_longer_than_a_segment(served):
    prompts = [random_ids(50), random_ids(7, seed=1)]
    written, last = write(served, prompts, 4, start(served, 2), temperature=0.0)
    # The long one by segments of 20, the rest of it is a prompt.
    memory = start(served, 1)
    for segment in (slice(0, 20), slice(20, 40)):
        _, memory = predict(served, prompts[0][None, segment], memory)
    for row, (rest, past) in enumerate(
        [(prompts[0][40:], memory), (prompts[1], start(served, 1))]
    ):
        alone, end = write(served, [rest], 4, past, temperature=0.0)
        np.testing.assert_array_equal(written[row], alone[0])
        assert_close(last["memory"][row], end["memory"][0])


def test_writing_goes_on_from_the_last_token(served):
    whole, _ = write(served, [[3, 1]], 9, start(served, 1), **GREEDY)
    first, memory = write(served, [[3, 1]], 4, start(served, 1), **GREEDY)
    none, same = write(served, first[:, -1:], 0, memory, **GREEDY)
    assert none.shape == (1, 0)
    np.testing.assert_array_equal(same["memory"], memory["memory"])
    rest, _ = write(served, first[:, -1:], 5, memory, **GREEDY)
    np.testing.assert_array_equal(np.concatenate([first, rest], 1), whole)


def test_inputs_are_left_as_they_are(served):
    _, memory = predict(served, random_ids(2, 5), start(served, 2))
    before = memory["memory"].numpy().copy()
    write(served, [[1], [2]], 9, memory)
    np.testing.assert_array_equal(memory["memory"], before)


# === Slots ===


def step(signatures, ids, slots):
    return signatures["step"](
        ids=tf.constant(ids), slots=tf.constant(slots, tf.int32)
    )["log_probs"].numpy()


# Far apart, and with one between them that is read in vain for one token.
@pytest.mark.parametrize("clients", [([5, 0, 15], [7, 1]), ([6, 3, 5], [4])])
def test_slots_remember_as_clients_do(served, clients):
    served["reset"](slots=tf.range(16))
    memories = [start(served, len(slots)) for slots in clients]
    for length in (4, 1, 9, 2, 1, 6):
        for i, slots in enumerate(clients):
            ids = random_ids(len(slots), length, seed=length)
            expected, memories[i] = predict(served, ids, memories[i])
            assert_close(step(served, ids, slots), expected[:, -1])


def test_a_reset_slot_begins_anew(make_model):
    model = make_model(num_layers=2, cold_start="zeros", normalize_first=True)
    signatures = signatures_of(model, num_slots=3)
    ids = random_ids(2, 4)
    expected = model.log_probs(ids)[0][:, -1]
    assert_close(step(signatures, ids, [0, 2]), expected)
    later = step(signatures, ids, [0, 2])
    slots = signatures["reset"](slots=tf.constant([2]))["slots"]
    np.testing.assert_array_equal(slots, [2])
    assert_close(step(signatures, ids[1:], [2]), expected[1:])
    assert np.abs(step(signatures, ids[:1], [0]) - later[0]).max() > 1e-4


def test_calls_inside_of_a_function_happen_in_order(served):
    ids = random_ids(2, 9)
    slots = tf.constant([12, 3])
    step(served, random_ids(2, 5, seed=1), slots)

    @tf.function
    def read(ids):
        served["reset"](slots=slots)
        for i in tf.range(8):  # whose answers are ignored
            served["step"](ids=ids[:, i : i + 1], slots=slots)
        return served["step"](ids=ids[:, 8:], slots=slots)["log_probs"]

    memory = start(served, 2)
    for i in range(9):
        expected, memory = predict(served, ids[:, i : i + 1], memory)
    assert_close(read(ids), expected[:, 0])


def test_each_loaded_model_has_slots_of_its_own(path, served):
    files = tf.io.gfile.glob(path + "/variables/*")
    size = sum(tf.io.gfile.stat(file).length for file in files)
    assert size < 16 * L * 2 * N * M * H * 4  # it has no slots
    ids = random_ids(1, 4)
    first = step(served, ids, [0])
    other = tf.saved_model.load(path)
    assert_close(step(other.signatures, ids, [0]), first, 1e-6)


# === Where there is no txl_keras, no Keras, or no Python ===

ONLY_TENSORFLOW = """
import sys
sys.modules["keras"] = sys.modules["txl_keras"] = None
sys.modules["jax"] = None  # TensorFlow Lite would import it for a second
import numpy as np
import tensorflow as tf
path, segments_path, outputs_path = sys.argv[1:]
loaded = tf.saved_model.load(path)
call = loaded.signatures
assert set(call) == {
    "serving_default", "initial_memory", "score", "hidden_states", "generate",
    "step", "reset"}, set(call)
slots = tf.constant([2, 7])
call["reset"](slots=slots)
memory, outputs = call["initial_memory"](batch_size=tf.constant(2)), []
for ids in np.load(segments_path):
    memory = call["serving_default"](ids=tf.constant(ids), **memory)
    outputs.append(memory.pop("log_probs"))
    last = call["step"](ids=tf.constant(ids), slots=slots)["log_probs"]
    np.testing.assert_allclose(last, outputs[-1][:, -1], atol=1e-5)
# A method has defaults and takes numbers, a signature neither.
written = loaded.generate(ids, [4, 4], **memory, length=6)
np.savez(outputs_path, log_probs=outputs, written=written["ids"])
"""


def test_tensorflow_alone_runs_the_signatures(path, served, tmp_path):
    segments, memory = random_ids(3, 2, 4), start(served, 2)
    np.save(tmp_path / "segments.npy", segments)
    files = tmp_path / "segments.npy", tmp_path / "outputs.npz"
    done = run_code(ONLY_TENSORFLOW, path, *files)
    assert done.returncode == 0, done.stderr
    outputs = np.load(tmp_path / "outputs.npz")
    for ids, found in zip(segments, outputs["log_probs"], strict=True):
        expected, memory = predict(served, ids, memory)
        assert_close(found, expected)
    expected, _ = write(served, segments[-1], 6, memory)
    np.testing.assert_array_equal(outputs["written"], expected)


def test_a_server_has_defaults_and_keeps_memory_in_slots(path, served):
    """By a session, as a server does, which knows nothing of Python."""
    segments, slots, answers = random_ids(3, 2, 4), [3, 1], []
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        saved = tf.compat.v1.saved_model.load(session, ["serve"], path)

        def answer(name, **inputs):
            signature = saved.signature_def[name]
            return session.run(
                {key: info.name for key, info in signature.outputs.items()},
                {signature.inputs[key].name: inputs[key] for key in inputs},
            )

        for ids in segments:
            answers.append(answer("step", ids=ids, slots=slots)["log_probs"])
        # Sampling parameters are left out.
        written = answer(
            "generate",
            **answer("initial_memory", batch_size=1),
            prompt_ids=[[3, 1]],
            prompt_length=[2],
            length=8,
        )["ids"]
    memory = start(served, 2)
    for ids, found in zip(segments, answers, strict=True):
        expected, memory = predict(served, ids, memory)
        assert_close(found, expected[:, -1])
    expected, _ = write(served, [[3, 1]], 8, start(served, 1))
    np.testing.assert_array_equal(written, expected)


# === Threads ===


def test_16_threads_get_what_one_gets(served):
    texts = random_ids(16, 40)

    def read(row):
        """Answers to one text, in segments of all lengths."""
        lengths = (3, 1, 7, 1, 5, 2, 8, 1, 1, 6)
        parts = np.split(texts[row, None], np.cumsum(lengths)[:-1], axis=1)
        return [step(served, ids, [row])[0] for ids in parts]

    expected = [read(row) for row in range(16)]
    for _ in range(3):
        served["reset"](slots=tf.range(16))
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(read, range(16)))
        assert_close(answers, expected, 1e-6)


# === Bad input ===

IDS = np.array([[3, 1]], "int32")


def memory_with(number):
    memory = np.zeros((1, L, 2, N, M, H), "float32")
    memory[0, 0, 1, 2, 4, 3] = number
    return memory


BAD_MEMORY = [
    ({"memory": np.zeros((1, L, 2, N, M + 1, H), "f")}, "`memory` must have"),
    ({"memory": np.zeros((2, L, 2, N, M, H), "f")}, "`memory` must have"),
    ({"memory": memory_with(np.nan)}, "`memory` must be finite"),
    ({"valid_length": [M + 1]}, "`valid_length` must hold integers"),
    ({"valid_length": [1, 1]}, "`valid_length` must have the shape"),
]
BAD_SEGMENTS = [
    *BAD_MEMORY,
    ({"ids": [[3, V]]}, "`ids` must hold integers"),
    ({"ids": [[-1, 3]]}, "`ids` must hold integers"),
    ({"ids": np.zeros((1, 0), "int32")}, "`ids` must have the shape"),
    ({"ids": [[1] * (MAX_T + 1)]}, "T from 1 to 20"),
]
BAD_TARGETS = [
    ({"targets": [[3, V]]}, "`targets` must hold integers"),
    ({"targets": [[3]]}, "`targets` must have the shape"),
    ({"ids": IDS[:, :1]}, "`targets` must have the shape"),
]
BAD_PROMPTS = [
    *BAD_MEMORY,
    ({"prompt_ids": np.zeros((1, 0), "int32")}, "`prompt_ids` must have"),
    ({"prompt_ids": [[3, V]]}, "`prompt_ids` must hold integers"),
    ({"prompt_length": [0]}, "`prompt_length` must hold integers"),
    ({"prompt_length": [3]}, "`prompt_length` must hold integers"),
    ({"prompt_length": [1, 1]}, "`prompt_length` must have the shape"),
    # Of numbers so large that the model gives NaN.
    (
        {
            "memory": np.full((1, L, 2, N, M, H), 3e38, "f"),
            "valid_length": [M],
        },
        "A token cannot be drawn, because the model returned NaN",
    ),
    ({"length": -1}, "`length` must .*, 16"),
    ({"length": MAX_W + 1}, "`length` must .*, 16"),
    ({"top_p": 0.0}, "`top_p`"),
    ({"top_k": -1}, "`top_k`"),
    ({"temperature": -0.5}, "`temperature`"),
    ({"repetition_penalty": 0.5}, "`repetition_penalty`"),
]
BAD_INPUTS = {
    "serving_default": BAD_SEGMENTS,
    "initial_memory": [
        ({"batch_size": -1}, "`batch_size` must .*, 17"),
        ({"batch_size": 2**31 - 1}, "`batch_size` must .*, 17"),
    ],
    "score": BAD_SEGMENTS + BAD_TARGETS,
    "hidden_states": BAD_SEGMENTS,
    "generate": BAD_PROMPTS,
    "step": [],  # see `test_a_refused_step_changes_no_slot`
    "reset": [({"slots": s}, "`slots`") for s in ([16], [-1], [2, 2])],
}


def good_inputs(served, name, rows=1):
    """Inputs that a signature takes."""
    ids = tf.tile(IDS, [rows, 1])
    every = {
        "ids": ids,
        "targets": ids,
        "prompt_ids": ids,
        "prompt_length": tf.fill([rows], 2),
        "slots": tf.range(rows),
        "batch_size": tf.constant(rows),
        "length": tf.constant(3),
        **{key: tf.constant(value) for key, value in SAMPLING.items()},
        "memory": tf.zeros((rows, L, 2, N, M, H)),
        "valid_length": tf.zeros(rows, tf.int32),
    }
    names = served[name].structured_input_signature[1]
    return {key: every[key] for key in names}


# One test a signature: TensorFlow takes seconds for the first call of each.
@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_inputs_are_refused_by_their_names(served, name):
    good = good_inputs(served, name)
    served[name](**good)
    for inputs, message in BAD_INPUTS[name]:
        inputs = {key: tf.constant(value) for key, value in inputs.items()}
        if "ids" in inputs and "targets" in good and "targets" not in message:
            inputs["targets"] = tf.zeros_like(inputs["ids"])
        with pytest.raises(InvalidArgumentError, match=message):
            served[name](**{**good, **inputs})
    # Another rank.
    for key, value in good.items():
        for other in (value[None], tf.reshape(value, [-1])[0]):
            if other.shape.rank != value.shape.rank:
                message = f"`{key}` must be a tensor of rank {value.shape.rank}"
                with pytest.raises(InvalidArgumentError, match=message):
                    served[name](**{**good, key: other})
    # Too many rows.
    served[name](**good_inputs(served, name, MAX_B))
    message = f"` must have at most {MAX_B} rows"
    if name == "initial_memory":
        message = f"`batch_size` must .*, {MAX_B + 1}"
    with pytest.raises(InvalidArgumentError, match=message):
        served[name](**good_inputs(served, name, MAX_B + 1))


@pytest.mark.parametrize(
    ("ids", "slots", "message"),
    [
        ([[1], [2]], [3, 16], "`slots` must hold integers"),
        ([[1], [2]], [-1, 3], "`slots` must hold integers"),
        ([[1], [2]], [3, 3], "`slots` must not contain a number twice"),
        ([[1], [2]], [3], "`slots` must have the shape"),
        ([[1], [V]], [3, 4], "`ids` must hold integers"),
        ([[1] * (MAX_T + 1)], [3], "T from 1 to 20"),
    ],
)
def test_a_refused_step_changes_no_slot(served, ids, slots, message):
    ids = np.array(ids, "int32")
    kept = step(served, [[5, 6, 7], [8, 9, 1]], [3, 4])
    with pytest.raises(InvalidArgumentError, match=message):
        step(served, ids, slots)
    expected = step(served, [[2], [2]], [3, 4])
    served["reset"](slots=tf.constant([3, 4]))
    again = step(served, [[5, 6, 7], [8, 9, 1]], [3, 4])
    assert_close(again, kept, 1e-6)
    again = step(served, [[2], [2]], [3, 4])
    assert_close(again, expected, 1e-6)


# === Files ===


@pytest.mark.large
def test_models_that_compute_in_bfloat16_are_written_too(make_model):
    model = make_model(dtype="mixed_bfloat16")
    signatures = signatures_of(model, num_slots=2)
    memory, expected_memory = start(signatures, 2), None
    for seed in range(3):
        ids = random_ids(2, 4, seed=seed)
        answer, memory = predict(signatures, ids, memory)
        expected, expected_memory = model.log_probs(ids, expected_memory)
        assert memory["memory"].dtype == tf.float32
        assert_close(answer, expected, 0.1)
        found = step(signatures, ids, [0, 1])
        assert_close(found, answer[:, -1])
    write(signatures, [[1], [2, 3]], 3, memory)


@pytest.mark.large
def test_an_older_savedmodel_is_replaced_in_any_file_system(
    model, tmp_path, monkeypatch
):
    path, gfile = "ram://models/tiny/1", tf.io.gfile

    def read(name):
        with gfile.GFile(f"{path}/{name}") as file:
            return file.read()

    def put(name, text):
        with gfile.GFile(f"{path}/{name}", "w") as file:
            file.write(text)

    gfile.makedirs(f"{path}/assets")
    for name in ("notes.txt", "saved_model.pb"):
        put(name, "of another program")
        with pytest.raises(ValueError, match="path="):
            export(model, path)
    put("assets/settings.json", "{}")
    # Whatever goes wrong, the older one stays.
    with monkeypatch.context() as patch:
        patch.setattr(gfile, "copy", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            export(model, path, num_slots=0, assets={"a": __file__})
    for name in ("../a", "settings.json"):
        with pytest.raises(ValueError, match="`assets` must have file names"):
            export(model, path, num_slots=0, assets={name: __file__})
    assert read("saved_model.pb") == "of another program"
    (tmp_path / "tokens").write_text("abc")
    assets = {"tokens.json": str(tmp_path / "tokens")}
    export(model, path, num_slots=0, settings={"step": 7}, assets=assets)
    assert not gfile.exists(f"{path}/notes.txt")
    assert gfile.listdir("ram://models/tiny") == ["1"]
    settings = json.loads(read("assets/settings.json"))
    assert settings["step"] == 7
    assert settings["memory_shape"] == [L, 2, N, M, H]
    assert settings["max_batch_size"] == 128
    assert settings["max_generate_length"] == 4096
    assert TransformerXLCausalLM.from_config(settings["model"])
    assert read("assets/tokens.json") == "abc"
    signatures = tf.saved_model.load(path).signatures
    answer, _ = predict(signatures, IDS, start(signatures, 1))
    assert_close(answer, model.log_probs(IDS)[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_segment_length": 0}, "max_segment_length=0"),
        ({"max_segment_length": 10**9}, "at most 65536.*=1000000000"),
        ({"num_slots": -1}, "num_slots=-1"),
        ({"max_batch_size": 0}, "max_batch_size=0"),
        ({"max_generate_length": 2**31}, "max_generate_length=2147483648"),
        ({"path": ""}, "`path` must be a path"),
    ],
)
def test_arguments_that_cannot_be_are_refused(
    model, tmp_path, arguments, message
):
    with pytest.raises(ValueError, match=message):
        export(model, **{"path": str(tmp_path / "1"), **arguments})
    assert not list(tmp_path.iterdir())


def test_absolute_positions_have_a_longest_segment(make_model):
    model = make_model(
        attention_type="al_rfou", memory_length=0, max_positions=30
    )
    assert "generate" not in ServedModel(model).endpoints()
    with pytest.raises(ValueError, match="max_segment_length=31"):
        ServedModel(model, max_segment_length=31)
