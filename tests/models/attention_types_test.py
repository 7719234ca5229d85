"""Models of every attention type, and models whose vocabulary is in clusters.

Of the types `relative` and `shaw` have a memory; `vaswani` and `al_rfou`
count positions inside of a segment.
"""

import math

import keras
import numpy as np
import pytest
from attention_loops import sinusoid
from factories import D
from factories import random_ids
from factories import small_backbone

from txl_keras.backend import tf
from txl_keras.layers import DecoderBlock
from txl_keras.models import TransformerXLCausalLM
from txl_keras.weights import weights_by_name

pytestmark = pytest.mark.every_backend

B, T, P = 4, 5, 13
REMEMBERING = ("relative", "shaw")
ABSOLUTE = ("vaswani", "al_rfou")
CUTOFFS = (3, 7)


def backbone_of(attention_type, **config):
    settings = {
        "max_positions": P if attention_type in ("shaw", "al_rfou") else None,
        "memory_length": 6 if attention_type in REMEMBERING else 0,
        **config,
    }
    return small_backbone(attention_type=attention_type, **settings)


def language_model(attention_type="relative", ties=None, **config):
    """With random weights, those that begin as zeros too."""
    backbone = backbone_of(attention_type, **config)
    model = TransformerXLCausalLM(backbone, **(ties or {}))
    rng = np.random.default_rng(4)
    for weight in model.softmax.weights:
        if not np.any(weight):
            weight.assign(rng.normal(size=weight.shape))
    return model


def text(length, rows=B):
    ids = random_ids(rows, length + 1, seed=8)
    return ids[:, :-1], ids[:, 1:]


@pytest.mark.parametrize("attention_type", ABSOLUTE)
def test_absolute_positions_refuse_memory(attention_type):
    message = f"{attention_type}.* must be 0. Received: memory_length=3"
    with pytest.raises(ValueError, match=message):
        backbone_of(attention_type, memory_length=3)
    backbone = backbone_of(attention_type)
    with pytest.raises(ValueError, match=message):
        backbone.initial_memory(B, memory_length=3)
    assert backbone.initial_memory(B).length == 0
    with pytest.raises(ValueError, match="Received: memory_length=3"):
        backbone.memory_stack(B, memory_length=3)
    memory = backbone_of("relative").initial_memory(B, 3)
    with pytest.raises(ValueError, match=f"{attention_type}.*Received: memory"):
        backbone(random_ids(B, T), memory=memory)
    with pytest.raises(ValueError, match=f"{attention_type}.*Received: memory"):
        language_model(attention_type).score(*text(T), memory=memory)


def block_without_positions(block):
    """A copy of a block, of the same weights but without a position table."""
    copy = DecoderBlock(2, 5, 12, attention_type="vaswani", name=block.name)
    copy.build((None, None, D))
    weights = {w.path.split(f"{block.name}/")[1]: w for w in block.weights}
    for weight in copy.weights:
        weight.assign(weights[weight.path.split(f"{block.name}/")[1]])
    return copy


@pytest.mark.parametrize("length", [1, T, P])
@pytest.mark.parametrize("attention_type", ABSOLUTE)
def test_positions_are_counted_from_the_end(attention_type, length):
    backbone = backbone_of(attention_type)
    ids = random_ids(B, length)
    # One block sees how the other type gets its positions.
    table = backbone.token_embedding.embeddings[0].numpy()
    x = table[ids] * math.sqrt(D)
    if attention_type == "vaswani":
        x = x + [sinusoid(length - 1 - t, D) for t in range(length)]
    for block in backbone.blocks:
        if attention_type == "al_rfou":
            rows = block.position_embeddings.numpy()
            assert rows.shape == (P, D) and rows.std() > 0.2
            x = x + rows[P - length :]
        x = block_without_positions(block)(x.astype("float32"))
        x = np.array(x)
    np.testing.assert_allclose(backbone(ids)[0], x, atol=2e-5)


@pytest.mark.tensorflow
@pytest.mark.parametrize("max_positions", [T, 2])
def test_a_segment_of_unknown_length_that_is_too_long_is_an_error(
    max_positions,
):
    backbone = backbone_of("al_rfou", max_positions=max_positions, num_layers=1)
    signature = [tf.TensorSpec((None, None), "int32")]
    run = tf.function(lambda ids: backbone(ids)[0], input_signature=signature)
    ids = random_ids(B, max_positions)
    np.testing.assert_allclose(run(ids), backbone(ids)[0], atol=1e-5)
    for length in (max_positions + 1, max_positions + 2, 3 * max_positions):
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
            run(random_ids(B, length))
        with pytest.raises(ValueError, match="`max_positions`, .*. Received"):
            backbone(random_ids(B, length))


def test_missing_positions_are_errors():
    for attention_type in ("shaw", "al_rfou"):
        for bad in (None, 0, 2.0):
            with pytest.raises(
                ValueError, match=f"integer of at .*max_positions={bad!r}"
            ):
                backbone_of(attention_type, max_positions=bad)


TIES = {
    "untied_tables": ({"div_val": 2}, {"tie_embeddings": False}),
    "untied": (
        {"embedding_dim": 10},
        {"tie_embeddings": False, "tie_projections": False},
    ),
    "all_but_first": ({"div_val": 2}, {"tie_projections": "all_but_first"}),
    "some": (
        {"div_val": 2, "project_same_dim": False},
        {"tie_projections": [True, False, True]},
    ),
}


@pytest.mark.parametrize("name", TIES)
def test_language_model_in_clusters(tmp_path, name):
    config, ties = TIES[name]
    model = language_model(ties=ties, num_layers=1, cutoffs=CUTOFFS, **config)
    inputs, _ = text(T)
    log_probs, _ = model.log_probs(inputs)
    np.testing.assert_allclose(model(inputs), log_probs, atol=1e-5)
    names = weights_by_name(model)
    assert len(names) == len(model.weights) == len({*map(id, names.values())})
    assert "softmax/cluster_kernel" in names
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.get_config() == model.get_config()
    assert weights_by_name(loaded).keys() == names.keys()
    np.testing.assert_allclose(loaded(inputs), log_probs, atol=1e-5)
    # What was tied is tied again.
    for one in (model, loaded):
        one.backbone.token_embedding.embeddings[1].assign_add(
            np.ones(one.backbone.token_embedding.embeddings[1].shape)
        )
    changed, _ = model.log_probs(inputs)
    assert np.abs(changed - log_probs).max() > 1e-2
    np.testing.assert_allclose(loaded.log_probs(inputs)[0], changed, atol=1e-5)
