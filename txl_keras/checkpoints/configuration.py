"""Configurations of the original implementations, checked and converted."""

import functools
import math
import warnings

from txl_keras.checks import check_dropout
from txl_keras.checks import check_integer
from txl_keras.checks import check_number
from txl_keras.checks import check_one_of
from txl_keras.checks import shown
from txl_keras.json_files import read_json
from txl_keras.models.transformer_xl_backbone import TransformerXLBackbone
from txl_keras.models.transformer_xl_causal_lm import TransformerXLCausalLM
from txl_keras.weights import build_in_graph
from txl_keras.weights import build_undrawn

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
# Optional keys, with the values for an original that lacks the option.
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
# Arguments that a caller may change, since no weight depends on them.
_OVERRIDES = (
    "memory_length",
    "clamp_length",
    "same_length",
    "dropout",
    "attention_dropout",
    "cold_start",
)
# The originals use three.
_MAX_CUTOFFS = 100
# Limit for the memory of one text. The largest published model needs 373 MB.
_MAX_MEMORY_BYTES = 1 << 30


def _check_list(key, value):
    if not isinstance(value, (list, tuple)) or len(value) > _MAX_CUTOFFS:
        raise ValueError(
            f"`{key}` must be a list of at most {_MAX_CUTOFFS}, "
            f"not {shown(value)}"
        )
    for item in value:
        check_integer(key, int(item) if item in (0, 1) else item, 0)


def _integer(minimum):
    limits = {"minimum": minimum, "maximum": 2**31 - 1}
    return functools.partial(check_integer, **limits)


_CHECKS = {
    key: check
    for check, keys in (
        (_integer(1), {*SIZES, "d_embed", "div_val"} - {"mem_len"}),
        (_integer(0), {"attn_type", "mem_len", "reuse_len"}),
        (_integer(-1), {"clamp_len", "ext_len", "sample_softmax"}),
        (_check_list, {"cutoffs", "tie_projs"}),
        (
            functools.partial(check_one_of, known=(False, True)),
            {"bi_data", "pre_lnorm", "proj_same_dim", "same_length"}
            | {"proj_share_all_but_first", "tie_weight", "untie_r"}
            | {"tie_word_embeddings"},
        ),
        (check_dropout, {"dropout", "dropatt"}),
        (
            functools.partial(check_number, minimum=0),
            {"initializer_range", "layer_norm_epsilon", "layer_norm_eps"},
        ),
    )
    for key in keys
}


def _check_values(config, source):
    """Checks the values of a configuration; one error names all wrong ones."""
    wrong = []
    for key in sorted(_CHECKS.keys() & config):
        try:
            if config[key] is not None:
                _CHECKS[key](key, config[key])
        except ValueError as error:
            wrong.append(str(error))
    if wrong:
        raise ValueError(f"{source} has wrong values: {' '.join(wrong)}")


def check_sizes(config, tensors, overrides, source):
    """Checks, before memory is allocated, that a file can have these sizes."""
    for key in sorted(SIZES.keys() - {"mem_len"}):
        limit = len(tensors) if key == "n_layer" else tensors.num_bytes
        if (config[key] or 0) > limit:
            raise ValueError(
                f"{source} does not fit its configuration, {key}="
                f"{config[key]}: it has {tensors.num_bytes:,} bytes in "
                f"{len(tensors):,} tensors."
            )
    sizes = {key: config[key] for key in ("mem_len", "n_layer", "d_model")}
    if "memory_length" in overrides:
        return
    if 4 * math.prod(sizes.values()) > _MAX_MEMORY_BYTES:
        raise ValueError(
            f"`mem_len` of {source} must be small enough that the memory of "
            f"one text takes at most {_MAX_MEMORY_BYTES:,} bytes. Pass "
            "`memory_length` to replace it. Received: "
            + ", ".join(f"{key}={value}" for key, value in sizes.items())
        )


def sized_arguments(config):
    """Returns arguments of all backbones for a configuration."""
    clamp_length = config["clamp_len"]
    return {
        **{name: config[key] for key, name in SIZES.items()},
        "clamp_length": clamp_length if clamp_length > 0 else None,
        "dropout": config["dropout"],
    }


def read_config(
    config, overrides, source="`config`", defaults=(), allowed=_OVERRIDES
):
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
    unknown = sorted(set(overrides) - set(allowed))
    if unknown:
        raise ValueError(
            f"Only {allowed} can differ from the checkpoint, since weights "
            f"depend on the other arguments. Received: {unknown}"
        )
    defaults = {**DEFAULTS, **dict(defaults)}
    if "memory_length" in overrides:
        defaults["mem_len"] = overrides["memory_length"]
    missing = [key for key in SIZES if key not in {*config, *defaults}]
    if missing:
        raise ValueError(
            f"{source} must have the keys {missing}. "
            f"Received: {shown(sorted(config))}"
        )
    known = {*SIZES, *defaults}
    unknown = sorted(set(config) - known - _IRRELEVANT)
    if unknown:
        warnings.warn(
            f"{source}: the keys {shown(unknown)} have no effect.",
            stacklevel=3,
        )
    config = {key: config[key] for key in known & {*config}}
    config = {**defaults, **config}
    _check_values(config, source)
    return config


def raise_found(message, problems):
    """Raises `ValueError` that lists the problems that are true, if any is."""
    found = [f"- {text}" for text, is_found in problems.items() if is_found]
    if found:
        raise ValueError("\n".join([message, *found]))


def _check_supported(config, naming, arguments):
    memory_length = arguments["memory_length"]
    attn_type = config["attn_type"]
    is_absolute = attn_type in (2, 3)
    heads = config["n_head"] * config["d_head"]
    raise_found(
        "The configuration has settings that are not supported, or that the "
        "original code ignores:",
        {
            f"attn_type={attn_type}: must be below {naming.attention_types}": (
                attn_type >= naming.attention_types
            ),
            f"sample_softmax={config['sample_softmax']}: must not be positive, "
            "since a sampled softmax has other weights": (
                config["sample_softmax"] > 0
            ),
            f"ext_len={config['ext_len']}: must be 0, since an extended "
            "context is not supported": config["ext_len"] > 0,
            "pre_lnorm with absolute positions: the original normalizes the "
            "keys, but not the queries": is_absolute and config["pre_lnorm"],
            f"mem_len={memory_length} with absolute positions, which exist "
            "only within a segment: pass memory_length=0": (
                is_absolute and memory_length
            ),
            "mem_len=0 with `same_length`: in the original PyTorch code a "
            "token attends to mem_len keys, itself included, so to none "
            "without memory: pass `memory_length`": (
                arguments["same_length"] == "pytorch" and not memory_length
            ),
            f"n_head * d_head = {heads} with attn_type=3: learned positions "
            f"must be of size d_model={config['d_model']}": (
                attn_type == 3 and heads != config["d_model"]
            ),
        },
    )


def plan_model(config, overrides, naming, tensors, dtype):
    """Plans a `TransformerXLCausalLM`; returns sizes and a way to build it."""
    arguments = {
        **sized_arguments(config),
        "embedding_dim": config["d_embed"],
        "cutoffs": config["cutoffs"],
        "div_val": config["div_val"],
        "attention_dropout": config["dropatt"],
        # The file determines the number of learned positions.
        "max_positions": (*tensors.shapes.get("r_emb", ()), 1, 1)[1],
        "normalize_first": bool(config["pre_lnorm"]),
        "project_same_dim": bool(config["proj_same_dim"]),
        "same_length": bool(config["same_length"]) and naming.same_length,
        "tie_attention_biases": not config["untie_r"],
        "layer_norm_epsilon": config["layer_norm_epsilon"],
        "cold_start": naming.cold_start,
        # That of the backbone, which `build_undrawn` replaces for a while.
        "initializer_stddev": 0.02,
        **overrides,
    }
    _check_supported(config, naming, arguments)
    arguments["attention_type"] = ATTENTION_TYPES[config["attn_type"]]
    clusters = len(config["cutoffs"]) + 1
    tie_projections = config["tie_projs"]
    if tie_projections is None:
        shared = config["proj_share_all_but_first"]
        tie_projections = [False] + [shared] * clusters
    # Clusters beyond `tie_projections` are not tied.
    ties = [*map(bool, tie_projections), *[False] * clusters][:clusters]

    def build(**changes):
        backbone = TransformerXLBackbone(dtype=dtype, **(arguments | changes))
        tie_embeddings = bool(config["tie_weight"])
        return TransformerXLCausalLM(backbone, tie_embeddings, ties)

    # All layers have the sizes of one.
    sizes = build_in_graph(lambda: build(num_layers=1))
    sizes.backbone.num_layers = config["n_layer"]
    return sizes, functools.partial(build_undrawn, build, arguments)
