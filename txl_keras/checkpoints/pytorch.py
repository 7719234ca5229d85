"""Imports checkpoints of the original PyTorch code and of NVIDIA's."""

import keras

from txl_keras.checkpoints.configuration import read_config
from txl_keras.checkpoints.torch_files import load_torch
from txl_keras.checkpoints.torch_files import torch_tensors
from txl_keras.checkpoints.transformer_xl import NVIDIA
from txl_keras.checkpoints.transformer_xl import ORIGINAL
from txl_keras.checkpoints.transformer_xl import load_model
from txl_keras.types import DType
from txl_keras.types import PathLike


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
