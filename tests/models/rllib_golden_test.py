"""Compares a GTrXL backbone with outputs of RLlib's, weight by weight."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from checkpoints.stored_models import GOLDEN
from factories import assert_same
from factories import feature_backbone

from txl_keras.weights import weights_by_name

T = 4
# Names of RLlib's in front of ours. Its linear layers are `(out, in)`, and its
# `_qkv_layer` is split into three.
_ATTENTION = {
    "_layer._uvar": "attention/content_attention_bias",
    "_layer._vvar": "attention/positional_attention_bias",
    "_layer._pos_proj._model.0.weight": "attention/position/kernel",
    "_layer._linear_layer._model.0.weight": "attention/output/kernel",
    "_layer._input_layernorm.weight": "attention_norm/gamma",
    "_layer._input_layernorm.bias": "attention_norm/beta",
}
_FEED_FORWARD = {
    "_layer.0.weight": "feed_forward_norm/gamma",
    "_layer.0.bias": "feed_forward_norm/beta",
    "_layer.1._model.0.weight": "feed_forward_intermediate/kernel",
    "_layer.2._model.0.weight": "feed_forward_output/kernel",
}
_GATE = {
    "_w_r": "w_reset",
    "_u_r": "u_reset",
    "_w_z": "w_update",
    "_u_z": "u_update",
    "_w_h": "w_candidate",
    "_u_h": "u_candidate",
    "_bias_z": "gate_bias",
}


@pytest.fixture(scope="module")
def golden():
    return dict(np.load(GOLDEN / "gtrxl" / "golden.npz"))


def arrays_of(golden, kind):
    """Returns arrays of RLlib's by the names of our weights."""
    theirs = {
        name.removeprefix(f"{kind}/"): array.T
        if name.endswith("_model.0.weight")
        else array
        for name, array in golden.items()
        if name.startswith(f"{kind}/")
    }
    ours = {
        "kernel": theirs.pop("linear_layer._model.0.weight"),
        "bias": theirs.pop("linear_layer._model.0.bias"),
    }
    for i in range(sum(name.endswith("_uvar") for name in theirs)):
        pairs = (("attention", _ATTENTION), ("feed_forward", _FEED_FORWARD))
        for number, (part, names) in enumerate(pairs, 2 * i):
            layer = f"attention_layers.{number}"
            for name, weight in names.items():
                ours[f"block_{i}/{weight}"] = theirs.pop(f"{layer}.{name}")
            for name, weight in _GATE.items():
                ours[f"block_{i}/{part}_gate/{weight}"] = theirs.pop(
                    f"{layer}._fan_in_layer.{name}"
                )
        projections = theirs.pop(
            f"attention_layers.{2 * i}._layer._qkv_layer._model.0.weight"
        )
        for name, kernel in zip(
            ("query", "key", "value"),
            np.split(projections, 3, axis=1),
            strict=True,
        ):
            ours[f"block_{i}/attention/{name}/kernel"] = kernel
    assert not theirs
    return ours


@pytest.fixture(scope="module")
def models(golden):
    arrays = arrays_of(golden, "weight")
    projection = keras.layers.Dense(16)
    projection.build((None, None, 5))
    backbone = feature_backbone(
        normalize_first=True,
        gate="gru",
        tie_attention_biases=False,
        cold_start="zeros",
    )
    weights = weights_by_name(projection) | weights_by_name(backbone)
    for name, array in arrays.items():
        weights[name].assign(array.reshape(weights[name].shape))
    # RLlib's feed-forward networks have no biases; ours begin as zeros.
    assert len(weights) == len(arrays) + 2 * backbone.num_layers
    return projection, backbone


def segments_of(golden):
    features = golden["features"]
    return [features[:, i : i + T] for i in range(0, features.shape[1], T)]


def test_outputs_and_memory_equal_those_of_rllib(golden, models):
    projection, backbone = models
    memory, outputs = None, []
    for i, features in enumerate(segments_of(golden)):
        hidden, memory = backbone(
            embeddings=projection(features), memory=memory
        )
        outputs.append(hidden)
        assert_same(memory.states, golden[f"memory_{i}"], atol=2e-5)
    np.testing.assert_allclose(
        np.concatenate(outputs, axis=1), golden["output"], atol=2e-5
    )


def test_a_masked_start_equals_rllib_without_memory(golden, models):
    projection, backbone = models
    features = segments_of(golden)[0]
    hidden, _ = backbone(
        embeddings=projection(features),
        memory=backbone.initial_memory(len(features), 0),
    )
    np.testing.assert_allclose(
        hidden, golden["output_first_segment_without_memory"], atol=2e-5
    )


def test_gradients_equal_those_of_rllib(golden, models):
    projection, backbone = models
    *before, last = segments_of(golden)
    memory = None
    for features in before:
        _, memory = backbone(embeddings=projection(features), memory=memory)
    with tf.GradientTape() as tape:
        hidden, _ = backbone(embeddings=projection(last), memory=memory)
        loss = tf.reduce_mean(tf.square(hidden))
    found = tape.gradient(
        loss, weights_by_name(projection) | weights_by_name(backbone)
    )
    for name, gradient in arrays_of(golden, "gradient").items():
        np.testing.assert_allclose(
            found[name],
            gradient.reshape(found[name].shape),
            atol=2e-5,
            err_msg=name,
        )
