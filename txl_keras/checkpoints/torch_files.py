"""A reader of files of `torch.save` that does not need PyTorch.

Such a file has a pickle, which `safe_pickle` reads, and the values of tensors.
"""

import operator
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
# What torch.nn.DataParallel and torch.compile put before the names of tensors.
_WRAPPERS = ("module.", "_orig_mod.")
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
    except safe_pickle.RefusedError as error:
        raise ValueError(
            f"{path} was refused: {error} If you trust the model, save only "
            "its tensors: `torch.save(model.state_dict(), path)`."
        ) from None
    except ValueError as error:
        raise ValueError(
            f"{path} cannot be read; it is damaged, cut short, or not a file "
            f"of PyTorch: {error}"
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
        state = module.state if isinstance(module, Record) else None
        parts = [
            state.get(part) if isinstance(state, dict) else None
            for part in ("_parameters", "_buffers", "_modules")
        ]
        if any(not isinstance(part, dict) for part in parts):
            raise ValueError(
                f"{path} must hold a module or a state dict: tensors by name. "
                f"Received: a {shown(getattr(module, 'name', module))} at "
                f"{shown(prefix)}"
            )
        if count > _MAX_MODULES or len(prefix) > _MAX_NAME:
            raise ValueError(
                f"{path} was refused: its modules contain each other"
            )
        parameters, buffers, children = parts
        for name, tensor in {**parameters, **buffers}.items():
            if tensor is not None:
                tensors[f"{prefix}{name}"] = tensor
        for name, child in children.items():
            if child is not None:
                modules.append((f"{prefix}{name}.", child))
    return tensors


def torch_tensors(state, storages, path):
    """Returns the `Tensors` of a state dict that `load_torch` returned."""
    received = [type(state).__name__]
    if isinstance(state, dict):
        received = sorted({_kind(*item) for item in state.items()})
    if received != ["tensor"]:
        raise ValueError(
            f"{path} must hold a state dict: tensors by name. "
            f"Received: {shown(received)}"
        )
    arrays = {}
    for name, tensor in state.items():
        try:
            arrays[name] = _array(tensor, storages)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(
                f"{path} cannot be read: the tensor {shown(name)} is damaged: "
                f"{error}"
            ) from error
    return unwrapped(
        Tensors(
            {name: array.shape for name, array in arrays.items()},
            arrays.__getitem__,
            min(sum(map(len, storages.values())), os.path.getsize(path)),
        )
    )


def unwrapped(tensors):
    """Removes the prefix that a wrapper, such as DataParallel, adds."""
    for prefix in _WRAPPERS:
        if all(name.startswith(prefix) for name in tensors):
            rename = operator.methodcaller("removeprefix", prefix)
            tensors = tensors.renamed(rename)
    return tensors


def _kind(name, value):
    if not isinstance(value, Record) or not value.arguments:
        return type(value).__name__
    if not isinstance(name, str) or value.name not in (*_TENSORS, _PARAMETER):
        return value.name
    return "tensor"


def _array(tensor, storages):
    """Returns an array of a tensor, without a copy."""
    if tensor.name == _PARAMETER:
        tensor = tensor.arguments[0]
    if not isinstance(tensor, Record) or tensor.name not in _TENSORS:
        raise ValueError("it holds no tensor")
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
