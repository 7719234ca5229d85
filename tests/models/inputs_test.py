"""Tests of ids, memories and resets that models refuse."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from factories import V
from factories import random_ids
from factories import rows_of
from factories import small_backbone
from factories import small_model

from txl_keras.models import LSTMBackbone
from txl_keras.models import TransformerXLBackbone
from txl_keras.models import XLNetBackbone

B, T, D = 2, 5, 8
BACKBONES = {
    "transformer_xl": TransformerXLBackbone,
    "xlnet": XLNetBackbone,
    "lstm": LSTMBackbone,
}
every_kind = pytest.mark.parametrize("make", BACKBONES.values(), ids=BACKBONES)


@pytest.fixture(params=BACKBONES.values(), ids=BACKBONES, scope="module")
def backbone(request):
    """Backbone that tests share; none changes it."""
    return small_backbone(make=request.param, num_layers=2)


def test_a_memory_of_another_model_or_batch_is_an_error(backbone):
    ids = random_ids(B, T)
    _, memory = backbone(ids)
    states, one_row = memory.states, rows_of(memory, slice(1))
    for wrong, message in (
        *(
            (value, "`memory` must be a Memory")
            for value in (np.zeros((B, 7, D)), states, "memory", 7)
        ),
        (memory._replace(states=()), "`memory` must have [24] states"),
        (memory._replace(valid_length=None), "`memory.valid_length` must"),
        (backbone.initial_memory(B + 1), "`memory.states.0.` must have"),
        (one_row, "`memory.states.0.` must have.*initial_memory"),
        (memory._replace(states=states[:-1]), "`memory` must have [24] states"),
        (
            memory._replace(states=(*states, states[0])),
            "[24] states.*initial_memory",
        ),
        (
            memory._replace(states=(*states[:-1], states[-1][..., 1:])),
            "`memory.states.[13].` must have",
        ),
        (
            memory._replace(states=(*states[:-1], states[-1][:, 1:])),
            "`memory.states.[13].` must have",
        ),
        (
            memory._replace(valid_length=memory.valid_length[1:]),
            "`memory.valid_length` must have",
        ),
    ):
        for call in (backbone, tf.function(backbone)):
            with pytest.raises(ValueError, match=message):
                call(ids, memory=wrong)


def test_a_memory_of_other_numbers_is_an_error(backbone):
    ids = random_ids(B, T)
    memory = backbone(ids)[1]
    length = memory.length
    for wrong in ([length + 1] * B, [-1] * B, [1.0] * B, [True] * B):
        for given in (np.array(wrong), tf.constant(wrong)):
            with pytest.raises(ValueError, match="`memory.valid_length` must"):
                backbone(ids, memory=memory._replace(valid_length=given))
    states = list(memory.states)
    states[1] = tf.cast(states[1], tf.int32)
    with pytest.raises(ValueError, match="`memory.states.1.` must be of float"):
        backbone(ids, memory=memory._replace(states=tuple(states)))


def test_a_reset_of_another_shape_or_dtype_is_an_error(backbone):
    ids = random_ids(B, T)
    too_short = [[True] * (T - 1)] * B
    for wrong in ([True], [True] * (B + 1), [[True]] * B, True, too_short):
        with pytest.raises(ValueError, match="`reset` must have the shape"):
            backbone(ids, reset=np.array(wrong))
    for wrong in ([0.0, 1.0], [0, -1]):
        with pytest.raises(ValueError, match="`reset` must be boolean"):
            backbone(ids, reset=np.array(wrong))
    with pytest.raises(ValueError, match="`reset` must be a tensor or an arr"):
        backbone(ids, reset="reset")


def test_ids_are_a_matrix_of_integers_of_the_vocabulary(backbone):
    ids = random_ids(B, T)
    expected, _ = backbone(ids)[:2]
    for same in (ids.astype("int64"), ids.astype("uint8"), tf.constant(ids)):
        np.testing.assert_array_equal(backbone(same)[0], expected)
    for wrong in (ids[0], ids[0, 0], ids[..., None]):
        with pytest.raises(ValueError, match="`token_ids` must have the shape"):
            backbone(wrong)
    for wrong in (ids + 0.5, ids + 0j, ids > 3, ids * 1.0, ids.astype(str)):
        with pytest.raises(ValueError, match="`token_ids` must hold integers"):
            backbone(wrong)
    in_graph = tf.function(backbone)
    for wrong in (ids + V, -1 - ids, ids.astype("int64") + 2**40):
        with pytest.raises(ValueError, match="`token_ids` must hold integers"):
            backbone(wrong)
        with pytest.raises(tf.errors.InvalidArgumentError, match="`token_ids`"):
            in_graph(tf.constant(wrong))


def test_an_input_of_floats_is_refused_when_the_model_reads(backbone):
    floats = keras.Input((T,))  # the default dtype of Keras
    model = keras.Model(floats, backbone(floats)[0])
    with pytest.raises(ValueError, match="`keras.Input` of ids dtype='int32'"):
        model.predict(random_ids(B, T), verbose=0)


def test_targets_are_as_many_as_inputs():
    model = small_model(num_layers=1)
    ids = random_ids(4, T)
    for wrong in (ids[:, 1:], ids[:1], ids[0], ids[..., None]):
        with pytest.raises(ValueError, match="`targets` must have the shape"):
            model.score(ids, wrong)
    with pytest.raises(ValueError, match="`targets` must hold integers"):
        model.score(ids, ids * 1.0)
    sizes = tf.TensorSpec((None, None), tf.int32)
    score = tf.function(model.score, input_signature=(sizes, sizes))
    np.testing.assert_allclose(
        score(ids, ids)[0], model.score(ids, ids)[0], atol=1e-5
    )
    for wrong in (ids.T, ids.reshape(2, 2 * T), ids[:, 1:]):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="`targets` must have"
        ):
            score(ids, wrong)


@every_kind
def test_weights_of_another_precision_are_an_error(make):
    model = small_model(make=make)
    for dtype in ("float64", "float16"):
        for policy in (dtype, keras.DTypePolicy(dtype)):
            with pytest.raises(ValueError, match=f"`dtype` must .*'{dtype}'"):
                small_backbone(policy, make)
        with pytest.raises(ValueError, match="`dtype` must"):
            type(model)(model.backbone, dtype=dtype)
    with pytest.raises(ValueError, match="quantized policy.*quantize.'int8'"):
        small_backbone("int8_from_float32", make)
    for dtype in ("mixed_bfloat16", "mixed_float16"):
        assert small_backbone(dtype, make).variable_dtype == "float32"


def test_export_by_keras_is_refused(tmp_path):
    with pytest.raises(NotImplementedError, match="txl_keras.serving.export"):
        small_model().export(tmp_path / "model")
    assert not (tmp_path / "model").exists()
