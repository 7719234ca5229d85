"""Trains a tiny model in a process of its own; a helper of the tests here.

    python train_tiny.py REPLICAS STEPS DIRECTORY [first]

Goes on from the checkpoint in DIRECTORY where there is one, saves another,
and prints a JSON line of losses, gradient norms and the score of another
text, in hexadecimal so that no bit is lost. STEPS is the number after which
the schedule ends; with `first` the run is stopped after that many.
"""

import json
import sys

import keras
import numpy as np

from txl_keras.data import Segments
from txl_keras.evaluation.evaluator import Evaluator
from txl_keras.models import TransformerXLBackbone
from txl_keras.models import TransformerXLCausalLM
from txl_keras.training import optimizers
from txl_keras.training.checkpointing import Checkpoints
from txl_keras.training.strategy import create_strategy
from txl_keras.training.trainer import Trainer

BATCH_SIZE = 4


def main(replicas, max_steps, directory, first=None):
    strategy = create_strategy(num_cpu_devices=replicas)
    keras.utils.set_random_seed(7)
    tokens = np.random.default_rng(0).integers(0, 11, 700)
    with strategy.scope():
        model = TransformerXLCausalLM(
            TransformerXLBackbone(
                vocabulary_size=11,
                num_layers=2,
                num_heads=2,
                head_dim=6,
                hidden_dim=16,
                intermediate_dim=24,
                memory_length=9,
                dropout=0.2,
                attention_dropout=0.1,
                initializer_stddev=0.2,
            )
        )
        optimizer = optimizers.Adam(
            optimizers.cosine_schedule(0.01, max_steps, warmup_steps=3)
        )
    trainer = Trainer(
        model, optimizer, strategy, BATCH_SIZE, clip_norm=0.3, seed=5
    )
    checkpoints = Checkpoints(directory, trainer)
    step = checkpoints.restore()
    # 700 tokens are 34 segments of 5 for each of 4 rows: 40 steps wrap around.
    segments = Segments(tokens, BATCH_SIZE, 5, drop_remainder=True)
    iterator = iter(segments.distribute(strategy, first_step=step))
    results = trainer.train(iterator, (first or max_steps) - step)
    checkpoints.save()
    evaluator = Evaluator(model, strategy, batch_size=2)
    held_out = Segments(tokens[:100], 2, 7, drop_remainder=False)
    results["held_out"] = np.array([evaluator.evaluate(held_out)["nll"]])
    print(
        json.dumps(
            {k: [x.hex() for x in v.tolist()] for k, v in results.items()}
        )
    )


if __name__ == "__main__":
    main(
        int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:])
    )
