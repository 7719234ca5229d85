"""Flags for the model, and the function that builds it."""

import inspect

from absl import flags

from txl_keras.data.statistics import token_counts
from txl_keras.data.vocabulary import choose_cutoffs
from txl_keras.layers.decoder_block import ATTENTION_TYPES
from txl_keras.layers.gate import GATES
from txl_keras.layers.memory.compression import COMPRESSIONS
from txl_keras.models import LSTMBackbone
from txl_keras.models import TransformerXLBackbone
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models import presets
from txl_keras.models.model_config import warn_of_memory_source
from txl_keras.models.transformer_xl_backbone import MEMORY_SOURCES

FLAGS = flags.FLAGS

_TIES = {"all": True, "none": False}  # "all_but_first" is passed as it is
_BACKBONES = {"transformer_xl": TransformerXLBackbone, "lstm": LSTMBackbone}
_MODEL_FLAGS = []


class _PresetParser(flags.EnumParser):
    def parse(self, argument):
        if argument in presets.TRAINED:
            raise ValueError(
                "a preset is sizes without weights; to begin with this trained "
                f"model, give --initialize_from={argument} instead"
            )
        return super().parse(argument)


def _define(define, name, description, **kwargs):
    help = (
        f"{description} Default: the preset's (quickstart: {_default(name)})."
    )
    define(name, None, help=help, **kwargs)
    _MODEL_FLAGS.append(name)


def _default(name):
    """Returns what a flag is in the preset `quickstart`, in words."""
    sizes = presets.preset_config("quickstart")
    width = sizes["hidden_dim"]
    of_classes = (
        inspect.signature(model_class).parameters
        for model_class in (TransformerXLBackbone, TransformerXLCausalLM)
    )
    value = {
        **{k: v.default for part in of_classes for k, v in part.items()},
        **sizes,
        "head_dim": width // sizes["num_heads"],
        "embedding_dim": width,
        "tie_projections": "all",
    }[name]
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None or value == () else value


def define_model_flags(has_softmax=True):
    """Defines `--preset`, `--backbone` and a flag per argument of the model."""
    _MODEL_FLAGS.clear()
    integer, real, boolean, enum = (
        flags.DEFINE_integer,
        flags.DEFINE_float,
        flags.DEFINE_bool,
        flags.DEFINE_enum,
    )
    flags.DEFINE(
        _PresetParser(list(presets.PRESETS)), "preset", "quickstart",
        "Preset of the model: the sizes and options that other model flags "
        "can change.",
    )  # fmt: skip
    flags.DEFINE_enum(
        "backbone", "transformer_xl", _BACKBONES,
        "Architecture of the backbone. lstm is a baseline that supports fewer "
        "of the model flags.",
    )  # fmt: skip
    _define(integer, "num_layers", "Number of decoder blocks or LSTM layers.")
    _define(integer, "num_heads", "Attention heads per block.")
    _define(integer, "head_dim", "Size of each attention head.")
    _define(integer, "hidden_dim", "Size of the hidden states.")
    _define(
        integer, "intermediate_dim", "Inner size of the feed-forward layers."
    )
    _define(
        integer, "memory_length",
        "Tokens of memory that each block attends to besides the segment; 0 "
        "for no memory.", lower_bound=0,
    )  # fmt: skip
    _define(
        flags.DEFINE_list, "cutoffs",
        "First token ids of the further clusters of the adaptive embedding "
        "and softmax, where ids are sorted by frequency; `auto` chooses them "
        "from the counts in the train split.",
    )  # fmt: skip
    _define(
        integer, "embedding_dim",
        "Embedding size of the first cluster of the vocabulary.",
    )  # fmt: skip
    _define(
        integer, "div_val",
        "Factor by which the embedding size shrinks from one cluster of the "
        "vocabulary to the next.",
    )  # fmt: skip
    _define(
        boolean, "project_same_dim",
        "With div_val above 1, project embedding tables even if they have the "
        "hidden size already.",
    )  # fmt: skip
    if has_softmax:
        _define(
            boolean, "tie_embeddings",
            "Share the embedding tables with the softmax.",
        )  # fmt: skip
        _define(
            enum, "tie_projections",
            "Clusters whose embedding projection is shared with the softmax.",
            enum_values=["all", "all_but_first", "none"],
        )  # fmt: skip
    _define(
        enum, "attention_type",
        "Position encoding of attention: that of Transformer-XL (relative), or "
        "one of the paper's ablation study.",
        enum_values=ATTENTION_TYPES,
    )  # fmt: skip
    _define(
        integer, "max_positions",
        "Number of learned positions, for attention_type shaw and al_rfou.",
    )  # fmt: skip
    _define(
        boolean, "tie_attention_biases",
        "Share the attention biases u and v between all blocks.",
    )  # fmt: skip
    _define(
        boolean, "same_length",
        "Let every token attend to exactly memory_length earlier tokens.",
    )  # fmt: skip
    _define(
        enum, "memory_source",
        "What each block remembers: its inputs, as Transformer-XL does, or its "
        "outputs (same-layer recurrence), with which scores depend on the "
        "segment length.", enum_values=MEMORY_SOURCES,
    )  # fmt: skip
    _define(
        enum, "compression",
        "How tokens that leave the memory are compressed into a second, older "
        "part of it, as in the Compressive Transformer.",
        enum_values=COMPRESSIONS,
    )  # fmt: skip
    _define(
        integer, "compression_rate",
        "Number of tokens that are compressed to one slot.",
    )  # fmt: skip
    _define(
        integer, "compressed_length",
        "Number of compressed slots; may be larger in evaluation than in "
        "training.",
    )  # fmt: skip
    _define(
        integer, "clamp_length",
        "Largest relative distance to encode; greater distances count as this "
        "one.",
    )  # fmt: skip
    _define(real, "dropout", "Dropout rate, except that of attention weights.")
    _define(real, "attention_dropout", "Dropout rate of attention weights.")
    _define(
        boolean, "normalize_first",
        "Apply layer norm before each sublayer (pre-norm), not after it.",
    )  # fmt: skip
    _define(
        enum, "gate",
        "Gate of GTrXL in place of each residual sum; needs normalize_first.",
        enum_values=GATES,
    )  # fmt: skip
    _define(
        boolean, "normalize_output",
        "Apply a layer norm to the output of the last block.",
    )  # fmt: skip
    _define(real, "layer_norm_epsilon", "Epsilon of the layer norms.")
    _define(
        real, "initializer_stddev",
        "Standard deviation of initial kernels and embeddings.",
    )  # fmt: skip
    _define(
        real, "projection_initializer_stddev",
        "Standard deviation of the initial projections of the adaptive "
        "embedding and softmax.",
    )  # fmt: skip


def names():
    """Returns the names of the flags that `define_model_flags` defines."""
    return ("preset", "backbone", *_MODEL_FLAGS)


def given():
    """Returns the flags that change the model, by name."""
    values = {name: FLAGS[name].value for name in _MODEL_FLAGS}
    return {name: v for name, v in values.items() if v is not None}


def build_model(vocabulary_size, train_tokens, dtype, config=None):
    """Builds the language model of the flags, or that of a `config`."""
    # `train_tokens` are counted for `--cutoffs=auto`.
    changes = given()
    if changes.get("cutoffs") == ["auto"]:
        changes["cutoffs"] = choose_cutoffs(
            token_counts(train_tokens, vocabulary_size)
        )
    elif "cutoffs" in changes:
        changes["cutoffs"] = _integers("cutoffs", changes["cutoffs"])
    if changes.get("tie_projections") in _TIES:
        changes["tie_projections"] = _TIES[changes["tie_projections"]]
    changes["vocabulary_size"] = vocabulary_size
    if config is None:
        return presets.build_preset(
            TransformerXLCausalLM,
            FLAGS.preset,
            dtype,
            changes,
            _BACKBONES[FLAGS.backbone],
        )
    backbone = config["backbone"]["config"]
    warn_of_memory_source(backbone, changes)
    own = presets.own_arguments(TransformerXLCausalLM)
    for name, value in changes.items():
        (config if name in own else backbone)[name] = value
    config["dtype"] = backbone["dtype"] = dtype
    return TransformerXLCausalLM.from_config(config)


def _integers(name, texts):
    try:
        return [int(text) for text in texts]
    except ValueError as error:
        raise ValueError(
            f"`{name}` must be integers separated by commas, or auto. "
            f"Received: {name}={','.join(texts)}"
        ) from error
