"""An infinite gradient on the second of two replicas; a helper of the tests.

    PYTHONPATH=tests python tests/conformance/overflow.py

Trains a tiny model in float16, with a gradient that is infinite on replica 1
alone in step 3. Prints a JSON line: the results step by step, the updates that
the optimizer counted, and for each step the weights of both replicas, summed.
"""

import json

import keras
import numpy as np
import tensorflow as tf
from factories import small_model

from txl_keras.data import Segments
from txl_keras.training.optimizers import build_optimizer
from txl_keras.training.strategy import create_strategy
from txl_keras.training.trainer import Trainer

BATCH_SIZE, BAD_STEP, NUM_STEPS = 4, 3, 12


class OverflowingTrainer(Trainer):
    def _gradients(self, batch, step, first_row):
        loss, nll, gradients = super()._gradients(batch, step, first_row)
        is_bad = (step == BAD_STEP - 1) & (first_row >= BATCH_SIZE // 2)
        factor = tf.where(is_bad, float("inf"), 1.0)
        return loss, nll, [factor * gradients[0], *gradients[1:]]


def main():
    strategy = create_strategy(num_cpu_devices=2)
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = small_model("mixed_float16", num_layers=1, vocabulary_size=7)
        optimizer = build_optimizer("adam", 0.03)
    trainer = OverflowingTrainer(
        model, optimizer, strategy, BATCH_SIZE, clip_norm=0.25
    )
    tokens = np.tile([0, 1, 2, 3, 4, 5, 6, 2, 4], 40)
    segments = Segments(tokens, BATCH_SIZE, 5, drop_remainder=True)
    iterator = iter(segments.distribute(strategy))
    results, sums = [], []
    for _ in range(NUM_STEPS):
        step = trainer.train(iterator, 1)
        results.append({name: float(value[0]) for name, value in step.items()})
        sums.append(
            [
                sum(
                    float(np.abs(weight.value.values[replica].numpy()).sum())
                    for weight in model.weights
                )
                for replica in range(2)
            ]
        )
    updates = int(trainer.optimizer.iterations.numpy())
    print(json.dumps({"results": results, "sums": sums, "updates": updates}))


if __name__ == "__main__":
    main()
