"""Configurations of the original implementations, checked and converted."""

import functools
import inspect
import math
import types
import warnings

from txl_keras.checks import check_dropout
from txl_keras.checks import check_integer
from txl_keras.checks import check_number
from txl_keras.checks import shown
from txl_keras.json_files import read_json
from txl_keras.layers.softmax.adaptive_embedding import AdaptiveEmbedding
from txl_keras.layers.softmax.adaptive_softmax import AdaptiveSoftmax
from txl_keras.models.transformer_xl_backbone import TransformerXLBackbone
from txl_keras.models.transformer_xl_causal_lm import TransformerXLCausalLM

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
# Optional keys, with the defaults of the originals.
_DEFAULTS = {
    "d_embed": None,
    "cutoffs": (),
    "div_val": 1,
    "same_length": False,
    "clamp_len": -1,
    "dropout": 0.0,
    "dropatt": 0.0,
}
# Keys of training or evaluation, which do not affect the model.
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


def _check_boolean(key, value):
    if value not in (False, True):
        raise ValueError(f"`{key}` must be true or false, not {shown(value)}")


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
            _check_boolean,
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
    config, overrides, defaults, source="`config`", allowed=_OVERRIDES
):
    """Reads a dictionary or JSON file, checks it and adds `defaults`."""
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
    defaults = {**_DEFAULTS, **defaults}
    if "memory_length" in overrides:
        defaults["mem_len"] = overrides["memory_length"]
    missing = [key for key in SIZES if key not in {*config, *defaults}]
    if missing:
        raise ValueError(
            f"{source} must have the keys {missing}. "
            f"Received: {shown(sorted(config))}"
        )
    unknown = sorted(set(config) - {*SIZES, *defaults, *_IRRELEVANT})
    if unknown:
        warnings.warn(
            f"{source}: the keys {shown(unknown)} have no effect.",
            stacklevel=3,
        )
    config = {**defaults, **config}
    _check_values(config, source)
    return config


def raise_found(message, problems):
    """Raises `ValueError` that lists the problems that are true, if any is."""
    found = [f"- {text}" for text, is_found in problems.items() if is_found]
    if found:
        raise ValueError("\n".join([message, *found]))


def sampled_softmax(config):
    """Returns the problem of a sampled softmax, for `raise_found`."""
    number = config["sample_softmax"]
    text = "must not be positive, since a sampled softmax has other weights"
    return {f"sample_softmax={number}: {text}": number > 0}


def tied_projections(config):
    """Returns `tie_projs`, or the list that its short form stands for."""
    if config["tie_projs"] is not None:
        return config["tie_projs"]
    shared = config["proj_share_all_but_first"]
    return [False] + [shared] * len(config["cutoffs"])


class Plan:
    """Holds the sizes of a `TransformerXLCausalLM` that is not built yet."""

    # A layout reads them from `backbone` and `softmax`, as from a model.

    def __init__(
        self, config, overrides, tie_embeddings, tie_projections, **arguments
    ):
        arguments = {
            **sized_arguments(config),
            "embedding_dim": config["d_embed"],
            "cutoffs": config["cutoffs"],
            "div_val": config["div_val"],
            "attention_dropout": config["dropatt"],
            **arguments,
            **overrides,
        }
        if (
            arguments["same_length"] == "pytorch"
            and not arguments["memory_length"]
        ):
            raise ValueError(
                "`memory_length` must be positive with `same_length`: in the "
                "original PyTorch code a token attends to `memory_length` "
                "keys, itself included, so to none without memory. Received: "
                "memory_length=0"
            )
        parameters = inspect.signature(TransformerXLBackbone).parameters
        defaults = {name: value.default for name, value in parameters.items()}
        self.backbone = types.SimpleNamespace(**{**defaults, **arguments})
        # These layers check their arguments; they are not built.
        embedding = AdaptiveEmbedding(
            config["n_token"],
            config["d_model"],
            cutoffs=config["cutoffs"],
            embedding_dim=config["d_embed"],
            div_val=config["div_val"],
            project_same_dim=self.backbone.project_same_dim,
        )
        # Clusters beyond `tie_projections` are not tied.
        ties = [*map(bool, tie_projections), *[False] * embedding.num_clusters]
        self.softmax = AdaptiveSoftmax(
            embedding,
            tie_embeddings=bool(tie_embeddings),
            tie_projections=ties[: embedding.num_clusters],
        )
        self._arguments = arguments

    def build(self, dtype):
        """Builds the `TransformerXLCausalLM`, with weights of zero."""
        # Random initialization takes three times the memory of the weights.
        stddevs = ("initializer_stddev", "projection_initializer_stddev")
        backbone = TransformerXLBackbone(
            dtype=dtype, **self._arguments, **dict.fromkeys(stddevs, 0.0)
        )
        model = TransformerXLCausalLM(
            backbone,
            tie_embeddings=self.softmax.tie_embeddings,
            tie_projections=self.softmax.tie_projections,
        )
        for name in stddevs:
            setattr(backbone, name, getattr(self.backbone, name))
        return model
