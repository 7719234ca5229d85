"""Trains tiny models in a process of its own; a helper of the tests here.

    PYTHONPATH=tests python tests/conformance/train_tiny.py DIRECTORY \
        --model=same_layer --run=adam,documents --replicas=1,2

Prints a JSON line: results by place and by what was run. A place is a number of
replicas, each of which reads its rows two by two, or "workers" for one of
several, with TF_CONFIG in the environment.

An optimizer trains to step 50, and saves to DIRECTORY/PLACE/OPTIMIZER/half on
the way and to .../whole at the end. Where there is a checkpoint in half it goes
on from there. Its results are the losses and gradient norms, the score of
another text where the run began and at the end, and how many values each
collective of a step sums. Those of other names are what fit_mirrored.py gives.
"""

import argparse
import json
import os

import fit_mirrored
import keras
import numpy as np
import tensorflow as tf
from factories import small_model

from txl_keras.data import Segments
from txl_keras.data.step_batches import replica_batch_size
from txl_keras.evaluation.evaluator import Evaluator
from txl_keras.extending import registered
from txl_keras.optimizers import build_optimizer
from txl_keras.training.checkpointing import Checkpoints
from txl_keras.training.schedules import build_schedule
from txl_keras.training.strategy import create_strategy
from txl_keras.training.strategy import wait_for_all
from txl_keras.training.trainer import Trainer

BATCH_SIZE = 8
HALF, WHOLE = 17, 50
MODELS = {
    # The embedding's tables get sparse gradients, of some rows; projections
    # get two where they are shared.
    "adaptive": {
        "cutoffs": (3, 5),
        "div_val": 2,
        "tie_embeddings": False,
        "tie_projections": "all_but_first",
    },
    "compressive": {"backbone": "compressive", "compressed_length": 4},
}
# Learning rates at which each of them learns something in 50 steps.
OPTIMIZERS = {
    "adam": {"learning_rate": 0.01},
    "adamw": {"learning_rate": 0.01, "weight_decay": 0.1},
    "lamb": {"learning_rate": 0.01, "weight_decay": 0.1},
    "muon": {"learning_rate": 0.01, "weight_decay": 0.1},
    "sgd": {"learning_rate": 1.0, "momentum": 0.5},
}


class OverflowingTrainer(Trainer):
    """The gradient of the last replica alone is infinite in step 3."""

    def _gradients(self, batch, step, first_row):
        losses, nll, gradients = super()._gradients(batch, step, first_row)
        is_bad = (step == 2) & (first_row + self._rows == BATCH_SIZE)
        factor = tf.where(is_bad, float("inf"), 1.0)
        return losses, nll, [factor * gradients[0], *gradients[1:]]


def build_model(dtype, num_layers, backbone="transformer_xl", **config):
    model = small_model(
        dtype,
        make=registered("backbone")[backbone],
        num_layers=num_layers,
        head_dim=6,
        hidden_dim=16,
        intermediate_dim=24,
        memory_length=9,
        dropout=0.2,
        attention_dropout=0.1,
        initializer_stddev=0.2,
        projection_initializer_stddev=0.2,
        **config,
    )
    # Half of the tokens are in the second tail: several passes, a different
    # number on each replica.
    model.softmax.tail_rows = 3
    return model


def train(optimizer_name, place, arguments, strategy):
    """Results of one optimizer, a dictionary of lists."""
    of_workers = place == "workers"
    keras.utils.set_random_seed(7)
    tokens = np.random.default_rng(0).integers(0, 11, 1400)
    settings = dict(OPTIMIZERS[optimizer_name])
    schedule = build_schedule(
        "cosine", settings.pop("learning_rate"), WHOLE, warmup_steps=3
    )
    with strategy.scope():
        config = MODELS.get(arguments.model, {"backbone": arguments.model})
        dtype = "mixed_float16" if arguments.overflow else "float32"
        model = build_model(dtype, arguments.num_layers, **config)
        optimizer = build_optimizer(optimizer_name, schedule, **settings)
    trainer = (OverflowingTrainer if arguments.overflow else Trainer)(
        model,
        optimizer,
        strategy,
        BATCH_SIZE,
        clip_norm=0.3,
        seed=5,
        accumulate_steps=replica_batch_size(BATCH_SIZE, strategy) // 2,
    )
    directory = os.path.join(arguments.directory, place, optimizer_name)
    half = Checkpoints(os.path.join(directory, "half"), trainer)
    half.restore()
    step = int(trainer.step.numpy())
    evaluator = Evaluator(model, strategy, batch_size=4, segment_length=7)
    held_out = Segments(tokens[:100], 4, 7, drop_remainder=False)
    token_nll = None if of_workers else np.empty(100, "float32")
    at_start = evaluator.evaluate(held_out)["bits_per_token"]
    # 1400 tokens are 34 segments of 5 for each of 8 rows: 50 steps wrap around.
    segments = Segments(tokens, BATCH_SIZE, 5, drop_remainder=True)
    iterator = iter(segments.distribute(strategy, first_step=step))
    parts = []
    if step < HALF:
        parts.append(trainer.train(iterator, HALF - step))
        half.save()
    parts.append(trainer.train(iterator, WHOLE - HALF))
    whole = Checkpoints(os.path.join(directory, "whole"), trainer)
    whole.save()
    for checkpoints in (half, whole):
        checkpoints.wait()
    scores = evaluator.evaluate(held_out, token_nll=token_nll)
    return {
        **{
            key: np.concatenate([part[key] for part in parts]).tolist()
            for key in parts[0]
        },
        "weights": model.count_params(),
        "spread": spread(strategy, model),
        "collectives": collective_sizes(trainer) if of_workers else None,
        "held_out": [at_start, scores["bits_per_token"]],
        "token_nll": None if token_nll is None else token_nll.tolist(),
    }


def spread(strategy, model):
    """The largest difference of a weight between replicas of this worker."""
    weights = [
        strategy.experimental_local_results(weight.value)
        for weight in model.weights
    ]
    return max(np.ptp([x.numpy() for x in w], axis=0).max() for w in weights)


def collective_sizes(trainer):
    """Values that each collective between workers sums in a step."""
    (run,) = trainer._run._list_all_concrete_functions_for_serialization()
    definition = run.graph.as_graph_def(add_shapes=True)
    functions = [function.node_def for function in definition.library.function]
    return [
        float(np.prod([d.size for d in shape.dim]))
        for nodes in (definition.node, *functions)
        for node in nodes
        if node.op.startswith("Collective")
        for shape in node.attr["_output_shapes"].list.shape
    ]


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--model", default="adaptive")
    parser.add_argument("--num_layers", type=int, default=2)
    parser.add_argument("--run", default="adam")
    parser.add_argument("--replicas", default="")
    # In float16, with one infinite gradient.
    parser.add_argument("--overflow", action="store_true")
    return parser.parse_args()


def create_strategies(replicas):
    """Strategies by place. At most one of them splits the CPU."""
    if not replicas:
        return {"workers": create_strategy()}
    alone = tf.distribute.get_strategy()
    return {
        n: alone if n == "1" else create_strategy(num_cpu_devices=int(n))
        for n in replicas.split(",")
    }


def main():
    # Its rewrites are a sixth of the time, and nothing of ours.
    tf.config.optimizer.set_experimental_options(
        {"disable_meta_optimizer": True}
    )
    arguments = parse()
    results = {}
    for place, strategy in create_strategies(arguments.replicas).items():
        results[place] = {}
        for name in arguments.run.split(","):
            if name in OPTIMIZERS:
                found = train(name, place, arguments, strategy)
            else:
                found = getattr(fit_mirrored, f"losses_of_{name}")(strategy)
            results[place][name] = found
        wait_for_all(strategy)
    print(json.dumps(results, default=float))


if __name__ == "__main__":
    main()
