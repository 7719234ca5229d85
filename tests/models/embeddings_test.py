"""Embeddings instead of token ids: time series, audio, anything."""

import numpy as np
import pytest
from attention_loops import random
from factories import D
from factories import M
from factories import random_ids
from factories import small_backbone

from txl_keras.models import TransformerXLCausalLM
from txl_keras.models import TransformerXLTextClassifier

pytestmark = pytest.mark.every_backend

B, T = 2, 5


def plain_backbone(**config):
    """Without a vocabulary."""
    return small_backbone(vocabulary_size=None, num_layers=1, **config)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"attention_type": "vaswani", "memory_length": 0},
        {"cutoffs": (4,), "div_val": 2},
    ],
)
def test_scaled_token_embeddings_give_what_ids_give(config):
    backbone = small_backbone(**config)
    ids = random_ids(B, T)
    embeddings = backbone.token_embedding(ids) * D**0.5
    expected, expected_memory = backbone(ids)
    hidden, memory = backbone(embeddings=embeddings)
    np.testing.assert_allclose(hidden, expected, atol=1e-6)
    np.testing.assert_allclose(
        memory.states[-1], expected_memory.states[-1], atol=1e-6
    )


def test_a_stateful_backbone_goes_on_where_it_was():
    backbone = plain_backbone(memory_length=M, stateful=True)
    x = random(B, 2 * T, D)
    _, memory = backbone(embeddings=x[:, :T], memory=backbone.initial_memory(B))
    expected, after = backbone(embeddings=x[:, T:], memory=memory)
    backbone(embeddings=x[:, :T])
    backbone(embeddings=x[:, :T], training=True)  # has its own memory
    hidden, same = backbone(embeddings=x[:, T:])
    np.testing.assert_allclose(hidden, expected, atol=1e-5)
    np.testing.assert_allclose(same.states[0], after.states[0], atol=1e-5)
    # Row 1 begins anew, row 0 goes on.
    reset = np.array([False, True])
    hidden, _ = backbone(embeddings=x[:, :T], reset=reset)
    fresh, _ = backbone(embeddings=x[:, :T], memory=backbone.initial_memory(B))
    np.testing.assert_allclose(hidden[1], fresh[1], atol=1e-5)
    assert np.abs(hidden[0] - fresh[0]).max() > 0.01


@pytest.mark.parametrize(
    "arguments,message",
    [
        ({}, "`token_ids` or `embeddings` must be passed"),
        (
            {"token_ids": random_ids(B, T), "embeddings": random(B, T, D)},
            "and not both",
        ),
        ({"embeddings": random(T, D)}, "`embeddings` must have the shape"),
        (
            {"embeddings": random(B, T, D)[..., 1:]},
            r"`embeddings` must have the shape \(None, None, 8\)",
        ),
        (
            {"embeddings": random(B, T, D).astype("int32")},
            "`embeddings` must be floats",
        ),
        ({"token_ids": random(B, T, D)}, "`token_ids` must have the shape"),
    ],
)
def test_wrong_inputs_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        small_backbone(num_layers=1)(**arguments)


def test_ids_need_a_vocabulary():
    with pytest.raises(ValueError, match="`embeddings` must be passed to a"):
        plain_backbone()(random_ids(B, T))
    with pytest.raises(ValueError, match="`vocabulary_size` must be given"):
        plain_backbone(cutoffs=(3,))
    for backbone in (plain_backbone(), small_backbone(stateful=True)):
        for make in (
            TransformerXLCausalLM,
            lambda backbone: TransformerXLTextClassifier(backbone, 2),
        ):
            with pytest.raises(ValueError, match="`backbone` must have a `voc"):
                make(backbone)
