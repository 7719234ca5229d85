"""Checkpoints of the original PyTorch code, and of NVIDIA's."""

from txl_keras.checkpoints.configuration import Plan
from txl_keras.checkpoints.configuration import read_config
from txl_keras.checkpoints.layout import read
from txl_keras.checkpoints.torch_files import load_torch
from txl_keras.checkpoints.torch_files import torch_tensors
from txl_keras.checkpoints.torch_layout import NVIDIA
from txl_keras.checkpoints.torch_layout import ORIGINAL
from txl_keras.checkpoints.torch_layout import torch_layout
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

    The file may hold a state dict, the whole model (`torch.save(model)`, which
    the original does), or NVIDIA's dictionary with the model's configuration.
    Nothing in it is run. Memory starts empty, as it did there.

    Args:
        path: String or path of the file. PyTorch is not needed.
        config: Dictionary in the original's words, or the path of a JSON file
            with one: `n_token`, `n_layer`, `n_head`, `d_model`, `d_head`,
            `d_inner`, `mem_len`, and, where they are not the original's
            defaults, `d_embed`, `cutoffs`, `div_val`, `tie_weight`,
            `tie_projs`, `pre_lnorm`, `same_length`, `attn_type`, `clamp_len`.
            May be left out where the file has it.
        dtype: Optional dtype policy, such as `"mixed_bfloat16"`.
        **overrides: `memory_length`, `clamp_length`, `same_length`,
            `dropout`, `attention_dropout` or `cold_start`, where the model is
            to be used otherwise than the configuration says.

    Returns:
        `TransformerXLCausalLM`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged or names code, the configuration
            is missing, lacks keys or is of a kind that is not supported, or
            it does not fit the file; the message lists all that does not.

    Example, of files that the package does not have:

    ```
    model = load_pytorch("model_state.pt", "config.json", memory_length=1600)
    ```
    """
    state = load_torch(path)
    if isinstance(state, dict) and "model_state" in state:
        # Of the file nothing but a dictionary: a path would be read.
        if not config and isinstance(state.get("model_config"), dict):
            config = state["model_config"]
        state = state["model_state"]
    if config is None:
        raise ValueError(
            f"{path} holds no configuration, so `config` must be passed: the "
            "arguments that the model was made with. Received: config=None"
        )
    tensors = torch_tensors(state, path)
    return from_tensors(tensors, config, path, dtype, overrides)


def from_tensors(tensors, config, source, dtype=None, overrides=None):
    """`load_pytorch`, of tensors by name.

    Args:
        tensors: `Tensors`.
        source: What to call them in an error.
        config, dtype, overrides: See `load_pytorch`.

    Returns:
        `TransformerXLCausalLM`.
    """
    overrides = overrides or {}
    config = read_config(config, overrides, _DEFAULTS)
    # NVIDIA's code has names of its own, and counts the keys of same_length
    # as the TensorFlow code does.
    is_nvidia = "crit.out_layers_biases.0" in tensors
    same_length = True if is_nvidia else "pytorch"
    _check_supported(config, overrides)
    plan = Plan(
        config,
        overrides,
        dtype,
        tensors,
        source,
        tie_embeddings=config["tie_weight"],
        tie_projections=config["tie_projs"],
        attention_type=_ATTENTION_TYPES[config["attn_type"]],
        # Learned positions: as many as there are, whatever the lengths.
        max_positions=(*tensors.shapes.get("r_emb", ()), 1, 1)[1],
        normalize_first=bool(config["pre_lnorm"]),
        same_length=same_length if config["same_length"] else False,
    )
    layout = torch_layout(plan, NVIDIA if is_nvidia else ORIGINAL)
    # The frequencies of the sinusoids are no weight.
    tensors = tensors.renamed(
        lambda name: None if name == "pos_emb.inv_freq" else name
    )
    return read(plan.build, layout, tensors, source)


def _check_supported(config, overrides):
    attention_type = _ATTENTION_TYPES.get(config["attn_type"])
    is_absolute = attention_type in ABSOLUTE_TYPES
    memory_length = overrides.get("memory_length", config["mem_len"])
    heads = config["n_head"] * config["d_head"]
    checks = [
        (
            attention_type is None,
            f"attn_type={config['attn_type']}: must be one of "
            f"{[*_ATTENTION_TYPES]}",
        ),
        (
            config["sample_softmax"] > 0,
            f"sample_softmax={config['sample_softmax']}: a sampled softmax "
            "has weights of its own",
        ),
        (
            config["ext_len"] > 0,
            f"ext_len={config['ext_len']}: here no token is read twice",
        ),
        (
            is_absolute and config["pre_lnorm"],
            "pre_lnorm with absolute positions: the original normalizes the "
            "keys, but not the queries",
        ),
        (
            is_absolute and memory_length,
            f"mem_len={memory_length} with absolute positions, which count "
            "from the segment: pass memory_length=0",
        ),
        (
            attention_type == "al_rfou" and heads != config["d_model"],
            f"n_head * d_head = {heads} with attn_type=3: learned positions "
            f"must be of size d_model={config['d_model']}",
        ),
    ]
    found = [problem for is_found, problem in checks if is_found]
    if found:
        raise ValueError(
            "The configuration asks for what is not supported:\n"
            + "\n".join(f"- {problem}" for problem in found)
        )
