"""Trains a small model on the backend of Keras, and saves it; a helper."""

import json
import pathlib

import keras
import numpy as np
from factories import random_ids
from factories import small_model

B, T = 3, 7
X, Y = np.split(random_ids(2 * 4 * B, T), 2)


def fit(model):
    """Losses of two epochs, from cold memory."""
    model.reset_memory()
    history = model.fit(X, Y, batch_size=B, epochs=2, verbose=0)
    return history.history["loss"]


def save(folder):
    """Saves a model, its scores, and the losses of training it further."""
    folder = pathlib.Path(folder)
    model = small_model(num_layers=1, cutoffs=(4,))
    model.compile(
        keras.optimizers.AdamW(0.01, weight_decay=0.1, clipnorm=0.5),
        weighted_metrics=["perplexity"],
    )
    fit(model)
    model.save(folder / "model.keras")
    model.save_to_preset(folder / "preset")
    config = json.dumps(model.get_compile_config())
    (folder / "compiled.json").write_text(config)
    iterations = int(model.optimizer.iterations)
    scores, _ = model.score(X, Y)
    np.savez(
        folder / "results.npz",
        scores=keras.ops.convert_to_numpy(scores),
        iterations=iterations,
        losses=fit(model),
    )
