"""Trains a tiny model in a process of its own; a helper of the tests here.

    python train_tiny.py MODEL REPLICAS DIRECTORY

Trains to step 40, and saves to DIRECTORY/half on the way and to DIRECTORY/whole
at the end. Where there is a checkpoint in DIRECTORY/half it goes on from there.
Prints a JSON line of losses, gradient norms and the score of another text, in
hexadecimal so that no bit is lost.
"""

import json
import os
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
HALF, WHOLE = 17, 40
MODELS = {
    "plain": {},
    # The embedding's tables get sparse gradients, of some rows; projections
    # get two where they are shared.
    "adaptive": {
        "cutoffs": (3, 5),
        "div_val": 2,
        "tie_embeddings": False,
        "tie_projections": "all_but_first",
    },
}


def build_model(tie_embeddings=True, tie_projections=True, **overrides):
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
            projection_initializer_stddev=0.2,
            **overrides,
        ),
        tie_embeddings=tie_embeddings,
        tie_projections=tie_projections,
    )
    # Of the 10 or 20 tokens of a replica half are in the second tail: several
    # passes, a different number on each replica.
    model.softmax.tail_rows = 3
    return model


def main(name, replicas, directory):
    strategy = create_strategy(num_cpu_devices=replicas)
    keras.utils.set_random_seed(7)
    tokens = np.random.default_rng(0).integers(0, 11, 700)
    with strategy.scope():
        model = build_model(**MODELS[name])
        optimizer = optimizers.Adam(
            optimizers.cosine_schedule(0.01, WHOLE, warmup_steps=3)
        )
    trainer = Trainer(
        model, optimizer, strategy, BATCH_SIZE, clip_norm=0.3, seed=5
    )
    half = Checkpoints(os.path.join(directory, "half"), trainer)
    step = half.restore()
    # 700 tokens are 34 segments of 5 for each of 4 rows: 40 steps wrap around.
    segments = Segments(tokens, BATCH_SIZE, 5, drop_remainder=True)
    iterator = iter(segments.distribute(strategy, first_step=step))
    parts = []
    if step < HALF:
        parts.append(trainer.train(iterator, HALF - step))
        half.save()
    parts.append(trainer.train(iterator, WHOLE - HALF))
    Checkpoints(os.path.join(directory, "whole"), trainer).save()
    results = {
        key: np.concatenate([part[key] for part in parts]) for key in parts[0]
    }
    evaluator = Evaluator(model, strategy, batch_size=2)
    held_out = Segments(tokens[:100], 2, 7, drop_remainder=False)
    results["held_out"] = np.array([evaluator.evaluate(held_out)["nll"]])
    print(
        json.dumps(
            {k: [x.hex() for x in v.tolist()] for k, v in results.items()}
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
