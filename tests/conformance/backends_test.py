"""Layers compute the same on every backend of Keras."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import on_backend
import pytest

PROGRAM = pathlib.Path(on_backend.__file__)
# Compiling well would take half of the time.
QUICK = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_backend_optimization_level=0 "
    "--xla_llvm_disable_expensive_passes=true",
}


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_layers_equal_those_of_tensorflow(backend, tmp_path):
    pytest.importorskip(backend)
    path = tmp_path / "results.npz"
    done = subprocess.run(
        [sys.executable, PROGRAM, path],
        env={**os.environ, "KERAS_BACKEND": backend, **QUICK},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found, expected = np.load(path), on_backend.results()
    assert len(expected) > 60
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(
            found[name], value, atol=2e-5, rtol=1e-5, err_msg=name
        )
