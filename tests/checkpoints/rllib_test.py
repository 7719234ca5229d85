"""Loads the weights of RLlib's GTrXL and compares with its outputs."""

import numpy as np
import pytest
import tensorflow as tf
from checkpoints.stored_models import GOLDEN

from txl_keras.checkpoints import load_rllib
from txl_keras.weights import weights_by_name

M, T = 6, 4


@pytest.fixture(scope="module")
def golden():
    return dict(np.load(GOLDEN / "gtrxl" / "golden.npz"))


def tensors_of(golden, kind="weight"):
    prefix = f"{kind}/"
    return {
        name.removeprefix(prefix): array
        for name, array in golden.items()
        if name.startswith(prefix)
    }


@pytest.fixture(scope="module")
def loaded(golden):
    return load_rllib(tensors_of(golden), memory_length=M)


def segments_of(golden):
    features = golden["features"]
    return [features[:, i : i + T] for i in range(0, features.shape[1], T)]


def test_outputs_and_memory_equal_those_of_rllib(golden, loaded):
    projection, backbone = loaded
    memory, outputs = None, []
    for i, features in enumerate(segments_of(golden)):
        hidden, memory = backbone(
            embeddings=projection(features), memory=memory
        )
        outputs.append(hidden)
        for state, expected in zip(
            memory.states, golden[f"memory_{i}"], strict=True
        ):
            np.testing.assert_allclose(state, expected, atol=2e-5)
    np.testing.assert_allclose(
        np.concatenate(outputs, axis=1), golden["output"], atol=2e-5
    )


def test_a_masked_start_equals_rllib_without_memory(golden, loaded):
    projection, backbone = loaded
    features = segments_of(golden)[0]
    hidden, _ = backbone(
        embeddings=projection(features),
        memory=backbone.initial_memory(len(features), 0),
    )
    np.testing.assert_allclose(
        hidden, golden["output_first_segment_without_memory"], atol=2e-5
    )


def test_gradients_equal_those_of_rllib(golden, loaded):
    projection, backbone = loaded
    *before, last = segments_of(golden)
    memory = None
    for features in before:
        _, memory = backbone(embeddings=projection(features), memory=memory)
    with tf.GradientTape() as tape:
        hidden, _ = backbone(embeddings=projection(last), memory=memory)
        loss = tf.reduce_mean(tf.square(hidden))
    found = tape.gradient(
        loss,
        {**weights_by_name(projection), **weights_by_name(backbone)},
    )
    expected = load_rllib(tensors_of(golden, "gradient"), memory_length=M)
    expected = {**weights_by_name(expected[0]), **weights_by_name(expected[1])}
    compared = 0
    for name, gradient in found.items():
        # RLlib's feed-forward networks have no biases.
        if not name.endswith(
            ("feed_forward_intermediate/bias", "feed_forward_output/bias")
        ):
            np.testing.assert_allclose(
                gradient, expected[name], atol=2e-5, err_msg=name
            )
            compared += 1
    assert compared == len(tensors_of(golden)) + 2 * 2  # q, k, v in one


def test_a_policy_has_other_tensors_and_a_prefix(golden, loaded):
    state = {f"gtrxl.{k}": v for k, v in tensors_of(golden).items()}
    state["_logits_branch._model.0.weight"] = np.ones((3, 16), np.float32)
    projection, backbone = load_rllib(state, memory_length=9)
    assert backbone.memory_length == 9
    for ours, theirs in zip((projection, backbone), loaded, strict=True):
        for a, b in zip(ours.weights, theirs.weights, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("attention_layers.1._fan_in_layer._w_r"), "missing"),
        (lambda s: s.update(linear=np.ones(2)) or s.pop(
            "linear_layer._model.0.weight"), "one GTrXLNet"),
        (lambda s: s.update({"attention_layers.9.x": np.ones(2)}), "numbers"),
        (lambda s: s.update(
            {"attention_layers.0._layer._vvar": np.ones((2, 7), "f4")}
        ), "wrong shape"),
    ],
)  # fmt: skip
def test_other_tensors_are_refused(golden, change, message):
    state = tensors_of(golden)
    change(state)
    with pytest.raises(ValueError, match=message):
        load_rllib(state, memory_length=M)


def test_what_holds_no_tensors_is_refused():
    with pytest.raises(ValueError, match="`state` must be the path"):
        load_rllib([1, 2], memory_length=M)
