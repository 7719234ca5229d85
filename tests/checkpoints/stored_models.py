"""Tiny random models and their outputs: see `testdata/golden`."""

import json
import pathlib

import numpy as np
import pytest

from txl_keras.checkpoints.pytorch import from_tensors
from txl_keras.tensor_files import Tensors

GOLDEN = pathlib.Path(__file__).parent.parent / "testdata" / "golden"


def stored_config(name):
    """The configuration of a model, in the original's words."""
    return json.loads((GOLDEN / name / "config.json").read_text("utf-8"))


def stored_arrays(name):
    """The state dict of a PyTorch model, for places without PyTorch."""
    with np.load(GOLDEN / name / "model_state.npz") as arrays:
        return dict(arrays)


def save_torch(arrays, path):
    """Writes a file of PyTorch: they are pickles, so none is kept here."""
    torch = pytest.importorskip("torch")
    torch.save({name: torch.tensor(a) for name, a in arrays.items()}, path)
    return path


def load_tied(arrays, config):
    """`load_arrays` of tied tables, of which the arrays hold one."""
    table = arrays["word_emb.emb_layers.0.weight"]
    return load_arrays({**arrays, "crit.out_layers.0.weight": table}, config)


def load_arrays(arrays, config, **overrides):
    """`load_pytorch`, without PyTorch and its file."""
    shapes = {name: array.shape for name, array in arrays.items()}
    tensors = Tensors(
        shapes,
        arrays.__getitem__,
        sum(array.nbytes for array in arrays.values()),
    )
    return from_tensors(tensors, config, "the arrays", overrides=overrides)
