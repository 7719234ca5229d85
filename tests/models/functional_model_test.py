"""A backbone in a model of Keras's functional API, as any other layer."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from factories import small_backbone

from txl_keras.models import LSTMBackbone
from txl_keras.models import TransformerXLBackbone
from txl_keras.models import TransformerXLTextClassifier

IDS = (np.arange(24).reshape(3, 8) % 11).astype("int32")


def model_of(make):
    ids = keras.Input((8,), dtype="int32")
    hidden, _ = small_backbone(make=make, num_layers=1)(ids)
    return keras.Model(ids, keras.layers.Dense(2)(hidden))


@pytest.mark.parametrize("make", [TransformerXLBackbone, LSTMBackbone])
def test_it_is_saved_and_exported(make, tmp_path):
    model = model_of(make)
    expected = model(IDS)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(IDS), expected)
    model.export(tmp_path / "saved", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "saved")
    np.testing.assert_allclose(loaded.serve(IDS), expected, atol=1e-6)


def test_a_classifier_is_exported_as_a_layer(tmp_path):
    backbone = small_backbone(num_layers=1)
    classifier = TransformerXLTextClassifier(backbone, 3, segment_length=4)
    ids = keras.Input((8,), dtype="int32")
    model = keras.Model(ids, classifier(ids))
    model.export(tmp_path / "saved", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "saved")
    np.testing.assert_allclose(loaded.serve(IDS), model(IDS), atol=1e-6)


def test_it_is_exported_to_litert(tmp_path):
    model, ids = model_of(TransformerXLBackbone), IDS[:1]
    path = str(tmp_path / "model.tflite")
    # Fails if an operation is missing in LiteRT.
    model.export(path, format="litert", verbose=False)
    runner = tf.lite.Interpreter(path).get_signature_runner()
    (name,) = runner.get_input_details()
    (answer,) = runner(**{name: ids}).values()
    np.testing.assert_allclose(answer, model(ids), atol=1e-5)
