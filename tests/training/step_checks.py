"""Checks a first step of training, whatever the model predicts."""

import numpy as np
import tensorflow as tf
from factories import assert_same

from txl_keras.training.optimizers import build_optimizer
from txl_keras.training.trainer import Trainer


def check_first_step(model, segments, **options):
    """Compares the first step with the clipped gradient of the mean loss.

    Returns the memory after the step.
    """
    reference = type(model).from_config(model.get_config())
    reference.set_weights(model.get_weights())
    batch = segments.batch(0)
    weights, num_targets = batch.pop("weights"), batch.pop("num_targets")
    with tf.GradientTape() as tape:
        nll, memory = reference.score(**batch)
        loss = tf.reduce_sum(nll * weights) / num_targets
    variables = [weight.value for weight in reference.trainable_variables]
    gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
    gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    norm = tf.linalg.global_norm(gradients)

    strategy = tf.distribute.get_strategy()
    # Adam would hide the size of a gradient.
    optimizer = build_optimizer("sgd", 0.5)
    trainer = Trainer(
        model, optimizer, strategy, len(weights), clip_norm=0.01, **options
    )
    results = trainer.train(iter(segments.distribute(strategy)), 1)
    np.testing.assert_allclose(results["loss"], [loss], rtol=1e-5)
    np.testing.assert_allclose(results["gradient_norm"], [norm], rtol=1e-4)
    expected = [
        before - 0.5 * gradient * 0.01 / norm
        for before, gradient in zip(variables, gradients, strict=True)
    ]
    assert_same(model.trainable_variables, expected, atol=1e-6)
    # The memory that training kept is that of the functional interface.
    kept = trainer.memory.read()
    np.testing.assert_allclose(kept.states[0], memory.states[0], atol=1e-5)
    return kept
