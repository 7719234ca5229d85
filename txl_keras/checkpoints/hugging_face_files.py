"""Files in folders that Hugging Face's `save_pretrained` wrote."""

import math
import pathlib
import re

from txl_keras.checkpoints.layout import Tensors
from txl_keras.checkpoints.torch_files import load_torch
from txl_keras.checkpoints.torch_files import torch_tensors
from txl_keras.checks import shown
from txl_keras.json_files import MAX_BYTES
from txl_keras.json_files import open_checked
from txl_keras.json_files import read_json

# In the order of preference, as in the transformers library.
_FILES = ("model.safetensors", "pytorch_model.bin")


def config_path(folder):
    """Returns the path of `config.json`; raises an error if there is none."""
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            "`folder` must be a folder with config.json and the weights. "
            f"Received: folder={folder}"
        )
    return folder / "config.json"


def folder_tensors(folder):
    """Returns the `Tensors` of a folder, from one weight file or several."""
    files = [_file_tensors(path) for path in _weight_files(folder)]
    owners = {}
    for file in files:
        for name in file:
            if name in owners:
                raise ValueError(
                    f"{folder} must have each tensor in one file. Received: "
                    f"{shown(name)} in several"
                )
            owners[name] = file
    return Tensors(
        {name: file.shapes[name] for name, file in owners.items()},
        lambda name: owners[name][name],
        sum(file.num_bytes for file in files),
    )


def _weight_files(folder):
    for name in _FILES:
        if (folder / name).is_file():
            return [folder / name]
        index = folder / f"{name}.index.json"
        if index.is_file():
            return _shard_paths(index, pathlib.Path(name).suffix)
    raise FileNotFoundError(
        f"{folder} must hold one of {_FILES}, or an index of its shards"
    )


def _shard_paths(index, suffix):
    names = read_json(index).get("weight_map")
    names = names.values() if isinstance(names, dict) else [names]
    is_shard = re.compile(rf"[\w.-]+{re.escape(suffix)}").fullmatch
    if not names or not all(type(n) is str and is_shard(n) for n in names):
        raise ValueError(
            f"{index} must have a `weight_map` from tensors to files beside "
            f"it, *{suffix}. Received: {shown([*names])}"
        )
    return [index.parent / name for name in sorted(set(names))]


def _file_tensors(path):
    if path.suffix == ".bin":
        return torch_tensors(load_torch(path), path)
    safetensors = import_safetensors()
    with open_checked(path, math.inf) as file:
        size = int.from_bytes(file.read(8), "little")
    try:
        if size > MAX_BYTES:
            raise ValueError(f"its header has {size:,} bytes")
        file = safetensors.safe_open(path, framework="np")
        names = file.keys()
    except (safetensors.SafetensorError, ValueError) as error:
        raise ValueError(
            f"{path} cannot be read; it is damaged or cut short: {error}"
        ) from error
    slices = {name: file.get_slice(name) for name in names}

    def load(name):
        dtype = slices[name].get_dtype()
        # NumPy does not support all other dtypes.
        if dtype not in ("F64", "F32", "F16", "BF16"):
            raise ValueError(f"{name} must be of floats. Received: {dtype}")
        return file.get_tensor(name)

    return Tensors(
        {name: part.get_shape() for name, part in slices.items()},
        load,
        path.stat().st_size,
    )


def import_safetensors():
    """Imports safetensors; an error names the command that installs it."""
    try:
        import safetensors.numpy
    except ImportError as error:
        raise ImportError(
            "Reading and writing .safetensors files requires safetensors. "
            "Run `pip install safetensors`."
        ) from error
    return safetensors
