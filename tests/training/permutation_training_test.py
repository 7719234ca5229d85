"""The trainer, checkpoints and evaluator on permutation language modelling."""

import numpy as np
import pytest
import tensorflow as tf
from factories import assert_same
from factories import small_backbone

from txl_keras.data import PermutedSegments
from txl_keras.data import Segments
from txl_keras.evaluation import PermutationEvaluator
from txl_keras.models import XLNetBackbone
from txl_keras.models import XLNetPermutationLM
from txl_keras.optimizers import build_optimizer
from txl_keras.training.checkpointing import Checkpoints
from txl_keras.training.trainer import Trainer

STRATEGY = tf.distribute.get_strategy()
B, T, V = 4, 6, 7
SCORED = ("inputs", "permutation_mask", "target_mapping", "reset")


def make_model(**config):
    sizes = {"vocabulary_size": V, "num_layers": 1, "hidden_dim": 16}
    sizes |= {"memory_length": 9, "initializer_stddev": 0.1, **config}
    return XLNetPermutationLM(small_backbone(make=XLNetBackbone, **sizes))


def make_segments(drop_remainder=True, repeats=40, **options):
    tokens = np.tile([0, 1, 2, 3, 4, 5, 6, 2, 4], repeats)
    return PermutedSegments(
        Segments(tokens, B, T, drop_remainder), context_factor=3, **options
    )


def train(trainer, num_steps, first_step=0):
    iterator = iter(make_segments().distribute(STRATEGY, first_step))
    return trainer.train(iterator, num_steps)["loss"]


def test_a_step_is_the_clipped_gradient_of_the_mean_over_targets():
    """Rows in two pieces, and together."""
    segments = make_segments(not_predicted=[2], with_next=True)
    model = make_model(reuse_length=T)
    reference = XLNetPermutationLM.from_config(model.get_config())
    reference.set_weights(model.get_weights())
    batch = segments.batch(0)
    weights, num_targets = batch.pop("weights"), batch.pop("num_targets")
    assert 0 < num_targets < B * 4
    with tf.GradientTape() as tape:
        nll, memory = reference.score(**batch)
        loss = tf.reduce_sum(nll * weights) / num_targets
    variables = [weight.value for weight in reference.trainable_variables]
    gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
    gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    norm = tf.linalg.global_norm(gradients)

    # Adam would hide the size of a gradient.
    optimizer = build_optimizer("sgd", 0.5)
    trainer = Trainer(
        model, optimizer, STRATEGY, B, clip_norm=0.01, accumulate_steps=2
    )
    results = trainer.train(iter(segments.distribute(STRATEGY)), 1)
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
    assert kept.valid_length.numpy().tolist() == [T] * B


@pytest.mark.large
def test_a_text_is_learned_and_a_run_goes_on_where_it_was_saved(tmp_path):
    optimizer = build_optimizer("adam", 0.01)
    trainer = Trainer(make_model(), optimizer, STRATEGY, B)
    checkpoints = Checkpoints(str(tmp_path), trainer)
    losses = train(trainer, 180)
    assert losses[0] > 1.7  # of 1.95, a guess
    checkpoints.save()
    checkpoints.wait()
    after = train(trainer, 40, first_step=180)
    assert after[-10:].mean() < 0.3
    weights = trainer.model.get_weights()

    checkpoints.restore()
    assert trainer.step.numpy() == 180
    again = train(trainer, 40, first_step=180)
    np.testing.assert_array_equal(again, after)
    assert_same(trainer.model.get_weights(), weights)


def test_evaluation_is_the_mean_over_all_targets():
    model = make_model()
    segments = make_segments(False, repeats=16, not_predicted=[4])
    nll = correct = count = 0
    memory = model.initial_memory(B, 5)
    for step in range(len(segments)):
        batch = segments.batch(step)
        scored = {name: batch[name] for name in SCORED}
        log_probs, memory = model.log_probs(**scored, memory=memory)
        rows, targets = np.nonzero(batch["weights"])
        found = log_probs.numpy()[rows, targets]
        tokens = batch["targets"][rows, targets]
        nll -= found[np.arange(len(tokens)), tokens].sum()
        correct += (found.argmax(-1) == tokens).sum()
        count += len(tokens)
    evaluator = PermutationEvaluator(model, STRATEGY, B, T, memory_length=5)
    for steps_per_execution in (20, 4):
        scores = evaluator.evaluate(segments, steps_per_execution)
        assert scores["num_tokens"] == count
        assert scores["nll"] == pytest.approx(nll / count, rel=1e-5)
        assert scores["accuracy"] == pytest.approx(correct / count)

    with pytest.raises(ValueError, match=f"segments`' {T}. Received.*=None"):
        evaluator.evaluate(make_segments(False, with_next=True))
    with pytest.raises(ValueError, match="`segments` must have at least one"):
        evaluator.evaluate(make_segments(False, not_predicted=range(V)))
    with pytest.raises(ValueError, match="steps_per_execution=0"):
        evaluator.evaluate(segments, steps_per_execution=0)
