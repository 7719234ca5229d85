"""Files in folders that Hugging Face's `save_pretrained` wrote."""

import pathlib
import re

from txl_keras.checkpoints.torch_files import load_torch
from txl_keras.checkpoints.torch_files import torch_tensors
from txl_keras.checkpoints.torch_files import unwrapped
from txl_keras.checks import shown
from txl_keras.json_files import read_json
from txl_keras.tensor_files import Tensors
from txl_keras.tensor_files import read_safetensors

# In the order of preference, as in the transformers library.
_FILES = ("model.safetensors", "pytorch_model.bin")


def folder_config(folder, model_type, known):
    """Returns the known keys of a folder's configuration, and its path."""
    path = folder / "config.json"
    config = read_json(path)
    if config.get("model_type", model_type) != model_type:
        raise ValueError(
            f"{path} must be of model_type {model_type!r}. Received: "
            f"{shown(config['model_type'])}"
        )
    if "vocab_size" in config:
        config["n_token"] = config["vocab_size"]
    # Most other keys are options of generation.
    return {key: config[key] for key in {*known} & {*config}}, path


def folder_tensors(folder):
    """Returns the `Tensors` of a folder, from one weight file or several."""
    files = [
        torch_tensors(*load_torch(path), path)
        if path.suffix == ".bin"
        else read_safetensors(path)
        for path in _weight_files(folder)
    ]
    owners = {}
    for file in files:
        for name in file:
            if name in owners:
                raise ValueError(
                    f"{folder} must have each tensor in one file. Received: "
                    f"{shown(name)} in several"
                )
            owners[name] = file
    return unwrapped(
        Tensors(
            {name: file.shapes[name] for name, file in owners.items()},
            lambda name: owners[name][name],
            sum(file.num_bytes for file in files),
        )
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
