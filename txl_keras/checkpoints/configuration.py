"""Configurations in the words of the original implementations."""

import warnings

from txl_keras.json_files import read_json
from txl_keras.models.transformer_xl_backbone import TransformerXLBackbone
from txl_keras.models.transformer_xl_causal_lm import TransformerXLCausalLM

# Sizes, which every configuration must tell: their word, and ours.
_SIZES = {
    "n_token": "vocabulary_size",
    "n_layer": "num_layers",
    "n_head": "num_heads",
    "d_model": "hidden_dim",
    "d_head": "head_dim",
    "d_inner": "intermediate_dim",
    "mem_len": "memory_length",
}
# What may be left out, and what the originals then take.
_DEFAULTS = {
    "d_embed": None,
    "cutoffs": (),
    "div_val": 1,
    "same_length": False,
    "clamp_len": -1,
    "dropout": 0.0,
    "dropatt": 0.0,
}
# What tells about training or evaluation, not about the model.
_IRRELEVANT = {
    "adapt_inp",
    "batch_size",
    "dtype",
    "init",
    "init_range",
    "init_std",
    "num_segments",
    "proj_init_std",
    "tgt_len",
}
# Arguments of ours that may differ from the file's: no weight depends on them.
_OVERRIDES = (
    "memory_length",
    "clamp_length",
    "same_length",
    "dropout",
    "attention_dropout",
    "cold_start",
)


def read_config(config, overrides, defaults):
    """A configuration that is whole.

    Args:
        config: Dictionary, or the path of a JSON file that holds one.
        overrides: Dictionary, the arguments that a caller changes.
        defaults: Dictionary of what else this format knows, and what it takes
            where that is left out.

    Returns:
        Dictionary with all keys.

    Raises:
        ValueError: If keys are missing (the message names all), or an
            override is none.
    """
    source = "`config`"
    if not isinstance(config, dict):
        source, config = str(config), read_json(config)
    _check_overrides(overrides)
    defaults = {**_DEFAULTS, **defaults}
    if "memory_length" in overrides:
        defaults["mem_len"] = overrides["memory_length"]
    missing = [key for key in _SIZES if key not in {*config, *defaults}]
    if missing:
        raise ValueError(
            f"{source} must have the keys {missing}. Received: {sorted(config)}"
        )
    unknown = sorted(set(config) - {*_SIZES, *defaults, *_IRRELEVANT})
    if unknown:
        warnings.warn(f"{source}: {unknown} had no effect.", stacklevel=3)
    config = {**defaults, **config}
    wrong = [*_wrong_values(config)]
    if wrong:
        raise ValueError(f"{source} has wrong values: {'; '.join(wrong)}")
    return config


def _wrong_values(config):
    """What JSON lets through and no model can be built of."""
    for key in (*_SIZES, "div_val", "clamp_len"):
        if type(config[key]) is not int:
            yield f"{key} must be an integer, not {config[key]!r}"
    for key in ("same_length", "untie_r", "pre_lnorm", "proj_same_dim"):
        if config.get(key, False) not in (False, True):
            yield f"{key} must be true or false, not {config[key]!r}"
    for key in ("cutoffs", "tie_projs"):
        value = config.get(key, ())
        if value is not None and not isinstance(value, (list, tuple)):
            yield f"{key} must be a list, not {value!r}"


def _check_overrides(overrides):
    """Checks what a caller of a loader changes.

    Raises:
        ValueError: If the weights do depend on it.
    """
    unknown = sorted(set(overrides) - set(_OVERRIDES))
    if unknown:
        raise ValueError(
            f"Only {_OVERRIDES} may be other than in the checkpoint. "
            f"Received: {unknown}"
        )


def build_model(
    config, overrides, dtype, tie_embeddings, tie_projections, **arguments
):
    """A model of a configuration, with fresh weights.

    Args:
        config: Dictionary from `read_config`.
        overrides: Dictionary of arguments of `TransformerXLBackbone`; they
            win over all others.
        dtype: Optional dtype policy.
        tie_embeddings: Boolean.
        tie_projections: Booleans; clusters beyond them are not tied.
        **arguments: Of `TransformerXLBackbone`, what each format says
            differently.

    Returns:
        `TransformerXLCausalLM`.

    Raises:
        ValueError: If the arguments make no model.
    """
    clamp_length = config["clamp_len"]
    arguments = {
        **{ours: config[theirs] for theirs, ours in _SIZES.items()},
        "embedding_dim": config["d_embed"],
        "cutoffs": config["cutoffs"],
        "div_val": config["div_val"],
        "clamp_length": clamp_length if clamp_length > 0 else None,
        "dropout": config["dropout"],
        "attention_dropout": config["dropatt"],
        **arguments,
        **overrides,
    }
    if arguments["same_length"] == "pytorch" and not arguments["memory_length"]:
        raise ValueError(
            "With `same_length` the original PyTorch code lets a token see as "
            "many keys as memory is long, itself among them: none without "
            "memory. Received: memory_length=0"
        )
    num_clusters = len(config["cutoffs"]) + 1
    ties = [bool(tie) for tie in tie_projections][:num_clusters]
    return TransformerXLCausalLM(
        TransformerXLBackbone(dtype=dtype, **arguments),
        tie_embeddings=bool(tie_embeddings),
        tie_projections=ties + [False] * (num_clusters - len(ties)),
    )
