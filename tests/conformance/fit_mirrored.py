"""Keras's `fit` on one replica and on two; a helper of the tests.

    python fit_mirrored.py

Prints a JSON line: by model, the losses of two epochs of `fit` and that of
`evaluate` after them, on one replica, then on two (from arrays and datasets).
With dropout, clipping, resets and an adaptive softmax, also those of `Trainer`
on two replicas. With TF_CONFIG in the environment it is one of several workers,
and prints these of `fit` alone.
"""

import contextlib
import json
import os

import keras
import numpy as np
import tensorflow as tf

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


def losses(build, as_dataset, strategy, lora_rank=None):
    keras.utils.set_random_seed(1)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model, x, y = build(*segments())
    if lora_rank:
        model.backbone.enable_lora(lora_rank)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model.compile("sgd", jit_compile=False)
    data = {"x": x, "y": y, "batch_size": BATCH_SIZE}
    if as_dataset:
        dataset = tf.data.Dataset.from_tensor_slices((x, y))
        data = {"x": dataset.batch(BATCH_SIZE)}
    fitted = model.fit(**data, epochs=2, shuffle=False, verbose=0)
    return [*fitted.history["loss"], model.evaluate(**data, verbose=0)[0]]


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
    sizes = {**SIZES, "dropout": 0.1, "cutoffs": (20, 90)}
    with strategy.scope():
        model = TransformerXLCausalLM.from_preset("quickstart", **sizes)
        adam = keras.optimizers.Adam(0.01, global_clipnorm=0.25)
        model.compile(adam)
    return model


def losses_of_documents(strategy):
    model = compiled(strategy)
    data = documents()
    history = model.fit(data, epochs=2, verbose=0).history
    return [*history["loss"], model.evaluate(data, verbose=0)[0]]


def losses_of_trainer(strategy):
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
    return [*epochs, model.evaluate(data, verbose=0)[0]]


def main():
    # Grappler's rewrites are a sixth of the time, and nothing of ours.
    tf.config.optimizer.set_experimental_options(
        {"disable_meta_optimizer": True}
    )
    if "TF_CONFIG" in os.environ:
        print(json.dumps(losses_of_documents(create_strategy())))
        return
    two = create_strategy(num_cpu_devices=2)
    assert two.num_replicas_in_sync == 2
    results = {
        "language model": [
            losses(language_model, False, None),
            losses(language_model, False, two),
        ],
        "classifier": [
            losses(classifier, False, None),
            losses(classifier, True, two),
        ],
        "LoRA": [
            losses(language_model, False, None, lora_rank=3),
            losses(language_model, True, two, lora_rank=3),
        ],
        "documents": [
            losses_of_documents(tf.distribute.get_strategy()),
            losses_of_documents(two),
            losses_of_trainer(two),
        ],
    }
    print(json.dumps(results, default=float))


if __name__ == "__main__":
    main()
