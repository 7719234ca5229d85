"""The kernel for TPUs, interpreted, against attention at once."""

import sys

import numpy as np
import pytest
import tensorflow as tf
from attention_loops import assert_alike
from attention_loops import output_and_gradients
from attention_loops import random
from attention_loops import with_random_weights
from factories import seed_weights
from factories import small_backbone

from txl_keras.data import Segments
from txl_keras.layers import RelativeMultiHeadAttention
from txl_keras.layers.compute.target import Target
from txl_keras.layers.compute.target import use
from txl_keras.models import TransformerXLCausalLM
from txl_keras.optimizers import build_optimizer
from txl_keras.tpu import pallas
from txl_keras.training import Trainer

jax = pytest.importorskip("jax")

B, N, H, D = 2, 3, 5, 12
# Segment and memory: tiles of 128 keys, and of 256.
LENGTHS = {"odd": (256, 128), "even": (256, 512), "one block": (128, 384)}


def make(dtype="float32", **settings):
    layer = RelativeMultiHeadAttention(N, H, dtype=dtype, **settings)
    return with_random_weights(layer, (B, None, D))


def compiled(layer, lengths, **arguments):
    query, memory = (
        tf.constant(random(B, length, D, seed=seed), layer.compute_dtype)
        for seed, length in enumerate(LENGTHS[lengths])
    )
    biases = ()
    if layer.tie_attention_biases:
        biases = tuple(tf.constant(random(N, H, seed=s)) for s in (5, 6))
        arguments["attention_biases"] = biases

    @tf.function(jit_compile=True)
    def compute():
        seeds = tf.constant([3, 4], tf.uint32)
        return output_and_gradients(
            layer, query, memory, biases, dropout_seed=seeds, **arguments
        )

    return [tf.cast(x, tf.float32).numpy() for x in compute()]


def in_kernel(layer, lengths, **arguments):
    with use(Target("cpu", attention=pallas)):
        return compiled(layer, lengths, **arguments)


@pytest.fixture(scope="module")
def exact():
    """Returns what attention at once gives of `make()`."""
    return compiled(make(), "odd")


@pytest.mark.parametrize(
    ("lengths", "settings"),
    [
        ("odd", {"same_length": "pytorch", "dropout": 0.3}),
        ("even", {"clamp_length": 150, "tie_attention_biases": True}),
        ("one block", {"same_length": True, "dropout": 0.3}),
    ],
)
def test_numbers_and_gradients_are_those_of_attention_at_once(
    lengths, settings
):
    layer = make(**settings)
    assert_alike(in_kernel(layer, lengths), compiled(layer, lengths))


def test_masks_shut_the_same_keys(exact):
    layer = make()
    # Each to the middle of a tile, and a row whose memory is empty.
    masks = {
        "memory_mask": np.arange(128) >= np.array([[30], [128]]),
        "query_mask": np.arange(256) < np.array([[256], [200]]),
    }
    found = in_kernel(layer, "odd", **masks)
    expected = compiled(layer, "odd", **masks)
    assert_alike(found, expected)
    assert np.abs(found[0] - exact[0]).max() > 0.1


def test_bfloat16_is_as_near_to_float32_as_attention_at_once(exact):
    errors = []
    for compute in (in_kernel, compiled):
        found = compute(make("mixed_bfloat16"), "odd")
        errors.append(
            max(
                np.abs(one - other).max() / np.abs(other).max()
                for one, other in zip(found, exact, strict=True)
            )
        )
    assert 1e-4 < errors[0] < 1.5 * errors[1] < 0.1


def make_trainer(attention="pallas", **overrides):
    seed_weights(0)
    config = {"memory_length": 128, "attention_dropout": 0.2, **overrides}
    model = TransformerXLCausalLM(
        small_backbone(vocabulary_size=7, num_layers=1, **config)
    )
    strategy = tf.distribute.get_strategy()
    optimizer = build_optimizer("adam", 0.03)
    return Trainer(model, optimizer, strategy, 3, attention=attention)


def test_a_kernel_changes_the_speed_alone(monkeypatch):
    used = []
    attend = pallas.attend
    monkeypatch.setattr(
        pallas, "attend", lambda problem: used.append(1) or attend(problem)
    )
    tokens = np.random.default_rng(0).integers(0, 7, 2000)
    segments = Segments(tokens, 3, 128, drop_remainder=True)
    results = []
    for attention in (None, "pallas"):
        trainer = make_trainer(attention)
        iterator = iter(segments.distribute(trainer.strategy))
        results.append(trainer.train(iterator, 4))
        assert len(used) == bool(attention)
    for name in ("loss", "gradient_norm"):
        expected, found = (result[name] for result in results)
        assert np.ptp(expected) > 1e-3
        np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"memory_length": 100}, "memory_length=100"),
        ({"attention_type": "shaw", "max_positions": 9}, "type=shaw"),
        ({"dtype": "mixed_float16"}, "float16"),
        ({"attention": "other"}, "attention.*pallas.*other"),
    ],
)
def test_a_model_without_a_kernel_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        make_trainer(**changes)


def test_jax_does_not_ask_for_the_tpu(monkeypatch):
    # As on a TPU's host, where it would: TensorFlow holds the TPU.
    jax.config.update("jax_platforms", None)
    monkeypatch.delitem(sys.modules, "txl_keras.tpu.pallas_kernels", False)
    from txl_keras.tpu.pallas_kernels import build_kernels

    shape = pallas.KernelShape(1, 1, 128, 128, 8, "float32")
    assert len(build_kernels(shape, "tpu")) == 2
    assert jax.config.jax_platforms == "cpu"
    assert {x.platform for x in jax.devices()} == {"cpu"}
