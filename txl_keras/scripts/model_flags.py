"""Flags of a model, and the model they make."""

from absl import flags

from txl_keras.data.statistics import token_counts
from txl_keras.data.vocabulary import choose_cutoffs
from txl_keras.layers.decoder_block import ATTENTION_TYPES
from txl_keras.models import LSTMBackbone
from txl_keras.models import TransformerXLBackbone
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models import presets
from txl_keras.models.transformer_xl_causal_lm import SOFTMAX_ARGUMENTS

FLAGS = flags.FLAGS

_TIES = {"all": True, "none": False}  # `all_but_first` is a value itself
_BACKBONES = {"transformer_xl": TransformerXLBackbone, "lstm": LSTMBackbone}
_MODEL_FLAGS = []


def _define(define, name, description, **kwargs):
    define(name, None, help=f"{description} Default: the preset's.", **kwargs)
    _MODEL_FLAGS.append(name)


def define_model_flags(has_softmax=True):
    """Defines `--preset` and a flag for whatever may differ from it.

    Args:
        has_softmax: Boolean. Whether the model is one of language.
    """
    _MODEL_FLAGS.clear()
    integer, real, boolean, enum = (
        flags.DEFINE_integer,
        flags.DEFINE_float,
        flags.DEFINE_bool,
        flags.DEFINE_enum,
    )
    flags.DEFINE_enum("preset", "quickstart", presets.names(), "Model sizes.")
    flags.DEFINE_enum(
        "backbone", "transformer_xl", _BACKBONES,
        "What reads the text. An LSTM, to compare with, has those sizes and "
        "flags alone that an LSTM can have.",
    )  # fmt: skip
    _define(integer, "num_layers", "Decoder blocks, or layers.")
    _define(integer, "num_heads", "Attention heads of a block.")
    _define(integer, "head_dim", "Size of a head.")
    _define(integer, "hidden_dim", "Hidden size.")
    _define(
        integer, "intermediate_dim", "Inner size of the feed-forward layers."
    )
    _define(
        integer, "memory_length", "Tokens of memory; 0 for none.", lower_bound=0
    )
    _define(
        flags.DEFINE_list, "cutoffs",
        "Where clusters of the vocabulary begin; `auto` counts train.",
    )  # fmt: skip
    _define(integer, "embedding_dim", "Size of the first cluster.")
    _define(integer, "div_val", "How many times smaller the next is.")
    _define(boolean, "project_same_dim", "Project tables of the hidden size.")
    if has_softmax:
        _define(
            boolean, "tie_embeddings", "Softmax shares the embedding tables."
        )
        _define(
            enum, "tie_projections", "Softmax shares their projections.",
            enum_values=["all", "all_but_first", "none"],
        )  # fmt: skip
    _define(
        enum, "attention_type", "Of the ablation of the paper.",
        enum_values=ATTENTION_TYPES,
    )  # fmt: skip
    _define(integer, "max_positions", "Learned ones: shaw, al_rfou.")
    _define(
        boolean, "tie_attention_biases", "All blocks share the biases u and v."
    )
    _define(
        boolean, "same_length", "Every token sees memory_length tokens back."
    )
    _define(integer, "clamp_length", "Distances beyond it count as it.")
    _define(real, "dropout", "Dropout rate.")
    _define(real, "attention_dropout", "Dropout rate of attention.")
    _define(
        boolean, "normalize_first", "Normalize before a layer, not after it."
    )
    _define(
        boolean, "normalize_output", "Normalize the output of the last block."
    )
    _define(real, "layer_norm_epsilon", "Epsilon of layer normalization.")
    _define(
        real, "initializer_stddev", "Standard deviation of initial weights."
    )
    _define(real, "projection_initializer_stddev", "The same of projections.")


def names():
    """Tuple of the flags that `define_model_flags` defines."""
    return ("preset", "backbone", *_MODEL_FLAGS)


def build_model(vocabulary_size, train_tokens, dtype, config=None):
    """Builds the model that the flags name.

    Args:
        vocabulary_size: Integer.
        train_tokens: Ids of train, counted for `--cutoffs=auto`.
        dtype: A Keras dtype policy.
        config: Optional dictionary, `get_config()` of a model to take
            instead of the preset.

    Returns:
        A `TransformerXLCausalLM`.

    Raises:
        ValueError: If a flag is not what the model expects.
    """
    given = {name: FLAGS[name].value for name in _MODEL_FLAGS}
    changes = {name: v for name, v in given.items() if v is not None}
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
        return TransformerXLCausalLM.from_preset(
            FLAGS.preset, dtype, _BACKBONES[FLAGS.backbone], **changes
        )
    backbone = config["backbone"]["config"]
    for name, value in changes.items():
        (config if name in SOFTMAX_ARGUMENTS else backbone)[name] = value
    config["dtype"] = backbone["dtype"] = dtype
    return TransformerXLCausalLM.from_config(config)


def _integers(name, texts):
    try:
        return [int(text) for text in texts]
    except ValueError as error:
        raise ValueError(
            f"`{name}` must be integers with commas between them, or auto. "
            f"Received: {name}={','.join(texts)}"
        ) from error
