"""Keras's `fit` under a strategy; a helper of the tests.

All functions give the losses of two epochs of `fit` and that of `evaluate`
after them.
"""

import contextlib
import tempfile

import keras
import numpy as np
import tensorflow as tf

from txl_keras.callbacks import BackupAndRestore
from txl_keras.data import Segments
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models import TransformerXLTextClassifier

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


def losses_of_documents(strategy, *callbacks):
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
    history = model.fit(data, epochs=2, callbacks=callbacks, verbose=0).history
    if strategy.num_replicas_in_sync > 1:
        # Two workers would both read the row.
        try:
            model.evaluate(Segments(tokens, 1, 6, True), verbose=0)
            raise AssertionError("one row was read on two replicas")
        except ValueError as error:
            assert "divisible by the number of replicas" in str(error)
    return [*history["loss"], model.evaluate(data, verbose=0)[0]]


class Interrupt(keras.callbacks.Callback):
    """Interrupts the second epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == (1, 7):
            raise KeyboardInterrupt


def losses_of_backup(strategy):
    """Returns losses of documents, of a continued epoch and of `evaluate`."""
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.suppress(KeyboardInterrupt):
            backup = BackupAndRestore(folder, save_freq=5)
            losses_of_documents(strategy, backup, Interrupt())
        return losses_of_documents(strategy, BackupAndRestore(folder))
