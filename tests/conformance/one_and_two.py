"""Trains on one replica and on two, in one process; a helper of the tests.

    PYTHONPATH=tests python tests/conformance/one_and_two.py DIRECTORY FLAGS

Prints a JSON line: what train_tiny.py prints of FLAGS, by the number of
replicas, whose name is the folder in DIRECTORY, and as "fitted" what
`fit_mirrored.losses_of_documents` gives for each.
"""

import json
import os
import sys

import txl_keras.scripts.quiet  # noqa: F401

import fit_mirrored
import tensorflow as tf
import train_tiny

from txl_keras.training.strategy import create_strategy


def main(directory, *flags):
    train_tiny.turn_grappler_off()
    two = create_strategy(num_cpu_devices=2)
    assert two.num_replicas_in_sync == 2
    results = {"fitted": []}
    for name, strategy in (("1", tf.distribute.get_strategy()), ("2", two)):
        arguments = train_tiny.parse([os.path.join(directory, name), *flags])
        results[name] = train_tiny.train_all(arguments, strategy)
        losses = fit_mirrored.losses_of_documents(strategy)
        results["fitted"].append(losses)
    print(json.dumps(results, default=float))


if __name__ == "__main__":
    main(*sys.argv[1:])
