"""Import of checkpoints of the original PyTorch code and of NVIDIA's."""

from txl_keras.checkpoints.configuration import raise_found
from txl_keras.checkpoints.configuration import read_config
from txl_keras.checkpoints.configuration import sampled_softmax
from txl_keras.checkpoints.torch_files import load_torch
from txl_keras.checkpoints.torch_files import torch_tensors
from txl_keras.checkpoints.transformer_xl_layout import NVIDIA
from txl_keras.checkpoints.transformer_xl_layout import ORIGINAL
from txl_keras.checkpoints.transformer_xl_layout import load_model
from txl_keras.layers.decoder_block import ABSOLUTE_TYPES

_DEFAULTS = {
    "attn_type": 0,
    "ext_len": 0,
    "pre_lnorm": False,
    "sample_softmax": -1,
    "tie_projs": (),
    "tie_weight": True,
}
_ATTENTION_TYPES = {0: "relative", 1: "shaw", 2: "vaswani", 3: "al_rfou"}


def load_pytorch(path, config=None, dtype=None, **overrides):
    """Loads a checkpoint of the original PyTorch code or of NVIDIA's.

    The file may hold a state dict, the whole model (`torch.save(model)`, as
    the original code does), or NVIDIA's dictionary with the configuration. No
    pickled code is executed. As in the original, memory starts empty.

    Args:
        path: String or path of the file. PyTorch is not needed.
        config: Dictionary with the keys of the original, or the path of a JSON
            file with one: `n_token`, `n_layer`, `n_head`, `d_model`, `d_head`,
            `d_inner`, `mem_len`, and, if they differ from the original's
            defaults, `d_embed`, `cutoffs`, `div_val`, `tie_weight`,
            `tie_projs`, `pre_lnorm`, `same_length`, `attn_type`, `clamp_len`.
            Optional if the file contains it.
        dtype: Optional dtype policy, such as `"mixed_bfloat16"`.
        **overrides: `memory_length`, `clamp_length`, `same_length`, `dropout`,
            `attention_dropout` or `cold_start`, to replace the value of the
            configuration.

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
    config = read_config(config, overrides, _DEFAULTS)
    # NVIDIA's code names tensors differently, and with `same_length` counts
    # keys as the TensorFlow code does.
    is_nvidia = "crit.out_layers_biases.0" in tensors
    same_length = True if is_nvidia else "pytorch"
    _check_supported(config, overrides)
    return load_model(
        config,
        overrides,
        dtype,
        tensors,
        source,
        NVIDIA if is_nvidia else ORIGINAL,
        tie_embeddings=config["tie_weight"],
        tie_projections=config["tie_projs"],
        attention_type=_ATTENTION_TYPES[config["attn_type"]],
        # The file determines the number of learned positions.
        max_positions=(*tensors.shapes.get("r_emb", ()), 1, 1)[1],
        normalize_first=bool(config["pre_lnorm"]),
        same_length=same_length if config["same_length"] else False,
    )


def _check_supported(config, overrides):
    attention_type = _ATTENTION_TYPES.get(config["attn_type"])
    is_absolute = attention_type in ABSOLUTE_TYPES
    memory_length = overrides.get("memory_length", config["mem_len"])
    heads = config["n_head"] * config["d_head"]
    problems = {
        f"attn_type={config['attn_type']}: must be one of "
        f"{[*_ATTENTION_TYPES]}": attention_type is None,
        **sampled_softmax(config),
        f"ext_len={config['ext_len']}: must be 0, since an extended context is "
        "not supported": config["ext_len"] > 0,
        "pre_lnorm with absolute positions: the original normalizes the keys, "
        "but not the queries": is_absolute and config["pre_lnorm"],
        f"mem_len={memory_length} with absolute positions, which exist only "
        "within a segment: pass memory_length=0": is_absolute and memory_length,
        f"n_head * d_head = {heads} with attn_type=3: learned positions must "
        f"be of size d_model={config['d_model']}": (
            attention_type == "al_rfou" and heads != config["d_model"]
        ),
    }
    raise_found("The configuration has unsupported settings:", problems)
