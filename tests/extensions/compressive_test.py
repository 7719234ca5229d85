"""Compressive memory: two tiers, compression, reconstruction loss."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from checkpoints.stored_models import GOLDEN
from checkpoints.stored_models import stored_config
from factories import assert_same
from factories import random_ids
from factories import seed_weights
from factories import small_backbone
from factories import small_model

from txl_keras.data import Segments
from txl_keras.extensions.compressive import COMPRESSIONS
from txl_keras.extensions.compressive import Compression
from txl_keras.extensions.compressive import CompressiveBackbone
from txl_keras.extensions.compressive import CompressiveMemory
from txl_keras.extensions.compressive import extend_compressed
from txl_keras.extensions.compressive import reconstruction_loss
from txl_keras.layers import DecoderBlock
from txl_keras.layers.memory import initial_memory
from txl_keras.models import SegmentReader
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models import TransformerXLTextClassifier
from txl_keras.samplers import Sampler
from txl_keras.training import Trainer

C = 4
# With one block, where no second one is needed: each costs as much again.
CONV = {
    "make": CompressiveBackbone,
    "compression_rate": 3,
    "compressed_length": C,
    "num_layers": 1,
}


def golden(name):
    return np.load(GOLDEN / name / "golden.npz"), stored_config(name)


def compression_of(numbers, config, kind="conv"):
    """Layer in float64 with the kernel of golden numbers."""
    layer = Compression(kind, config["compression_rate"], dtype="float64")
    layer.build((None, None, config["hidden_dim"]))
    if layer.weights:
        layer.set_weights([numbers["conv_kernel"], numbers["conv_bias"]])
    return layer


# === Golden numbers ===


@pytest.mark.parametrize("start", ["zeros", "empty"])
@pytest.mark.parametrize("kind", COMPRESSIONS)
@pytest.mark.parametrize(
    "name", ["compressive_memory", "compressive_memory_odd"]
)
def test_both_tiers_equal_the_golden_ones(name, kind, start):
    numbers, config = golden(name)
    layer = compression_of(numbers, config, kind)
    size, slots = config["memory_length"], config["compressed_length"]
    cold_start = "zeros" if start == "zeros" else "masked"
    memory = initial_memory(
        1, 2, slots + size, config["hidden_dim"], cold_start, "float64"
    )
    memory = CompressiveMemory.of(memory, 0)
    first = 0
    for step, length in enumerate(config["segment_lengths"]):
        segment = numbers["hidden"][:, first : first + length]
        first += length
        usage = numbers["usage"][step]  # of memory and segment, at the end
        usage = usage[:, usage.shape[1] - size - length :]
        memory, *_ = extend_compressed(
            memory, [segment], [layer], slots, lambda _, usage=usage: [usage]
        )
        tokens = numbers[f"{start}/memory_{step}"]
        compressed = numbers[f"{start}/{kind}/compressed_{step}"]
        num_real = tokens.shape[1] + compressed.shape[1]
        np.testing.assert_array_equal(memory.valid_length, [num_real] * 2)
        both = np.concatenate([compressed, tokens], axis=1)
        np.testing.assert_allclose(
            memory.states[0][:, slots + size - num_real :], both, atol=1e-12
        )


@pytest.mark.parametrize("kind", COMPRESSIONS)
def test_padding_is_not_compressed(kind):
    layer, rng = Compression(kind, 3), np.random.default_rng(0)
    states, usage = rng.normal(size=(1, 9, 4)), rng.random((1, 9))
    expected = layer(states[:, :5], usage=usage[:, :5])  # one group
    found = layer(states, tf.constant([5]), usage)
    np.testing.assert_allclose(found[:, :1], expected, atol=1e-6)


@pytest.mark.parametrize("scaling", ["scaled", "unscaled"])
def test_reconstruction_loss_equals_the_golden_one(scaling):
    numbers, config = golden("compressive_loss")
    heads, size = config["num_heads"], config["head_dim"]
    block = DecoderBlock(
        heads, size, 16, attention_type="vaswani", dtype="float64"
    )
    block.build((None, None, config["hidden_dim"]))
    # The block divides scores by the root of H, the paper's listing does not.
    scale = 1 if scaling == "scaled" else size**0.5
    kernels = [numbers["query"] * scale, numbers["key"], numbers["value"]]
    names = ("query", "key", "value")
    for weight in block.attention.weights:
        for name, kernel in zip(names, kernels, strict=True):
            if f"/{name}/" in weight.path:
                weight.assign(kernel)
    layer = compression_of(numbers, config)
    old = tf.constant(numbers["old_memory"])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([old])
        hidden = numbers["hidden"]
        groups, lengths = tf.constant([2, 2]), tf.fill((2,), hidden.shape[1])
        rows = reconstruction_loss(
            block, hidden, old, layer(old), 3, groups, lengths
        )
        mean = tf.reduce_mean(rows)
        squared = mean * numbers[f"{scaling}/attention_old"].size
        losses = {
            "mean_squared": mean,
            "squared": squared,
            "norm": tf.sqrt(squared),
        }
    for name, loss in losses.items():
        prefix = f"{scaling}/{name}"
        np.testing.assert_allclose(loss, numbers[prefix], rtol=2e-6)
        gradients = tape.gradient(loss, [layer.kernel, layer.bias])
        for kind, gradient in zip(("kernel", "bias"), gradients, strict=True):
            expected = numbers[f"{prefix}/gradient_conv_{kind}"]
            error = np.abs(gradient - expected).max()
            assert error < 1e-5 * np.abs(expected).max(), (name, kind)
    assert not any(
        gradient is not None and np.any(gradient)
        for gradient in tape.gradient(mean, block.trainable_weights)
    )


# === Reading ===


def segments(lengths, rows=2, seed=0):
    ids = random_ids(rows, sum(lengths), seed=seed)
    return np.split(ids, np.cumsum(lengths)[:-1], axis=1)


def read(backbone, lengths, memory=None, seed=0):
    """Reads random ids; returns the states of the last segment, and memory."""
    for inputs in segments(lengths, seed=seed):
        hidden, memory = backbone(inputs, memory=memory)
    return hidden, memory


# The others are layers as "conv" is, and equal the golden numbers.
@pytest.mark.parametrize(
    ("kind", "cold_start", "num_layers"),
    [("conv", "masked", 2), ("most_used", "zeros", 1)],
)
def test_cached_reading_equals_calls(kind, cold_start, num_layers):
    config = {**CONV, "compression": kind, "num_layers": num_layers}
    model = small_model(cold_start=cold_start, **config)
    for layer in model.backbone.compressions:
        layer.set_weights(
            [
                np.random.default_rng(3).normal(size=w.shape) * 0.2
                for w in layer.weights
            ]
        )
    reader = SegmentReader(model.backbone, 2, 9)
    reader.begin()
    memory = None
    for i, inputs in enumerate(segments([5, 1, 1, 9, 1, 9, 5, 1])):
        if i == 5:
            assert memory.pending_length[0] == 2
            reader.begin(memory)  # goes on from any memory
        hidden, memory = model.backbone(inputs, memory=memory)
        found, entries = reader.read(inputs)
        np.testing.assert_allclose(found, hidden, atol=2e-5)
        reader.remember(entries)


# === Training ===


def trained(num_steps, accumulate_steps=1):
    """A trainer after some steps, and the results of the steps."""
    seed_weights(2)
    model = small_model(**{**CONV, "num_layers": 2})
    strategy = tf.distribute.get_strategy()
    trainer = Trainer(
        model,
        keras.optimizers.Adam(0.01),
        strategy,
        batch_size=4,
        clip_norm=0.1,
        accumulate_steps=accumulate_steps,
    )
    segments = Segments(random_ids(400), 4, 5, drop_remainder=True)
    return trainer, trainer.train(
        iter(segments.distribute(strategy)), num_steps
    )


def test_a_graph_takes_segments_of_any_length():
    backbone = small_backbone(**CONV)
    call = tf.function(
        backbone, input_signature=[tf.TensorSpec((None, None), tf.int32)]
    )
    for length in (5, 13):
        ids = random_ids(2, length)
        found, expected = map(tf.nest.flatten, (call(ids), backbone(ids)))
        assert_same(found, expected, atol=1e-5)


def test_training_lowers_the_reconstruction_loss():
    # The third time that the text is read, against the first.
    epoch = 19
    trainer, results = trained(3 * epoch)
    losses = results["auxiliary_loss"]
    assert losses[0] == 0  # nothing has left memory yet
    assert 0 < losses[-epoch:].mean() < losses[:epoch].mean()
    biases = trainer.model.backbone.auxiliary_variables[1::2]
    assert len(biases) == 2  # one of each block, zero at first
    assert all(np.abs(bias).max() > 1e-3 for bias in biases)
    _, by_parts = trained(num_steps=16, accumulate_steps=2)
    for name, found in by_parts.items():
        np.testing.assert_allclose(found, results[name][:16], rtol=1e-4)


def test_padding_has_no_share_in_the_reconstruction_loss():
    backbone = small_backbone(**CONV)
    _, memory = read(backbone, [7, 7])
    ids = random_ids(2, 4)
    backbone(ids, memory=memory, training=True)
    (expected,) = backbone.losses
    mask = np.tile(np.arange(7) // 2 % 3 > 0, (2, 1))
    padded = np.pad(ids, [[0, 0], [2, 1]])
    backbone(padded, memory=memory, mask=mask, training=True)
    (found,) = backbone.losses
    assert expected > 1e-4
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_fit_trains_the_compression_with_a_loss_of_the_user():
    """Without one it uses `Trainer`, which is tested above."""
    model = small_model(**CONV)
    before = [w.numpy() for w in model.backbone.auxiliary_variables]
    loss = keras.losses.SparseCategoricalCrossentropy(True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    x = random_ids(16, 5)
    model.fit(x, x, batch_size=4, shuffle=False, verbose=0)
    after = model.backbone.auxiliary_variables
    for old, new in zip(before, after, strict=True):
        assert np.abs(old - new.numpy()).max() > 1e-3


# === Configuration ===


def test_slots_may_be_more_in_inference(tmp_path):
    model = small_model(**CONV)
    assert model.backbone.past_tokens() == 6 + 3 * C
    model.save_to_preset(tmp_path / "preset")
    loaded = TransformerXLCausalLM.from_preset(
        str(tmp_path / "preset"), compressed_length=9
    )
    few = many = None
    for i, inputs in enumerate(segments([5] * 7)):
        old, few = model.backbone(inputs, memory=few)
        new, many = loaded.backbone(inputs, memory=many)
        # 20 tokens fill the memory of 6, 4 slots, and are pending; 25 do not.
        assert np.allclose(old, new, atol=1e-6) == (i < 5)
    assert many.states[0].shape == (2, 9 + 6, 8)


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_a_classifier_trains_the_compression(pooling):
    model = TransformerXLTextClassifier(
        small_backbone(**CONV), 2, segment_length=5, pooling=pooling
    )
    before = [w.numpy() for w in model.backbone.auxiliary_variables]
    model.compile(keras.optimizers.Adam(0.01))
    model.fit(random_ids(6, 23), np.arange(6) % 2, verbose=0)
    after = model.backbone.auxiliary_variables
    for old, new in zip(before, after, strict=True):
        assert np.abs(old - new.numpy()).max() > 1e-3


def test_what_is_pending_is_not_compressed_yet():
    backbone = small_backbone(**CONV, compression="most_used")
    _, memory = read(backbone, [7, 4])
    assert memory.pending_length[0] == 2
    (states,), (pending,) = memory.states, memory.pending
    slot = states[:, C - 1, None]
    assert np.abs(slot).min() > 0
    assert not np.all(slot == np.array(pending), axis=-1).any()


def test_a_reset_forgets_both_tiers_and_what_is_pending():
    backbone = small_backbone(**CONV)
    (last,) = segments([5])
    _, memory = read(backbone, [7, 7, 6], seed=1)
    assert memory.pending_length[0] == 2
    reset = np.array([True, False])
    hidden, memory = backbone(last, memory=memory, reset=reset)
    hidden, memory = read(backbone, [5, 5, 5], memory)
    expected, fresh = backbone(last)
    expected, fresh = read(backbone, [5, 5, 5], fresh)
    np.testing.assert_allclose(hidden[0], expected[0], atol=1e-5)
    assert np.abs(hidden[1] - expected[1]).max() > 1e-3


def test_an_episode_is_compressed_without_the_one_before():
    backbone = small_backbone(**CONV)
    _, memory = read(backbone, [9, 9, 2], seed=1)
    (ids,) = segments([17])
    reset = np.zeros((2, 17), bool)
    reset[1, 3] = True
    found, memory = backbone(ids, memory=memory, reset=reset)
    expected, alone = backbone(ids[1:, 3:])
    assert_same([found[1:, 3:]], [expected], atol=1e-5)
    assert alone.valid_length[0] == 6 + 2 and alone.pending_length[0] == 2
    found, expected = map(tf.nest.flatten, (memory, alone))
    assert_same([x[1:] for x in found], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"compression": "gzip"}, "`compression` must be one of"),
        ({"compression_rate": 1}, "`compression_rate` must be"),
        ({"compressed_length": 0}, "`compressed_length` must be"),
        (
            {"memory_length": 0, "compressed_length": None},
            "`memory_length` must be an integer of at least 1",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_named(config, message):
    with pytest.raises(ValueError, match=message):
        small_backbone(**{**CONV, **config})


def test_memory_of_another_kind_is_named():
    plain = small_backbone(memory_length=10, num_layers=1)
    other = small_backbone(**CONV)
    ids = random_ids(2, 5)
    with pytest.raises(ValueError, match="`memory` must be a Memory, "):
        plain(ids, memory=other.initial_memory(2))
    with pytest.raises(ValueError, match="must be a CompressiveMemory, "):
        other(ids, memory=plain.initial_memory(2))


def test_generation_compresses_what_it_writes():
    """`backbones_test` has "conv", continued from its memory."""
    # Untied and with large weights, one block does not repeat a token.
    varied = {"tie_embeddings": False, "initializer_stddev": 1.0}
    model = small_model(**CONV, compression="most_used", **varied)
    prompts = [random_ids(23).tolist(), random_ids(6, seed=1).tolist()]
    written = model.generate(
        prompts,
        max_new_tokens=12,
        sampler=Sampler(top_k=1),
        strip_prompt=True,
    )
    for prompt, ids in zip(prompts, written, strict=True):
        _, memory = model.log_probs(np.array([prompt[:-1]]))
        text = [*prompt, *ids]
        for before, after in itertools.pairwise(text[len(prompt) - 1 :]):
            log_probs, memory = model.log_probs(np.array([[before]]), memory)
            assert np.argmax(log_probs) == after
    assert memory.valid_length[0] > 6
