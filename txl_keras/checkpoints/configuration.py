"""Configurations of the original implementations, checked and converted."""

import warnings

from txl_keras.checks import check_integer
from txl_keras.checks import shown
from txl_keras.json_files import read_json

# Keys that every configuration must have, and our arguments for them.
SIZES = {
    "n_token": "vocabulary_size",
    "n_layer": "num_layers",
    "n_head": "num_heads",
    "d_model": "hidden_dim",
    "d_head": "head_dim",
    "d_inner": "intermediate_dim",
    "mem_len": "memory_length",
}
# Optional keys, with the values for originals that lack the option.
DEFAULTS = {
    "attn_type": 0,
    "clamp_len": -1,
    "cutoffs": (),
    "d_embed": None,
    "div_val": 1,
    "dropatt": 0.0,
    "dropout": 0.0,
    "ext_len": 0,
    "layer_norm_epsilon": 1e-5,
    "pre_lnorm": False,
    "proj_same_dim": True,
    "proj_share_all_but_first": False,
    "same_length": False,
    "sample_softmax": -1,
    "tie_projs": None,
    "tie_weight": True,
    "untie_r": False,
}
# Keys of training or evaluation, which do not affect the model.
_IRRELEVANT = {
    *("adapt_inp", "batch_size", "dtype", "init", "init_range", "init_std"),
    *("num_segments", "proj_init_std", "tgt_len"),
}
ATTENTION_TYPES = ("relative", "shaw", "vaswani", "al_rfou")  # by attn_type
_MAX_CUTOFFS = 100  # the originals use three
_MAX_PROBLEMS = 50  # listed in an error


def read_config(config, overrides, source="`config`", defaults=()):
    """Reads a dictionary or JSON file, checks it and adds defaults."""
    if not isinstance(config, dict):
        source, config = str(config), read_json(config)
    config = {
        key: value
        for key, value in config.items()
        # A value of None counts as missing. A pickled dictionary may have keys
        # that are not strings.
        if isinstance(key, str) and value is not None
    }
    defaults = {**DEFAULTS, **dict(defaults)}
    if "memory_length" in overrides:
        config["mem_len"] = overrides["memory_length"]
    missing = [key for key in SIZES if key not in {*config, *defaults}]
    if missing:
        raise ValueError(
            f"{source} must have the keys {missing}. "
            f"Received: {shown(sorted(config))}"
        )
    unknown = sorted(set(config) - {*SIZES, *defaults} - _IRRELEVANT)
    if unknown:
        warnings.warn(
            f"{source}: the keys {shown(unknown)} have no effect.",
            stacklevel=3,
        )
    config = {**defaults, **config}
    # The constructor of the backbone checks the rest.
    for key in ("clamp_len", "d_embed", *SIZES):
        if config[key] is not None:
            least = {"clamp_len": -1, "mem_len": 0}.get(key, 1)
            check_integer(key, config[key], least, 2**31 - 1)
    return config


def check_sizes(config, tensors, source):
    """Checks, before a model is built, that a file can have these sizes."""
    cutoffs = config["cutoffs"]
    if not isinstance(cutoffs, (list, tuple)) or len(cutoffs) > _MAX_CUTOFFS:
        raise ValueError(
            f"`cutoffs` must be a list of at most {_MAX_CUTOFFS}. Received: "
            f"cutoffs={shown(cutoffs)}"
        )
    for key in sorted(SIZES.keys() - {"mem_len"}):
        limit = len(tensors) if key == "n_layer" else tensors.num_bytes
        if (config[key] or 0) > limit:
            raise ValueError(
                f"{source} does not fit its configuration, {key}="
                f"{config[key]}: it has {tensors.num_bytes:,} bytes in "
                f"{len(tensors):,} tensors."
            )


def sized_arguments(config):
    """Returns arguments of all backbones for a configuration."""
    clamp_length = config["clamp_len"]
    return {
        **{name: config[key] for key, name in SIZES.items()},
        "clamp_length": clamp_length if clamp_length > 0 else None,
        "dropout": config["dropout"],
    }


def raise_found(message, problems):
    """Raises `ValueError` that lists the problems that were found, if any."""
    found = [f"- {text[:300]}" for text, is_true in problems.items() if is_true]
    if len(found) > _MAX_PROBLEMS:
        found[_MAX_PROBLEMS:] = [f"- and {len(found) - _MAX_PROBLEMS} more"]
    if found:
        raise ValueError("\n".join([message, *found]))
