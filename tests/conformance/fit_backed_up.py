"""Keras's `fit` with a backup, to be killed; a helper of the tests.

    python fit_backed_up.py FOLDER NUM_REPLICAS

Appends a line to FOLDER/steps after each batch. Writes the weights and the
loss of the last epoch to FOLDER/result.npz at the end.
"""

import pathlib
import sys

import keras
import numpy as np

from txl_keras.callbacks import BackupAndRestore
from txl_keras.data import Segments
from txl_keras.models import TransformerXLCausalLM
from txl_keras.training.strategy import create_strategy

SIZES = {
    "num_layers": 2,
    "hidden_dim": 16,
    "intermediate_dim": 24,
    "memory_length": 12,
    "dropout": 0.1,
}
EPOCHS = 6


class WriteSteps(keras.callbacks.Callback):
    """Shows the test how far the training has come."""

    def __init__(self, path):
        super().__init__()
        self._path = path

    def on_train_batch_end(self, batch, logs=None):
        with self._path.open("a") as file:
            file.write(f"{batch}\n")


def main(folder, num_replicas):
    # A program that goes on may draw other numbers until it has the backup.
    is_new = not (folder / "backup").exists()
    keras.utils.set_random_seed(1 if is_new else 2)
    tokens = np.random.default_rng(0).integers(0, 256, 20_000)
    segments = Segments(tokens, 4, 10, order="roll", drop_remainder=True)
    with create_strategy(num_cpu_devices=num_replicas).scope():
        model = TransformerXLCausalLM.from_preset("quickstart", **SIZES)
        model.compile(keras.optimizers.Adam(0.01, global_clipnorm=0.5))
    history = model.fit(
        segments,
        epochs=EPOCHS,
        callbacks=[
            BackupAndRestore(folder / "backup", save_freq=20),
            WriteSteps(folder / "steps"),
        ],
        verbose=0,
    ).history
    np.savez(
        folder / "result.npz",
        loss=history["loss"][-1],
        **{f"weight_{i}": np.asarray(w) for i, w in enumerate(model.weights)},
    )


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
