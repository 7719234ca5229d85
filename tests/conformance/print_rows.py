"""Prints what every replica reads; a helper of the tests here.

    python print_rows.py REPLICAS

Tokens are their own positions. With TF_CONFIG in the environment it is one of
several workers, each of one replica. Prints a JSON line: for each run, step by
step, the first row of each replica here and its part of the batch.
"""

import json
import os
import sys

import numpy as np
import tensorflow as tf

from txl_keras.data import Segments
from txl_keras.training.strategy import create_strategy

BATCH_SIZE, SEGMENT_LENGTH, NUM_TOKENS = 12, 5, 407
DOCUMENTS = np.array([0, 31, 32, 100, 173, 350])
# What differs from one epoch after the other of 12 rows of the text.
ORDERS = {
    "sequential": {},
    "roll": {"order": "roll", "seed": 2},
    "shuffle": {"order": "shuffle", "documents": DOCUMENTS},
    "documents": {"reset_documents": True, "documents": DOCUMENTS},
    "evaluation": {"drop_remainder": False, "warmup_segments": 2},
}
# Epochs are of 6, 5, 6, 6 and 9 steps: all of these pass the end of one.
FIRST_STEP, NUM_STEPS = 3, 11
RESUMED_AT = 8


def make_segments(order):
    arguments = {"drop_remainder": True, **ORDERS[order]}
    tokens = np.arange(NUM_TOKENS, dtype=np.int32)
    return Segments(tokens, BATCH_SIZE, SEGMENT_LENGTH, **arguments)


def read(strategy, segments, first_step, last_step):
    """What the replicas of this worker read, a list for each step."""
    rows = BATCH_SIZE // strategy.num_replicas_in_sync

    def replica_step(batch):
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        return {"first_row": replica * rows, **batch}

    @tf.function
    def step(iterator):
        return strategy.run(replica_step, (next(iterator),))

    iterator = iter(segments.distribute(strategy, first_step))
    steps = []
    for _ in range(first_step, last_step):
        here = {
            key: strategy.experimental_local_results(value)
            for key, value in step(iterator).items()
        }
        steps.append(
            [
                {key: parts[i].numpy().tolist() for key, parts in here.items()}
                for i in range(len(here["inputs"]))
            ]
        )
    return steps


def main(replicas):
    if "TF_CONFIG" in os.environ:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    else:
        strategy = create_strategy(num_cpu_devices=replicas)
    assert strategy.num_replicas_in_sync == replicas
    end = FIRST_STEP + NUM_STEPS
    results = {}
    for order in ORDERS:
        segments = make_segments(order)
        results[order] = read(strategy, segments, FIRST_STEP, end)
    segments = make_segments("sequential")
    results["resumed"] = read(strategy, segments, RESUMED_AT, end)
    print(json.dumps(results))


if __name__ == "__main__":
    main(int(sys.argv[1]))
