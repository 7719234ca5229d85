"""Starts other backends of Keras from TensorFlow's tests.

`KERAS_BACKEND=jax pytest` runs all tests that can do without TensorFlow.
"""

import importlib.util
import json
import os
import subprocess
import sys

import keras
import numpy as np
import on_backend
import pytest

from txl_keras.models import TransformerXLCausalLM

BACKENDS = ["jax", pytest.param("torch", marks=pytest.mark.torch)]
PROGRAM = (
    "import sys; sys.modules['tensorflow'] = None;"
    "import on_backend; on_backend.save(sys.argv[1])"
)


@pytest.fixture(scope="module", params=BACKENDS)
def saved(request, tmp_path_factory):
    """Folder of what a process saves that has no TensorFlow."""
    backend = request.param
    if not importlib.util.find_spec(backend):
        pytest.skip(f"{backend} is not installed")
    folder = tmp_path_factory.mktemp(backend)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, folder],
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
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def test_draws_and_gradients_equal_those_of_tensorflow(saved):
    found, expected = np.load(saved / "results.npz"), on_backend.results()
    assert len(expected) > 60
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(
            found[name], value, atol=2e-5, rtol=1e-5, err_msg=name
        )


def test_a_model_goes_on_training_on_another_backend(saved):
    expected = np.load(saved / "model.npz")
    model = keras.saving.load_model(saved / "model.keras")
    preset = TransformerXLCausalLM.from_preset(saved / "preset")
    for loaded in (model, preset):
        scores = on_backend.scores(loaded)
        np.testing.assert_allclose(scores, expected["scores"], atol=1e-5)
    text = on_backend.continued(model)
    np.testing.assert_array_equal(text, expected["text"])
    assert model.optimizer.iterations == expected["iterations"]
    settings = model.get_compile_config()
    of_other = json.loads((saved / "compiled.json").read_text())
    for config in (settings, of_other):  # classes of PyTorch are not Keras's
        del config["optimizer"]["registered_name"]
    assert settings == of_other
    losses = on_backend.fit(model)
    np.testing.assert_allclose(losses, expected["losses"], rtol=1e-4)
