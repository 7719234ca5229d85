"""Padding anywhere in a segment: `mask` of shape (B, T)."""

import keras
import numpy as np
import pytest
from attention_loops import random
from factories import feature_backbone
from factories import random_ids
from factories import rows_of
from factories import small_backbone

from txl_keras.layers import AdaptiveSoftmax

B, T, M, D = 4, 9, 6, 16
# No padding; at the end; at the start and inside; nothing but padding.
MASK = np.ones((B, T), bool)
MASK[1, 5:] = False
MASK[2, [0, 1, 4, 7]] = False
MASK[3] = False


@pytest.fixture(params=["relative", "shaw", "same_length", "look_ahead"])
def backbone(request):
    settings = {
        "relative": {"num_layers": 2},
        "shaw": {"attention_type": "shaw", "max_positions": M + T},
        "same_length": {"same_length": True},
        "look_ahead": {"look_ahead": 2},
    }[request.param]
    return feature_backbone(**{"num_layers": 1, **settings})


def test_a_row_reads_as_if_there_were_no_padding(backbone):
    before, x, after = (random(B, T, D, seed=seed) for seed in range(3))
    _, memory = backbone(embeddings=before)
    x = np.where(MASK[..., None], x, 1e3)  # would be seen
    hidden, padded = backbone(embeddings=x, memory=memory, mask=MASK)
    later, _ = backbone(embeddings=after, memory=padded)
    for row, mask in enumerate(MASK):
        alone = rows_of(memory, slice(row, row + 1))
        if mask.any():
            expected, alone = backbone(
                embeddings=x[row : row + 1, mask], memory=alone
            )
            np.testing.assert_allclose(
                hidden[row][mask], expected[0], atol=1e-5
            )
        expected, _ = backbone(embeddings=after[row : row + 1], memory=alone)
        np.testing.assert_allclose(later[row], expected[0], atol=1e-5)


def test_an_episode_may_begin_at_padding():
    backbone = feature_backbone()
    x = random(B, T, D)
    reset = np.zeros((B, T), bool)
    reset[1, 6] = reset[2, 4] = True  # at padding: at the end, and inside
    _, before = backbone(embeddings=random(B, T, D, seed=1))
    hidden, memory = backbone(
        embeddings=x, memory=before, mask=MASK, reset=reset
    )
    # Nothing follows in row 1; in row 2 the steps 5, 6 and 8, alone.
    np.testing.assert_array_equal(memory.valid_length, [M, 0, 3, M])
    alone, _ = backbone(embeddings=x[2:3, [5, 6, 8]])
    found = hidden[2].numpy()[[5, 6, 8]]
    np.testing.assert_allclose(found, alone[0], atol=1e-5)


def test_the_loss_of_a_keras_model_leaves_out_padding():
    embeddings = keras.Input((T, D))
    mask = keras.Input((T,), dtype="bool")
    backbone = feature_backbone(num_layers=1)
    hidden, _ = backbone(embeddings=embeddings, mask=mask)
    model = keras.Model([embeddings, mask], hidden)
    model.compile(loss="mae")
    x = random(B, T, D)
    found = model.evaluate([x, MASK], np.zeros_like(x), batch_size=B, verbose=0)
    expected = np.abs(model([x, MASK])[MASK]).mean()
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_mask_of_keras_is_known_beside_other_arguments():
    backbone = feature_backbone()
    x = np.where(MASK[..., None], random(B, T, D), 0)
    masked = keras.layers.Masking()(x)
    memory, reset = backbone.initial_memory(B), np.zeros((B,), bool)
    for call in ({}, {"reset": reset}, {"memory": memory, "reset": reset}):
        hidden, after = backbone(embeddings=masked, **call)
        expected, real = backbone(embeddings=x, mask=MASK, **call)
        np.testing.assert_array_equal(after.valid_length, real.valid_length)
        np.testing.assert_array_equal(hidden, expected)
        np.testing.assert_array_equal(hidden._keras_mask, MASK)


def test_the_loss_of_an_adaptive_softmax_leaves_out_padding():
    backbone = small_backbone(num_layers=1)
    ids = keras.Input((T,), dtype="int32")
    mask = keras.Input((T,), dtype="bool")
    hidden, _ = backbone(ids, mask=mask)
    log_probs = AdaptiveSoftmax(backbone.token_embedding)(hidden)
    model = keras.Model([ids, mask], log_probs)
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    x, y = random_ids(B, T), random_ids(B, T, seed=1)
    found = model.evaluate([x, MASK], y, batch_size=B, verbose=0)
    nll = -np.take_along_axis(np.array(model([x, MASK])), y[..., None], -1)
    assert found == pytest.approx(nll[MASK].mean(), rel=1e-5)


def test_absolute_positions_and_masks_of_another_shape_are_refused():
    absolute = feature_backbone(attention_type="vaswani", memory_length=0)
    with pytest.raises(ValueError, match="must have relative positions"):
        absolute(embeddings=random(B, T, D), mask=MASK)
    with pytest.raises(ValueError, match="`mask`"):
        feature_backbone()(embeddings=random(B, T, D), mask=MASK[:, 1:])
