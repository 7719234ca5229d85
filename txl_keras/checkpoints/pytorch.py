"""Imports checkpoints of the original PyTorch code and of NVIDIA's.

Files of `torch.save` are read without PyTorch.
"""

import os

import keras
import ml_dtypes  # noqa: F401, makes bfloat16 known to NumPy
import numpy as np

from txl_keras.checkpoints import safe_pickle
from txl_keras.checkpoints.configuration import read_config
from txl_keras.checkpoints.transformer_xl import NVIDIA
from txl_keras.checkpoints.transformer_xl import ORIGINAL
from txl_keras.checkpoints.transformer_xl import load_model
from txl_keras.checks import shown
from txl_keras.tensor_files import Tensors
from txl_keras.types import DType
from txl_keras.types import PathLike

# Limits for a model that was saved whole; only a malicious file exceeds them.
_MAX_MODULES = 1 << 16
_MAX_NAME = 1000
# Names in the pickles of the original code's models; none of them is imported
# or called.
_NAMES = (
    r"torch\.[\w.]+|argparse\.Namespace|mem_transformer\.\w+"
    r"|(utils\.)?(vocabulary|proj_adaptive_softmax)\.\w+"
)


def load_pytorch(
    path: PathLike,
    config: dict | None = None,
    dtype: DType | None = None,
    **overrides,
) -> keras.Model:
    """Loads a checkpoint of the original PyTorch code or of NVIDIA's.

    The file may hold a state dict, the whole model (`torch.save(model)`, as in
    the original code), or NVIDIA's dictionary with the configuration. No
    pickled code is executed. As in the original, memory starts empty.

    Args:
        path: String or path of the file. PyTorch is not needed.
        config: As in `load_tf1`, optionally with `tie_weight`, `pre_lnorm` and
            `attn_type`. Optional if the file contains it.
        dtype, **overrides: See `load_tf1`.

    Returns:
        `TransformerXLCausalLM`.

    Example, with files that are not part of the package:

    ```
    model = load_pytorch("model_state.pt", "config.json", memory_length=1600)
    ```
    """
    state, storages = load_torch(path)
    if isinstance(state, dict) and "model_state" in state:
        # Accept no path from the file: `read_config` would open it.
        if not config and isinstance(state.get("model_config"), dict):
            config = state["model_config"]
        state = state["model_state"]
    if config is None:
        raise ValueError(
            f"`config` must be passed, since {path} holds no configuration: "
            "the arguments that the model was created with. Received: "
            "config=None"
        )
    tensors = torch_tensors(state, storages, path)
    return from_tensors(tensors, config, path, dtype, overrides)


def from_tensors(tensors, config, source, dtype=None, overrides=None):
    """Builds the model of `Tensors`: see `load_pytorch`."""
    overrides = overrides or {}
    config = read_config(config, overrides)
    is_nvidia = "crit.out_layers_biases.0" in tensors
    kind = NVIDIA if is_nvidia else ORIGINAL
    return load_model(config, overrides, dtype, tensors, source, kind)


def load_torch(path):
    """Returns the object in a file of `torch.save`, and its storages by key."""
    if not os.path.isfile(path):
        raise FileNotFoundError(f"There is no file {path}.")
    try:
        loaded, places = safe_pickle.load(path, _NAMES, has_storages=True)
    except ValueError as error:
        raise ValueError(
            f"{path} cannot be read: {error} If you trust the file, save only "
            "its tensors: `torch.save(model.state_dict(), path)`."
        ) from error
    # Bytes are read when they are used.
    data = np.memmap(path, np.uint8, "r")
    storages = {key: data[start:end] for key, (start, end) in places.items()}
    if isinstance(loaded, dict) and "_modules" in loaded:
        loaded = _state_dict(loaded, path)
    return loaded, storages


def _state_dict(module, path):
    """Collects the tensors of a module that was saved whole, by name."""
    modules, tensors, count = [("", module)], {}, 0
    while modules:
        prefix, module = modules.pop()
        count += 1
        names = "_parameters", "_buffers", "_modules"
        state = module if isinstance(module, dict) else {}
        *parts, children = map(state.get, names)
        if any(not isinstance(part, dict) for part in (*parts, children)):
            raise ValueError(
                f"{path} must hold a module or a state dict: tensors by name. "
                f"Received: {shown(module)} at {shown(prefix)}"
            )
        if count > _MAX_MODULES or len(prefix) > _MAX_NAME:
            raise ValueError(
                f"{path} was refused: its modules contain each other"
            )
        for name, tensor in (item for part in parts for item in part.items()):
            if tensor is not None:
                tensors[f"{prefix}{name}"] = tensor
        for name, child in children.items():
            if child is not None:
                modules.append((f"{prefix}{name}.", child))
    return tensors


def torch_tensors(state, storages, path):
    """Returns the `Tensors` of a state dict that `load_torch` returned."""
    arrays = {}
    for name, tensor in getattr(state, "items", list)():
        try:
            arrays[str(name)] = _array(tensor, storages)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(
                f"{path} must hold a state dict: tensors by name. Received: "
                f"{shown(name)}, which cannot be read: {error}"
            ) from error
    # torch.nn.DataParallel adds this prefix to all names.
    if all(name.startswith("module.") for name in arrays):
        arrays = {name.removeprefix("module."): x for name, x in arrays.items()}
    return Tensors(
        {name: array.shape for name, array in arrays.items()},
        arrays.__getitem__,
        min(sum(map(len, storages.values())), os.path.getsize(path)),
    )


def _array(tensor, storages):
    """Returns an array of a tensor, without a copy."""
    if not isinstance(tensor, tuple):
        raise ValueError(f"a {type(tensor).__name__} that is not a tensor")
    dtype, key, offset, shape, strides = tensor
    if (dtype,) not in {names[:1] for names in safe_pickle.DTYPES.values()}:
        raise ValueError("expected a storage")
    if {*map(type, (offset, *shape, *strides))} != {int} or offset < 0:
        raise ValueError("expected integers for sizes")
    dtype = np.dtype(dtype)
    # Raises an error if the tensor exceeds the buffer.
    return np.ndarray(
        shape,
        dtype,
        storages[key],
        offset * dtype.itemsize,
        [stride * dtype.itemsize for stride in strides],
    )
