"""The layouts of Transformer-XL checkpoints, of four implementations."""

import dataclasses
import functools
import math
import re

from txl_keras.checkpoints import configuration
from txl_keras.checkpoints.layout import Entry
from txl_keras.checkpoints.layout import feed_forward_and_norms
from txl_keras.checkpoints.layout import read
from txl_keras.checks import shown
from txl_keras.models.transformer_xl_backbone import TransformerXLBackbone
from txl_keras.models.transformer_xl_causal_lm import TransformerXLCausalLM


@dataclasses.dataclass(frozen=True)
class Source:
    """Describes how an implementation differs from the original in PyTorch."""

    # Regular expressions of the original's names, and the names here.
    names: dict = dataclasses.field(default_factory=dict)
    # False if linear layers are `(in, out)`, clusters have their own biases,
    # and attention biases of all layers are one tensor.
    is_torch: bool = True
    # True if the head's entries for the tails are in reverse order.
    reversed_clusters: bool = True
    attention_types: int = 1  # `attn_type` is below this number
    # How the code counts keys, and how its memory starts: see our backbone.
    same_length: bool | str = "pytorch"
    cold_start: str = "zeros"

    def rename(self, name):
        """Returns the name here of a tensor of the original."""
        for pattern, replacement in self.names.items():
            name = re.sub(f"^{pattern}", replacement, name)
        return name


ORIGINAL = Source(attention_types=4, cold_start="masked")
NVIDIA = Source(
    {
        r"crit\.out_layers\.(\d+)\.weight": r"crit.out_layers_weights.\1",
        r"crit\.out_layers\.(\d+)\.bias": r"crit.out_layers_biases.\1",
    },
    same_length=True,
    cold_start="masked",
)
HUGGING_FACE = Source({r"(?!crit\.)": "transformer."}, reversed_clusters=False)
TF1 = Source(
    {
        r"word_emb\.emb_layers\.(.*)\.weight": r"adaptive_embed/\1lookup_table",
        r"word_emb\.emb_projs\.(.*)": r"adaptive_embed/\1proj_W",
        r"crit\.out_layers\.(.*)\.bias": r"adaptive_softmax/\1b",
        r"crit\.out_projs\.(.*)": r"adaptive_softmax/\1proj",
        r"crit\.(cluster)_weight": r"adaptive_softmax/cutoff_0/\1_W",
        r"crit\.(cluster)_bias": r"adaptive_softmax/cutoff_0/\1_b",
        r"adaptive_softmax/b$": "adaptive_softmax/bias",  # without cutoffs
        r"layers\.": "layer_",
        r"(layer_\d+)\.dec_attn\.": r"\1/rel_attn/",
        r"(layer_\d+)\.pos_ff\.": r"\1/ff/",
        r"(layer_.*/)(qkv|r|o)_net\.weight": r"\1\2/kernel",
        r"(layer_.*/)layer_norm\.weight": r"\1LayerNorm/gamma",
        r"(layer_.*/)layer_norm\.bias": r"\1LayerNorm/beta",
        r"(layer_.*/)CoreNet\.0\.": r"\1layer_1/",
        r"(layer_.*/)CoreNet\.3\.": r"\1layer_2/",
        r"(layer_.*/)weight": r"\1kernel",
        "": "transformer/",
    },
    is_torch=False,
    reversed_clusters=False,
    same_length=True,
)


def load_model(config, overrides, dtype, tensors, file, source):
    """Loads the model from the tensors of a file."""
    configuration.check_sizes(config, tensors, file)
    attention_type = config["attn_type"]
    arguments = {
        **configuration.sized_arguments(config),
        "embedding_dim": config["d_embed"],
        "cutoffs": config["cutoffs"],
        "div_val": config["div_val"],
        "attention_dropout": config["dropatt"],
        # The file determines the number of learned positions.
        "max_positions": (*tensors.shapes.get("r_emb", ()), 1, 1)[1],
        "normalize_first": bool(config["pre_lnorm"]),
        "project_same_dim": bool(config["proj_same_dim"]),
        "same_length": bool(config["same_length"]) and source.same_length,
        "tie_attention_biases": not config["untie_r"],
        "layer_norm_epsilon": config["layer_norm_epsilon"],
        "cold_start": source.cold_start,
        # The backbone's default, which `build_undrawn` replaces temporarily.
        "initializer_stddev": 0.02,
        **overrides,
    }
    memory_length = arguments["memory_length"]
    is_absolute = attention_type in (2, 3)
    configuration.raise_found(
        "The configuration has settings that are not supported, or that the "
        "original code ignores:",
        {
            f"attn_type={attention_type}: must be below "
            f"{source.attention_types}": (
                attention_type not in range(source.attention_types)
            ),
            f"sample_softmax={config['sample_softmax']}: must not be positive, "
            "since a sampled softmax has other weights": (
                config["sample_softmax"] not in (-1, 0)
            ),
            f"ext_len={config['ext_len']}: must be 0, since an extended "
            "context is not supported": config["ext_len"] not in (-1, 0),
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
        },
    )
    clusters = len(config["cutoffs"]) + 1
    ties = config["tie_projs"]
    if ties is not None and not isinstance(ties, (list, tuple)):
        raise ValueError(
            "`tie_projs` must be a list of booleans, one per cluster. "
            f"Received: tie_projs={shown(ties)}"
        )
    if ties is None:
        ties = [False] + [config["proj_share_all_but_first"]] * clusters
    # Clusters beyond `tie_projs` are not tied.
    ties = [*map(bool, ties), *[False] * clusters][:clusters]

    def build(arguments):
        kind = configuration.ATTENTION_TYPES[attention_type]
        backbone = TransformerXLBackbone(
            attention_type=kind, dtype=dtype, **arguments
        )
        return TransformerXLCausalLM(backbone, bool(config["tie_weight"]), ties)

    # The frequencies of the sinusoids are not a weight.
    others = source.rename("pos_emb.inv_freq")
    tensors = tensors.renamed(lambda name: None if name == others else name)
    layout = functools.partial(make_layout, source)
    return read(build, arguments, layout, tensors, file)


def make_layout(source, model, num_layers=None):
    """Returns the layout of a checkpoint for a model, or for more layers."""
    backbone = model.backbone
    layers = range(num_layers or backbone.num_layers)
    layout = [
        *_tables(model.softmax, source),
        *_positions(backbone, source, layers),
    ]
    for i in layers:
        layout += _block(backbone, source, i)
    for entry in layout:
        entry.names = [source.rename(name) for name in entry.names]
    return layout


def _linear(source, names, weights, is_output=False):
    """Returns the entry of a linear layer, whose heads are one axis."""

    def matrix(shape):
        if is_output:
            return math.prod(shape[:-1]), shape[-1]
        return shape[0], math.prod(shape[1:])

    return Entry(names, weights, matrix, axis=1, transposed=source.is_torch)


def _tables(softmax, source):
    """Yields tables, biases and projections; clusters may share them."""
    embedding, ties = softmax.embedding, softmax.tie_projections
    clusters = [[j] for j in range(embedding.num_clusters)]
    groups = [sum(clusters, [])] if embedding.div_val == 1 else clusters

    def of(template, group, folder="cutoff_{}/"):
        """Returns the name of a group's tensor."""
        cluster = str(group[0]) if source.is_torch else folder.format(group[0])
        return template.format(cluster)

    def weights(template, group):
        return [f"{template}_{i}" for i in group]

    for group in groups:
        # TensorFlow's only table is not in a folder.
        folder = "" if embedding.div_val == 1 else "cutoff_{}/"
        table = of("word_emb.emb_layers.{}.weight", group, folder)
        out_table = f"crit.out_layers.{group[0]}.weight"
        is_tied = softmax.tie_embeddings
        names = [table, out_table] if is_tied and source.is_torch else [table]
        yield Entry(names, weights("token_embedding/embeddings", group))
        if not is_tied:
            yield Entry([out_table], weights("softmax/kernel", group))
        if embedding.needs_projection(group[0]):
            names = [of("word_emb.emb_projs.{}", group, folder)]
            if source.is_torch:
                names.append(f"crit.shared_out_projs.{group[0]}")  # NVIDIA's
                names += [f"crit.out_projs.{i}" for i in group if ties[i]]
            weight = f"token_embedding/projection_{group[0]}"
            yield _linear(source, names, [weight])
    for (j,) in clusters:
        if embedding.needs_projection(j) and not ties[j]:
            name = of("crit.out_projs.{}", [j])
            yield _linear(source, [name], [f"softmax/projection_{j}"])
    for group in groups if source.is_torch else clusters:
        folder = "cutoff_{}/" if embedding.cutoffs else ""
        name = of("crit.out_layers.{}.bias", group, folder)
        yield Entry([name], weights("softmax/bias", group))
    if embedding.cutoffs:
        flipped = 0 if source.reversed_clusters else None
        for name, part in (("weight", "kernel"), ("bias", "bias")):
            weight = f"softmax/cluster_{part}"
            yield Entry([f"crit.cluster_{name}"], [weight], flipped=flipped)


def _positions(backbone, source, layers):
    """Yields the attention biases and the learned tensors of positions."""
    heads = (backbone.num_heads, backbone.head_dim)

    def stacked(name, weight, reshape=lambda shape: (1, *shape), **options):
        weights = [f"block_{i}/{weight}" for i in layers]
        return Entry([name], weights, reshape, **options)

    if backbone.attention_type == "shaw":
        # Distance 0 is the last row; in our weights it is the first.
        yield stacked("r_emb", "attention/position_keys", flipped=1)
        yield stacked("r_bias", "attention/position_biases", flipped=1)
        yield stacked("r_w_bias", "attention/content_attention_bias")
    elif backbone.attention_type == "al_rfou":
        yield stacked(
            "r_emb", "position_embeddings", lambda shape: (1, shape[0], *heads)
        )
    elif backbone.attention_type == "relative":
        for name, kind in (("r_w_bias", "content"), ("r_r_bias", "positional")):
            bias = f"{kind}_attention_bias"
            in_layers = [f"layers.{i}.dec_attn.{name}" for i in layers]
            if backbone.tie_attention_biases:
                # Hugging Face repeats it in the layers.
                names = in_layers if source.is_torch else []
                yield Entry([name, *names], [bias])
            elif source.is_torch:
                for i in layers:
                    weight = f"block_{i}/attention/{bias}"
                    yield Entry([in_layers[i]], [weight])
            else:
                yield stacked(name, f"attention/{bias}")


def _block(backbone, source, i):
    layer, attention = f"layers.{i}.", f"block_{i}/attention"
    kernels = {"qkv_net": ("query", "key", "value")}
    if backbone.attention_type == "relative":
        kernels["r_net"] = ("position",)
    elif backbone.attention_type != "shaw":
        kernels = {"q_net": ("query",), "kv_net": ("key", "value")}
    for name, parts in {**kernels, "o_net": ("output",)}.items():
        weights = [f"{attention}/{part}/kernel" for part in parts]
        names = [f"{layer}dec_attn.{name}.weight"]
        yield _linear(source, names, weights, is_output=name == "o_net")
    parts = "dec_attn.layer_norm", "pos_ff.layer_norm"
    parts += "pos_ff.CoreNet.0", "pos_ff.CoreNet.3"
    for entry in feed_forward_and_norms([layer + part for part in parts], i):
        entry.transposed &= source.is_torch
        yield entry
