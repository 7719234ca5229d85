"""Same-layer recurrence: memory of the outputs of blocks."""

import numpy as np
import pytest
import tensorflow as tf
from checkpoints.stored_models import GOLDEN
from checkpoints.stored_models import check_memory
from checkpoints.stored_models import load_tied
from checkpoints.stored_models import segments
from checkpoints.stored_models import stored_arrays
from checkpoints.stored_models import stored_config
from factories import random_ids
from factories import small_model
from model_checks import segment_nll

from txl_keras.evaluation import context_losses
from txl_keras.evaluation import warmup_segments
from txl_keras.extensions.same_layer import SameLayerBackbone
from txl_keras.models import SegmentReader
from txl_keras.models import TransformerXLCausalLM
from txl_keras.weights import weights_by_name


def golden_model(name, arrays):
    """The model of the golden numbers, from tensors of the original's names."""
    trained = load_tied(arrays, stored_config(name))
    backbone = SameLayerBackbone.from_config(trained.backbone.get_config())
    model = TransformerXLCausalLM(backbone)
    model.set_weights(trained.get_weights())
    return model


@pytest.mark.parametrize(
    "name", ["same_layer_recurrence", "same_layer_recurrence_prenorm"]
)
def test_scores_memory_and_gradients_equal_the_golden_ones(name):
    model = golden_model(name, stored_arrays(name))
    numbers = np.load(GOLDEN / name / "golden.npz")
    tokens = numbers["tokens"]
    memory = None
    reader = SegmentReader(model.backbone, tokens.shape[1], 6)
    reader.begin()
    for i, (inputs, targets) in enumerate(segments(tokens, 6)):
        expected = numbers["same_layer/nll"][i].T
        with tf.GradientTape() as tape:
            nll, memory = model.score(inputs, targets, memory)
            loss = tf.reduce_mean(nll)
        np.testing.assert_allclose(nll, expected, atol=2e-5)
        found = numbers[f"same_layer/memory_{i}"]
        assert len(found) == len(memory.states)
        check_memory(memory, found, atol=2e-5)
        hidden, entries = reader.read(inputs)
        reader.remember(entries)
        np.testing.assert_allclose(
            model.softmax(hidden, targets), expected, atol=2e-5
        )
    # Of the last segment.
    weights = weights_by_name(model)
    gradients = tape.gradient(loss, list(weights.values()))
    prefix = "gradient/"
    arrays = {
        key.removeprefix(prefix): numbers[key]
        for key in numbers
        if key.startswith(prefix)
    }
    expected = weights_by_name(golden_model(name, arrays))
    for key, gradient in zip(weights, gradients, strict=True):
        np.testing.assert_allclose(
            tf.convert_to_tensor(gradient), expected[key], atol=2e-5
        )


def test_context_losses_read_the_whole_context():
    model = small_model(num_layers=2, make=SameLayerBackbone)
    tokens = random_ids(60)
    found = context_losses(model, tokens, np.array([55]), [48], 6)
    expected = segment_nll(model, tokens[None, 7:], [6] * 8)[0, -1]
    np.testing.assert_allclose(found, [[expected]], atol=1e-5)
    with pytest.raises(ValueError, match="finite reach"):
        warmup_segments(model.backbone, 5)
