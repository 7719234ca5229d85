"""Gates of GTrXL, blocks and backbones with them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from checkpoints.stored_models import GOLDEN
from factories import assert_same
from factories import feature_backbone

from txl_keras.extensions.gtrxl import GATES
from txl_keras.extensions.gtrxl import Gate
from txl_keras.extensions.gtrxl import GTrXLBackbone
from txl_keras.optimizers import Muon
from txl_keras.weights import weights_by_name

D = 8


@pytest.fixture(scope="module")
def golden():
    return dict(np.load(GOLDEN / "gtrxl_gates" / "golden.npz"))


def gate_of(golden, kind):
    """The gate of the golden numbers."""
    gate = Gate(kind, dtype="float64")
    gate.build((None, None, D), (None, None, D))
    for name, weight in weights_by_name(gate).items():
        letter, _, part = name.removesuffix("/kernel").partition("_")
        part = {"reset": "r", "update": "z"}.get(part, "g")
        key = "bias" if name == "gate_bias" else f"{letter}_{part}"
        weight.assign(golden[key])
    return gate


@pytest.mark.parametrize("kind", GATES)
def test_outputs_equal_the_golden_ones(kind, golden):
    found = gate_of(golden, kind)(golden["x"], golden["y"])
    np.testing.assert_allclose(found, golden[f"gate/{kind}"], rtol=1e-12)


@pytest.mark.parametrize("kind", GATES)
def test_a_block_has_a_gate_for_each_sum_biased_as_in_the_paper(kind):
    backbone = feature_backbone(GTrXLBackbone, num_layers=1, gate=kind)
    assert np.isfinite(backbone(embeddings=np.ones((2, 5, 16)))[0]).all()
    found = weights_by_name(backbone)
    for part in ("attention", "feed_forward") if kind != "input" else ():
        bias = found[f"block_0/{part}_gate/gate_bias"]
        np.testing.assert_array_equal(bias, 2.0 if kind == "gru" else 1.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"normalize_first": False}, "`normalize_first` must be True"),
        ({"gate": "lstm"}, "`gate` must be one of"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        feature_backbone(GTrXLBackbone, **settings)


def test_muon_takes_the_kernels_for_matrices():
    backbone = feature_backbone(GTrXLBackbone, num_layers=1)
    optimizer = Muon(0.1)
    names = {
        weight.path.split("_gate/")[1]
        for weight in backbone.trainable_variables
        if "_gate/" in weight.path and optimizer.is_matrix(weight)
    }
    assert names == {
        f"{matrix}_{use}/kernel"
        for matrix in "wu"
        for use in ("reset", "update", "candidate")
    }


# === RLlib, weight by weight ===

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
    "_w_r": "w_reset/kernel",
    "_u_r": "u_reset/kernel",
    "_w_z": "w_update/kernel",
    "_u_z": "u_update/kernel",
    "_w_h": "w_candidate/kernel",
    "_u_h": "u_candidate/kernel",
    "_bias_z": "gate_bias",
}


@pytest.fixture(scope="module")
def rllib():
    return dict(np.load(GOLDEN / "gtrxl" / "golden.npz"))


def arrays_of(rllib, kind):
    """Returns arrays of RLlib's by the names of our weights."""
    theirs = {
        name.removeprefix(f"{kind}/"): array.T
        if name.endswith("_model.0.weight")
        else array
        for name, array in rllib.items()
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
def models(rllib):
    arrays = arrays_of(rllib, "weight")
    projection = keras.layers.Dense(16)
    projection.build((None, None, 5))
    backbone = feature_backbone(
        GTrXLBackbone, tie_attention_biases=False, cold_start="zeros"
    )
    weights = weights_by_name(projection) | weights_by_name(backbone)
    for name, array in arrays.items():
        weights[name].assign(array.reshape(weights[name].shape))
    # RLlib's feed-forward networks have no biases; ours begin as zeros.
    assert len(weights) == len(arrays) + 2 * backbone.num_layers
    return projection, backbone


def segments_of(rllib):
    features = rllib["features"]
    return [features[:, i : i + 4] for i in range(0, features.shape[1], 4)]


def test_outputs_memory_and_gradients_equal_those_of_rllib(rllib, models):
    projection, backbone = models
    memory, outputs = None, []
    for i, features in enumerate(segments_of(rllib)):
        with tf.GradientTape() as tape:
            hidden, memory = backbone(
                embeddings=projection(features), memory=memory
            )
            loss = tf.reduce_mean(tf.square(hidden))
        outputs.append(hidden)
        assert_same(memory.states, rllib[f"memory_{i}"], atol=2e-5)
    np.testing.assert_allclose(
        np.concatenate(outputs, axis=1), rllib["output"], atol=2e-5
    )
    # Gradients of the last segment.
    found = tape.gradient(
        loss, weights_by_name(projection) | weights_by_name(backbone)
    )
    for name, gradient in arrays_of(rllib, "gradient").items():
        np.testing.assert_allclose(
            found[name],
            gradient.reshape(found[name].shape),
            atol=2e-5,
            err_msg=name,
        )


def test_a_masked_start_equals_rllib_without_memory(rllib, models):
    projection, backbone = models
    features = segments_of(rllib)[0]
    hidden, _ = backbone(
        embeddings=projection(features),
        memory=backbone.initial_memory(len(features), 0),
    )
    np.testing.assert_allclose(
        hidden, rllib["output_first_segment_without_memory"], atol=2e-5
    )
