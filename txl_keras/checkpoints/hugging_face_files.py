"""Files in folders that Hugging Face's `save_pretrained` wrote."""

from txl_keras.checkpoints.torch_files import load_torch
from txl_keras.checkpoints.torch_files import torch_tensors
from txl_keras.checks import shown
from txl_keras.json_files import read_json
from txl_keras.tensor_files import read_safetensors


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
    """Returns the `Tensors` of a folder."""
    # In the order of preference, as in the transformers library.
    path = folder / "model.safetensors"
    if path.is_file():
        return read_safetensors(path)
    path = folder / "pytorch_model.bin"
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} must hold model.safetensors or pytorch_model.bin."
        )
    return torch_tensors(*load_torch(path), path)
