"""Keras's `fit` on one replica and on two; a helper of the tests.

    python fit_mirrored.py

Prints a JSON line: by model, the losses of two epochs of `fit` and that of
`evaluate` after them, on one replica, then on two (from arrays and datasets).
With dropout, clipping, resets and an adaptive softmax, also those of `Trainer`
on two replicas. With TF_CONFIG in the environment it is one of several workers,
and prints these of `fit` alone.
"""

import json
import os

import keras
import numpy as np
import tensorflow as tf
from train_tiny import turn_grappler_off

from txl_keras.data import Segments
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models import TransformerXLTextClassifier
from txl_keras.training import Trainer
from txl_keras.training.strategy import create_strategy

SIZES = {
    "num_layers": 1,
    "hidden_dim": 16,
    "intermediate_dim": 16,
    "memory_length": 8,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    # With smaller weights the loss does not depend on the matrices of LoRA.
    "initializer_stddev": 0.3,
}
BATCH_SIZE = 4


def segments():
    tokens = np.random.default_rng(0).integers(0, 256, 600)
    return Segments(tokens, BATCH_SIZE, 6, drop_remainder=True).arrays()


def language_model(x, y):
    model = TransformerXLCausalLM.from_preset("quickstart", **SIZES)
    return model, x, y


def classifier(x, y):
    model = TransformerXLTextClassifier.from_preset(
        "quickstart", num_classes=2, segment_length=4, **SIZES
    )
    lengths = np.full(len(x), 5)
    return model, {"token_ids": x, "lengths": lengths}, x[:, 0] % 2


def losses(build, strategy, *kinds, lora_rank=None):
    """The losses from each kind of data, of one compiled model."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model, x, y = build(*segments())
    if lora_rank:
        model.backbone.enable_lora(lora_rank)
    with strategy.scope():
        model.compile(keras.optimizers.SGD(0.1), jit_compile=False)
    weights = model.get_weights()
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH_SIZE)
    data = {
        "arrays": {"x": x, "y": y, "batch_size": BATCH_SIZE},
        "dataset": {"x": dataset},
    }
    found = []
    for kind in kinds:
        model.set_weights(weights)
        fitted = model.fit(**data[kind], epochs=2, shuffle=False, verbose=0)
        score = model.evaluate(**data[kind], verbose=0)[0]
        found.append([*fitted.history["loss"], score])
    return found


def documents():
    """Segments with resets and padding."""
    tokens = np.random.default_rng(0).integers(0, 256, 600)
    starts = np.arange(0, 600, 23)
    return Segments(
        tokens, BATCH_SIZE, 6, True, documents=starts, reset_documents=True
    )


def compiled(strategy):
    """A model; the same seed of dropout is drawn for each."""
    keras.utils.set_random_seed(1)
    sizes = {**SIZES, "dropout": 0.1, "cutoffs": (90,)}
    with strategy.scope():
        model = TransformerXLCausalLM.from_preset("quickstart", **sizes)
        adam = keras.optimizers.Adam(0.01, global_clipnorm=0.25)
        model.compile(adam)
    return model


def losses_of_documents(strategy):
    """The losses, and the model."""
    model = compiled(strategy)
    data = documents()
    history = model.fit(data, epochs=2, verbose=0).history
    return [*history["loss"], model.evaluate(data, verbose=0)[0]], model


def losses_of_trainer(strategy, evaluated):
    """Its weights are scored by a compiled model."""
    model = compiled(strategy)
    data = documents()
    trainer = Trainer(
        model,
        model.optimizer,
        strategy,
        BATCH_SIZE,
        clip_norm=0.25,
        seed=model.fit_steps.seed,
    )
    iterator = iter(data.distribute(strategy))
    counts = [data.batch(i)["num_targets"] for i in range(len(data))]
    epochs = [
        np.average(trainer.train(iterator, len(data))["loss"], weights=counts)
        for _ in range(2)
    ]
    evaluated.set_weights(model.get_weights())
    return [*epochs, evaluated.evaluate(data, verbose=0)[0]]


def fit_all(two):
    """The losses by model; `two` is a strategy of two replicas."""
    one = tf.distribute.get_strategy()
    on_one, _ = losses_of_documents(one)
    on_two, model = losses_of_documents(two)
    return {
        "classifier": [
            *losses(classifier, one, "arrays"),
            *losses(classifier, two, "dataset"),
        ],
        "LoRA": [
            *losses(language_model, one, "arrays", lora_rank=3),
            *losses(language_model, two, "dataset", "arrays", lora_rank=3),
        ],
        "documents": [on_one, on_two, losses_of_trainer(two, model)],
    }


def main():
    turn_grappler_off()
    if "TF_CONFIG" in os.environ:
        found, _ = losses_of_documents(create_strategy())
        print(json.dumps(found, default=float))
        return
    results = fit_all(create_strategy(num_cpu_devices=2))
    print(json.dumps(results, default=float))


if __name__ == "__main__":
    main()
