"""Starts other backends of Keras from TensorFlow's tests."""

import json
import os
import pathlib
import re
import subprocess
import sys

import keras
import numpy as np
import on_backend
import pytest
import train_elsewhere

from txl_keras.models import TransformerXLCausalLM

TESTS = pathlib.Path(__file__).parents[1]
BACKENDS = ["jax", pytest.param("torch", marks=pytest.mark.torch)]
# Half a minute on JAX, of the quarter of an hour of `KERAS_BACKEND=jax pytest`.
NUMBERS = {
    "checkpoints/golden_test.py": [
        "equals_the_original_tensorflow_code[enwik8_like]",
        "equals_the_original_tensorflow_code[wt103_large_like]",
        "scores_equal_the_stored_ones[original_pytorch_shaw]",
        "equals_hugging_face[hf_mixed_projections-5]",
    ],
    "checkpoints/hugging_face_xlnet_test.py": [
        "equals_hugging_face_with_all_masks_over_segments",
    ],
    "layers/memory_test.py": None,
    "layers/row_dropout_test.py": None,
    "models/fit_arrays_test.py": [
        "sample_weights_weight_the_loss",
        "a_saved_model_goes_on_training_as_it_would_have",
    ],
    "models/generate_test.py": [
        "each_row_of_a_batch_is_continued_as_if_alone",
        "a_penalty_spares_what_was_read_and_written",
    ],
}
OPTIONS = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-W", "ignore"]


def run(backend, *command):
    """Runs Python on a backend, and returns the finished process."""
    pytest.importorskip(backend)
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=TESTS.parent,
        env={
            **os.environ,
            "KERAS_BACKEND": backend,
            "JAX_PLATFORMS": "cpu",
            "OMP_NUM_THREADS": "1",  # PyTorch's wait for each other
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        text=True,
    )


def run_without_tensorflow(backend, program, *args):
    program = f"import sys; sys.modules['tensorflow'] = None; {program}"
    return run(backend, "-c", program, *args)


def test_tensorflow_is_imported_where_it_is_used(tmp_path):
    text = tmp_path / "mine.txt"
    text.write_text("to be or not to be\n" * 100)
    done = run_without_tensorflow(
        "jax",
        "from txl_keras import callbacks, data, layers, metrics;"
        "[getattr(data, name) for name in data.__all__];"
        "corpus = data.load_corpus(sys.argv[1]);"
        "tokenizer = data.prepare_tokenizer('words', corpus, sys.argv[2]);"
        "ids = data.prepare(corpus, tokenizer, sys.argv[2])['train'].tokens;"
        "segments = data.Segments(ids, 1, 6, drop_remainder=True);"
        "print(tokenizer.decode(segments.batch(0)['inputs'][0]));"
        "segments.dataset()",
        text,
        tmp_path,
    )
    assert done.stdout == "to be or not to be\n"
    assert done.stderr.splitlines()[-1] == (
        "ImportError: tensorflow is needed for `tf.nest`, but cannot be "
        "imported (import of tensorflow halted; None in sys.modules). Run "
        "`pip install tensorflow`."
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_are_those_of_tensorflow(backend):
    tests = [
        f"{TESTS / path}{name}"
        for path, names in NUMBERS.items()
        for name in ([f"::test_{x}" for x in names] if names else [""])
    ]
    done = run(backend, "-m", "pytest", *OPTIONS, *tests)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.parametrize("backend", BACKENDS)
def test_draws_and_gradients_equal_those_of_tensorflow(backend, tmp_path):
    path = tmp_path / "results.npz"
    done = run_without_tensorflow(
        backend,
        "import numpy, on_backend;"
        "numpy.savez(sys.argv[1], **on_backend.results())",
        path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found, expected = np.load(path), on_backend.results()
    assert len(expected) > 60
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(
            found[name], value, atol=2e-5, rtol=1e-5, err_msg=name
        )


def test_a_step_of_its_own_trains_on_jax():
    text = (TESTS.parent / "docs" / "backends.md").read_text("utf-8")
    (program,) = re.findall(r"```python\n(import jax\n.*?)```", text, re.DOTALL)
    done = run_without_tensorflow("jax", program)
    assert done.returncode == 0, done.stderr[-3000:]
    assert float(done.stdout) < 3  # of log(256) = 5.5


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_goes_on_training_on_another_backend(backend, tmp_path):
    done = run_without_tensorflow(
        backend,
        "import train_elsewhere; train_elsewhere.save(sys.argv[1])",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = np.load(tmp_path / "results.npz")
    model = keras.saving.load_model(tmp_path / "model.keras")
    preset = TransformerXLCausalLM.from_preset(tmp_path / "preset")
    for loaded in (model, preset):
        scores, _ = loaded.score(train_elsewhere.X, train_elsewhere.Y)
        np.testing.assert_allclose(scores, results["scores"], atol=1e-5)
    assert model.optimizer.iterations == results["iterations"]
    settings = model.get_compile_config()
    expected = json.loads((tmp_path / "compiled.json").read_text())
    for config in (settings, expected):  # classes of PyTorch are not Keras's
        del config["optimizer"]["registered_name"]
    assert settings == expected
    losses = train_elsewhere.fit(model)
    np.testing.assert_allclose(losses, results["losses"], rtol=1e-4)
