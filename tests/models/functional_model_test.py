"""A backbone in a model of Keras's functional API, as any other layer."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from factories import small_backbone

from txl_keras.models import LSTMBackbone


def on_ids():
    ids = keras.Input((8,), dtype="int32")
    return keras.Model(
        ids, keras.layers.Dense(2)(small_backbone(num_layers=1)(ids)[0])
    )


def on_embeddings():
    states = keras.Input((8, 16))
    backbone = small_backbone(vocabulary_size=None, num_layers=1, hidden_dim=16)
    return keras.Model(states, backbone(embeddings=states)[0])


def on_ids_of_lstm():
    ids = keras.Input((8,), dtype="int32")
    return keras.Model(
        ids, small_backbone(make=LSTMBackbone, num_layers=1)(ids)[0]
    )


@pytest.fixture(
    params=[on_ids, on_embeddings, on_ids_of_lstm],
    ids=lambda make: make.__name__,
)
def case(request):
    """A model, and a batch of its inputs."""
    model = request.param()
    if request.param is on_embeddings:
        inputs = np.random.default_rng(1).normal(size=(3, 8, 16))
        return model, inputs.astype("float32")
    return model, (np.arange(24).reshape(3, 8) % 11).astype("int32")


def test_it_is_saved_and_exported_in_all_ways_of_keras(case, tmp_path):
    model, inputs = case
    expected = model(inputs)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(inputs), expected)
    model.export(tmp_path / "saved", verbose=False)
    archive = keras.export.ExportArchive()
    archive.track(model)
    spec = tf.TensorSpec((None, *inputs.shape[1:]), inputs.dtype)
    archive.add_endpoint("serve", model.call, [spec])
    archive.write_out(tmp_path / "archive", verbose=False)
    for folder in ("saved", "archive"):
        loaded = tf.saved_model.load(tmp_path / folder)
        np.testing.assert_allclose(loaded.serve(inputs), expected, atol=1e-6)


def test_it_is_exported_to_litert(tmp_path):
    model, ids = on_ids(), (np.arange(8)[None] % 11).astype("int32")
    path = str(tmp_path / "model.tflite")
    # Fails if an operation is missing in LiteRT.
    model.export(path, format="litert", verbose=False)
    runner = tf.lite.Interpreter(path).get_signature_runner()
    (name,) = runner.get_input_details()
    (answer,) = runner(**{name: ids}).values()
    np.testing.assert_allclose(answer, model(ids), atol=1e-5)
