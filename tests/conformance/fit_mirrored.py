"""Keras's `fit` on one replica and on two; a helper of the tests.

`fit_all` gives by kind of data the losses of two epochs of `fit` and that of
`evaluate` after them, on one replica, then on two. Of a language model with
dropout, clipping, resets and an adaptive softmax also those of `Trainer` on two
replicas, and of a classifier with LoRA. As a program it is one of the workers
in TF_CONFIG, and prints the losses of documents as a JSON line.
"""

import json

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


def losses_of_classifier(strategy, as_dataset):
    """The losses of a classifier whose backbone is trained by LoRA."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = TransformerXLTextClassifier.from_preset(
            "quickstart", num_classes=2, segment_length=4, **SIZES
        )
    model.backbone.enable_lora(3)  # outside of the scope, as users may
    with strategy.scope():
        model.compile(keras.optimizers.SGD(0.1), jit_compile=False)
    ids, _ = segments()
    x, y = {"token_ids": ids, "lengths": np.full(len(ids), 5)}, ids[:, 0] % 2
    return fitted(model, x, y, as_dataset)


def fitted(model, x, y, as_dataset):
    """The losses of two epochs of `fit`, and that of `evaluate`."""
    data = {"x": x, "y": y, "batch_size": BATCH_SIZE}
    if as_dataset:
        dataset = tf.data.Dataset.from_tensor_slices((x, y))
        data = {"x": dataset.batch(BATCH_SIZE)}
    history = model.fit(**data, epochs=2, shuffle=False, verbose=0).history
    return [*history["loss"], model.evaluate(**data, verbose=0)[0]]


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
        # It has a state, as Adam has, and fewer operations.
        momentum = keras.optimizers.SGD(0.3, 0.9, global_clipnorm=0.25)
        model.compile(momentum, jit_compile=False)
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
        jit_compile=False,
    )
    iterator = iter(data.distribute(strategy))
    counts = [data.batch(i)["num_targets"] for i in range(len(data))]
    epochs = [
        np.average(trainer.train(iterator, len(data))["loss"], weights=counts)
        for _ in range(2)
    ]
    evaluated.set_weights(model.get_weights())
    return [*epochs, evaluated.evaluate(data, verbose=0)[0]]


def losses_of_arrays(model):
    """The losses of going on with arrays, and with a dataset."""
    return [
        loss
        for as_dataset in (False, True)
        for loss in fitted(model, *segments(), as_dataset)
    ]


def fit_all(two):
    """The losses by data; `two` is a strategy of two replicas."""
    one = tf.distribute.get_strategy()
    (on_one, model_of_one), (on_two, model) = (
        losses_of_documents(strategy) for strategy in (one, two)
    )
    return {
        "arrays": [losses_of_arrays(m) for m in (model_of_one, model)],
        "documents": [on_one, on_two, losses_of_trainer(two, model)],
        "classes": [
            losses_of_classifier(one, as_dataset=False),
            losses_of_classifier(two, as_dataset=True),
        ],
    }


if __name__ == "__main__":
    turn_grappler_off()
    found, _ = losses_of_documents(create_strategy())
    print(json.dumps(found, default=float))
