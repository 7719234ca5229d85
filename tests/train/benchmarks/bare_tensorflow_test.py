"""Bare TensorFlow computes what a run does, or timing it would say nothing."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from factories import small_model

from benchmarks import bare_tensorflow
from benchmarks.bare_tensorflow import BareTensorFlow
from txl_keras.data import Segments
from txl_keras.training.optimizers import build_optimizer
from txl_keras.training.trainer import Trainer

STRATEGY = tf.distribute.get_strategy()
ATTENTIONS = [
    bare_tensorflow.attend_by_kernels,
    bare_tensorflow.attend_by_definition,
]


def make_model(**config):
    keras.utils.set_random_seed(5)
    return small_model(**{"num_layers": 2, **config})


def make_segments(batch_size=3, segment_length=5):
    tokens = np.random.default_rng(1).integers(11, size=90)
    return Segments(tokens, batch_size, segment_length, drop_remainder=True)


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize(
    "config",
    [
        {"memory_length": 7},
        {"memory_length": 40, "clamp_length": 4},
        {"memory_length": 0},
    ],
    ids=["tiles", "one shift", "no memory"],
)
def test_loss_and_gradients_are_those_of_the_model(attention, config):
    model = make_model(**config)
    bare = BareTensorFlow(model, 3, attention)
    segments = make_segments()
    memory = model.initial_memory(3)
    for step in range(3):
        batch = segments.batch(step)
        # The last time a row begins anew, beside others that go on.
        batch["reset"] = np.array([step == 2, False, False])
        with tf.GradientTape() as tape:
            nll, memory = model.score(
                batch["inputs"], batch["targets"], memory, batch["reset"]
            )
            expected = tf.reduce_mean(nll)
        gradients = tape.gradient(expected, model.trainable_variables)
        loss, found = bare.loss_and_gradients(
            {name: tf.constant(value) for name, value in batch.items()}
        )
        np.testing.assert_allclose(loss, expected, atol=1e-5)
        for weight, ours, other in zip(
            bare.weights, gradients, found, strict=True
        ):
            np.testing.assert_allclose(
                other, tf.convert_to_tensor(ours), atol=1e-5, err_msg=weight
            )


@pytest.mark.large
def test_steps_are_those_of_a_run():
    model = make_model(num_layers=1, memory_length=7)
    bare = BareTensorFlow(model, 3, ATTENTIONS[0], learning_rate=0.01)
    optimizer = build_optimizer("adam", learning_rate=0.01)
    trainer = Trainer(model, optimizer, STRATEGY, 3, clip_norm=0.25)
    feed = [iter(make_segments().distribute(STRATEGY)) for _ in range(2)]
    expected = trainer.train(feed[0], 4)
    found = bare.train(feed[1], 4)
    assert max(expected["gradient_norm"]) > 0.25  # some are clipped
    np.testing.assert_allclose(found, expected["loss"], atol=1e-5)


def test_a_step_is_adam_of_the_clipped_gradient():
    model = make_model(num_layers=1, memory_length=7)
    bare = BareTensorFlow(model, 3, ATTENTIONS[0], 0.01, clip_norm=0.25)
    optimizer = build_optimizer("adam", learning_rate=0.01)
    variables = model.trainable_variables
    optimizer.build(variables)
    batch = next(iter(make_segments().dataset()))
    for _ in range(2):
        _, gradients = bare.loss_and_gradients(batch)
        assert tf.linalg.global_norm(gradients) > 0.25
        clipped, _ = tf.clip_by_global_norm(gradients, 0.25)
        optimizer.apply(clipped, variables)
        bare.step(batch)  # the first of a text: what was read is forgotten
        for name, weight, gradient in zip(
            bare.weights, variables, clipped, strict=True
        ):
            # Adam makes a step of any gradient: also of what is but rounding.
            is_sure = np.abs(gradient) > 1e-4
            assert is_sure.mean() > 0.1
            np.testing.assert_allclose(
                bare.weights[name].numpy()[is_sure],
                weight.numpy()[is_sure],
                atol=1e-6,
                err_msg=name,
            )


@pytest.mark.parametrize(
    "config, missing",
    [
        ({"cutoffs": [4, 7]}, "cutoffs"),
        ({"same_length": True}, "same_length"),
        (
            {"attention_type": "vaswani", "memory_length": 0, "dropout": 0.1},
            "attention_type=vaswani, dropout",
        ),
    ],
)
def test_what_is_not_written_is_named(config, missing):
    model = make_model(**config)
    assert bare_tensorflow.unsupported_parts(model) == missing
    with pytest.raises(ValueError, match=f"Received: a model with {missing}"):
        BareTensorFlow(model, 3, ATTENTIONS[0])
    assert bare_tensorflow.unsupported_parts(make_model()) == ""
