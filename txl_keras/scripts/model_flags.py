"""Flags for the model, and the function that builds it."""

import functools

from absl import flags

from txl_keras.data.vocabulary import choose_cutoffs
from txl_keras.data.vocabulary import token_counts
from txl_keras.extending import registered
from txl_keras.layers.decoder_block import ATTENTION_TYPES
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models import presets
from txl_keras.scripts import options
from txl_keras.scripts.options import FLAGS

_TIES = {"all": True, "none": False}  # "all_but_first" is passed as it is
_BACKBONES = [
    name
    for name, backbone_class in registered("backbone").items()
    if issubclass(backbone_class, TransformerXLCausalLM.backbone_classes)
]


class _PresetParser(flags.EnumParser):
    def parse(self, argument):
        if argument in presets.TRAINED:
            raise ValueError(
                "a preset has sizes but no weights; to start from this trained "
                f"model, give --initialize_from={argument} instead"
            )
        return super().parse(argument)


class Architecture(options.Options):
    """Holds options that choose the model; options of `Model` change it.

    Model options:
    preset: Preset of the model: its default sizes and options, which other
        model flags can change.
    backbone: Architecture of the backbone; it determines which model flags can
        be given. Default: the preset's, in most presets transformer_xl.
    """

    preset: functools.partial(
        flags.DEFINE, _PresetParser(list(presets.PRESETS))
    ) = "quickstart"
    backbone: options.one_of(_BACKBONES) = None


class Model(options.Options):
    """Holds arguments of the model.

    Model options:
    num_layers: Number of decoder blocks or LSTM layers.
    num_heads: Attention heads per block.
    head_dim: Size of each attention head.
    hidden_dim: Size of the hidden states.
    intermediate_dim: Inner size of the feed-forward layers.
    memory_length: Tokens of memory that each block attends to besides the
        segment; 0 for no memory.
    cutoffs: First token id of each further cluster of the adaptive embedding
        and softmax; ids are sorted by frequency. `auto` chooses cutoffs from
        token counts in the train split.
    embedding_dim: Embedding size of the first cluster of the vocabulary.
    div_val: Factor by which the embedding size shrinks from one cluster of the
        vocabulary to the next.
    tie_embeddings: Share the embedding tables with the softmax.
    tie_projections: Clusters whose embedding projection is shared with the
        softmax.
    attention_type: Position encoding of attention: relative, as in
        Transformer-XL, or one of the paper's ablation study.
    max_positions: Number of learned positions, for attention_type shaw and
        al_rfou.
    tie_attention_biases: Share the attention biases u and v between all blocks.
    same_length: Let every token attend to exactly memory_length earlier tokens.
    clamp_length: Largest relative distance to encode; greater distances count
        as this one.
    dropout: Dropout rate everywhere except on attention weights.
    attention_dropout: Dropout rate of attention weights.
    normalize_first: Apply layer norm before each sublayer (pre-norm) instead of
        after it.
    normalize_output: Apply a layer norm to the output of the last block.
    initializer_stddev: Standard deviation of initial kernels and embeddings.
    """

    num_layers: int = None
    num_heads: int = None
    head_dim: int = None
    hidden_dim: int = None
    intermediate_dim: int = None
    memory_length: options.integer(0) = None
    cutoffs: list = None
    embedding_dim: int = None
    div_val: int = None
    tie_embeddings: bool = None
    tie_projections: options.one_of(["all", "all_but_first", "none"]) = None
    attention_type: options.one_of(ATTENTION_TYPES) = None
    max_positions: int = None
    tie_attention_biases: bool = None
    same_length: bool = None
    clamp_length: options.integer(1) = None
    dropout: float = None
    attention_dropout: float = None
    normalize_first: bool = None
    normalize_output: bool = None
    initializer_stddev: float = None


def define_model_flags(has_softmax=True):
    """Defines `--preset`, `--backbone` and a flag per argument of the model."""
    Architecture.define()
    of_softmax = "tie_embeddings", "tie_projections"
    names = [x for x in Model.names() if has_softmax or x not in of_softmax]
    Model.define(*names, note=" Default: the preset's.")
    for of_backbone in registered("model options").values():
        of_backbone.define()


def define_evaluation_flags():
    """Defines flags for settings that may differ from those in training."""
    names = {"memory_length"}.union(
        *(cls.evaluation_arguments for cls in registered("backbone").values())
    )
    for group in (Model, *registered("model options").values()):
        if used := [name for name in group.names() if name in names]:
            group.define(*used, note=" Default: as in training.")


def given():
    """Returns the arguments of the model that are not `None`, by name."""
    groups = Model, *registered("model options").values()
    values = [item for group in groups for item in group.values().items()]
    return {name: value for name, value in values if value is not None}


def build_model(
    vocabulary_size, train_tokens, dtype, origin=None, load_weights=True
):
    """Builds the language model of the flags or of an `Origin`."""
    # `train_tokens` are counted for `--cutoffs=auto`. The vocabulary size
    # defaults to the preset's.
    changes = given()
    if changes.get("cutoffs") == ["auto"]:
        options.refuse(
            train_tokens is None,
            "`cutoffs` must be a list of integers, because this command reads "
            "no text to count.",
        )
        changes["cutoffs"] = choose_cutoffs(
            token_counts(train_tokens, vocabulary_size)
        )
    elif "cutoffs" in changes:
        changes["cutoffs"] = options.numbers("cutoffs", int)
    if changes.get("tie_projections") in _TIES:
        changes["tie_projections"] = _TIES[changes["tie_projections"]]
    if origin is not None:
        # The file of a run's model has no tokenizer.
        return origin.load(load_weights, dtype, tokenizer=None, **changes)
    if vocabulary_size is not None:
        changes["vocabulary_size"] = vocabulary_size
    return presets.build_preset(
        TransformerXLCausalLM,
        FLAGS.preset,
        dtype,
        changes,
        FLAGS.backbone and registered("backbone")[FLAGS.backbone],
    )
