"""Tiny random models and their outputs: see `testdata/golden`."""

import io
import json
import pathlib
import pickle
import shutil
import zipfile

import numpy as np
import pytest
from factories import assert_same
from safetensors.numpy import load_file
from safetensors.numpy import save_file

from txl_keras.checkpoints.pytorch import from_tensors
from txl_keras.tensor_files import Tensors

GOLDEN = pathlib.Path(__file__).parent.parent / "testdata" / "golden"


def zipped(*members, compression=zipfile.ZIP_STORED):
    """The bytes of an archive of names and contents."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


def torch_legacy(pickled):
    """A file as PyTorch wrote it before its archives."""
    sizes = {"little_endian": True, "type_sizes": {}}
    heads = [0x1950A86A20F9469CFC6C, 1001, sizes]
    return b"".join(pickle.dumps(head, 2) for head in heads) + pickled


def stored_config(name):
    """The configuration of a model, in the original's words."""
    return json.loads((GOLDEN / name / "config.json").read_text("utf-8"))


def copy_stored(name, folder):
    """Copies a model of Hugging Face to a folder, and returns the folder."""
    for file in ("config.json", "model.safetensors"):
        shutil.copy(GOLDEN / name / file, folder)
    return folder


def stored_arrays(name):
    """The state dict of a PyTorch model, for places without PyTorch."""
    with np.load(GOLDEN / name / "model_state.npz") as arrays:
        return dict(arrays)


def segments(tokens, length):
    """Inputs and targets of the segments of a text `(n + 1, B)`."""
    for start in range(0, len(tokens) - 1, length):
        end = start + length
        yield tokens[start:end].T, tokens[start + 1 : end + 1].T


def check_memory(memory, expected, atol=1e-5):
    """Compares with memory `(L or more, M or less, B, D)`."""
    for state, values in zip(memory.states, expected, strict=False):
        values = values.transpose(1, 0, 2)
        np.testing.assert_allclose(
            state[:, -values.shape[1] :], values, atol=atol
        )


def save_torch(arrays, path):
    """Writes a file of PyTorch: they are pickles, so none is kept here."""
    torch = pytest.importorskip("torch")
    torch.save({name: torch.tensor(a) for name, a in arrays.items()}, path)
    return path


def change_tensors(folder, change):
    """Replaces the tensors of a folder by what a function makes of them."""
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path)


def assert_same_weights(model, expected):
    assert_same(model.get_weights(), expected.get_weights())


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


def save_tf1(tensors, prefix):
    """Writes a checkpoint of TensorFlow 1 with tensors by their names."""
    import tensorflow as tf

    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=list(tensors.values()),
    )
