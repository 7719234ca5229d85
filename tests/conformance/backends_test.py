"""Layers compute the same on every backend of Keras."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import on_backend
import pytest

# Compiling well would take half of the time.
QUICK = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_backend_optimization_level=0 "
    "--xla_llvm_disable_expensive_passes=true",
}


def run(backend, program, *args):
    """Runs a program as if TensorFlow were not installed."""
    pytest.importorskip(backend)
    program = f"import sys; sys.modules['tensorflow'] = None; {program}"
    return subprocess.run(
        [sys.executable, "-c", program, *args],
        cwd=pathlib.Path(__file__).parent,
        env={**os.environ, "KERAS_BACKEND": backend, **QUICK},
        capture_output=True,
        text=True,
    )


def test_tensorflow_is_imported_where_it_is_used(tmp_path):
    text = tmp_path / "mine.txt"
    text.write_text("to be or not to be\n" * 100)
    done = run(
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


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_layers_equal_those_of_tensorflow(backend, tmp_path):
    path = tmp_path / "results.npz"
    done = run(
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
