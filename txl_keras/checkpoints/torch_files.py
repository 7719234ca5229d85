"""A reader of files of `torch.save` that does not need PyTorch.

Such a file has a pickle, which `safe_pickle` reads, and the values of tensors.
"""

import os

import ml_dtypes  # noqa: F401, makes bfloat16 known to NumPy
import numpy as np

from txl_keras.checkpoints import safe_pickle
from txl_keras.checkpoints.safe_pickle import Record
from txl_keras.checks import shown
from txl_keras.tensor_files import Tensors

# Limits for a model that was saved whole; only a malicious file exceeds them.
_MAX_MODULES = 1 << 16
_MAX_NAME = 1000
_TENSORS = ("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2")
_PARAMETER = "torch._utils._rebuild_parameter"
# Names in the pickles of the original code's models, none of which is imported
# or called.
_NAMES = (
    r"torch\.[\w.]+|argparse\.Namespace|mem_transformer\.\w+"
    r"|(utils\.)?(vocabulary|proj_adaptive_softmax)\.\w+"
)


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
    if isinstance(loaded, Record):
        loaded = _state_dict(loaded, path)
    return loaded, storages


def _state_dict(module, path):
    """Collects the tensors of a module that was saved whole, by name."""
    modules, tensors, count = [("", module)], {}, 0
    while modules:
        prefix, module = modules.pop()
        count += 1
        state = getattr(module, "state", None)
        state = state if isinstance(state, dict) else {}
        *parts, children = (
            state.get(part) for part in ("_parameters", "_buffers", "_modules")
        )
        if any(not isinstance(part, dict) for part in (*parts, children)):
            raise ValueError(
                f"{path} must hold a module or a state dict: tensors by name. "
                f"Received: a {shown(getattr(module, 'name', module))} at "
                f"{shown(prefix)}"
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
    # What torch.nn.DataParallel puts before all names.
    if all(name.startswith("module.") for name in arrays):
        arrays = {name.removeprefix("module."): x for name, x in arrays.items()}
    return Tensors(
        {name: array.shape for name, array in arrays.items()},
        arrays.__getitem__,
        min(sum(map(len, storages.values())), os.path.getsize(path)),
    )


def _array(tensor, storages):
    """Returns an array of a tensor, without a copy."""
    if getattr(tensor, "name", None) == _PARAMETER:
        tensor = tensor.arguments[0]
    if getattr(tensor, "name", None) not in _TENSORS:
        raise ValueError(f"a {type(tensor).__name__} that is no tensor")
    storage, offset, shape, strides, *rest = tensor.arguments
    # The metadata, after `requires_grad` and hooks, may negate the values.
    if rest[2:] and rest[2]:
        raise ValueError(f"expected no metadata, not {shown(rest[2])}")
    if {*map(type, (offset, *shape, *strides))} != {int} or offset < 0:
        raise ValueError("expected integers for sizes")
    if getattr(storage, "name", None) not in safe_pickle.DTYPES:
        raise ValueError("expected a storage")
    dtype = np.dtype(safe_pickle.DTYPES[storage.name][0])
    # Raises an error if the tensor exceeds the buffer.
    return np.ndarray(
        shape,
        dtype,
        storages[storage.arguments[0]],
        offset * dtype.itemsize,
        [stride * dtype.itemsize for stride in strides],
    )
