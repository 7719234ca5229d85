"""Keras's `fit` on one replica, on two and on workers; a helper of the tests.

All functions give the losses of two epochs of `fit` and that of `evaluate`
after them. As one of the workers in TF_CONFIG, this program prints those of
documents as a JSON line; alone, those of a classifier with LoRA on one replica
and on two.
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


def losses_of_classifier(strategy):
    """The losses of a classifier whose backbone is trained by LoRA."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = TransformerXLTextClassifier.from_preset(
            "quickstart", num_classes=2, segment_length=4, **SIZES
        )
    model.backbone.enable_lora(3)  # outside of the scope, as users may
    with strategy.scope():
        model.compile(keras.optimizers.SGD(0.1), jit_compile=False)
    ids = np.random.default_rng(0).integers(0, 256, (100, 6))
    x, y = {"token_ids": ids, "lengths": np.full(len(ids), 5)}, ids[:, 0] % 2
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH_SIZE)
    history = model.fit(dataset, epochs=2, verbose=0).history
    return [*history["loss"], model.evaluate(dataset, verbose=0)[0]]


def losses_of_documents(strategy):
    """The losses of a text with resets and padding."""
    # The seed of dropout is the same each time.
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = TransformerXLCausalLM.from_preset(
            "quickstart", **{**SIZES, "dropout": 0.1}
        )
        # It has a state, as Adam has, and fewer operations.
        momentum = keras.optimizers.SGD(0.3, 0.9, global_clipnorm=0.25)
        model.compile(momentum, jit_compile=False)
    tokens = np.random.default_rng(0).integers(0, 256, 600)
    starts = np.arange(0, 600, 23)
    data = Segments(
        tokens, BATCH_SIZE, 6, True, documents=starts, reset_documents=True
    )
    history = model.fit(data, epochs=2, verbose=0).history
    return [*history["loss"], model.evaluate(data, verbose=0)[0]]


def main():
    turn_grappler_off()
    if "TF_CONFIG" in os.environ:
        return losses_of_documents(create_strategy())
    two, one = create_strategy(num_cpu_devices=2), tf.distribute.get_strategy()
    return [losses_of_classifier(one), losses_of_classifier(two)]


if __name__ == "__main__":
    print(json.dumps(main(), default=float))
