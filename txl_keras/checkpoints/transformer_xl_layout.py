"""The layouts of Transformer-XL checkpoints.

The original code in TensorFlow and PyTorch, NVIDIA's and Hugging Face's have
the same tensors; `Naming` holds the differences.

Letters: `D` hidden size, `N` heads, `H` head size, `P` positions, `L` layers.
"""

import dataclasses

import ml_dtypes
import numpy as np

from txl_keras.checkpoints.configuration import check_sizes
from txl_keras.checkpoints.configuration import plan_model
from txl_keras.checkpoints.layout import Entry
from txl_keras.checkpoints.layout import feed_forward_and_norms
from txl_keras.checkpoints.layout import read
from txl_keras.checks import shown


@dataclasses.dataclass(frozen=True)
class Naming:
    """Holds the names of an implementation, by default of the original's."""

    # `{j}` stands for the cluster, `{i}` for the layer; `{cutoff}` for the
    # cluster of a tensor, or nothing if all clusters share it.
    table: str = "word_emb.emb_layers.{j}.weight"
    projection: str = "word_emb.emb_projs.{j}"
    shared_projection: str | None = None  # second name of `projection`
    out_table: str = "crit.out_layers.{j}.weight"
    out_bias: str = "crit.out_layers.{j}.bias"
    out_projection: str = "crit.out_projs.{j}"
    cluster_kernel: str = "crit.cluster_weight"
    cluster_bias: str = "crit.cluster_bias"
    body: str = ""  # prefix of the tensors below
    layer: str = "layers.{i}."
    qkv: str = "dec_attn.qkv_net.weight"
    position: str = "dec_attn.r_net.weight"
    output: str = "dec_attn.o_net.weight"
    parts: tuple = (
        "dec_attn.layer_norm",
        "pos_ff.layer_norm",
        "pos_ff.CoreNet.0",
        "pos_ff.CoreNet.3",
    )
    # False if linear layers are `(in, out)`, clusters have biases of their own,
    # and attention biases of all layers are one tensor.
    is_torch: bool = True
    # True if the head's entries for the tails are in reverse order.
    reversed_clusters: bool = True
    # True if layers repeat the attention biases that all of them share.
    biases_in_layers: bool = False
    # True if learned positions are `(L, P, D)` rather than `(L, P, N, H)`.
    flat_positions: bool = False
    # `attn_type` is below this number.
    attention_types: int = 1
    # How the code counts keys, and how its memory starts: see our backbone.
    same_length: bool | str = "pytorch"
    cold_start: str = "zeros"


ORIGINAL = Naming(attention_types=4, cold_start="masked")
NVIDIA = Naming(
    shared_projection="crit.shared_out_projs.{j}",
    out_table="crit.out_layers_weights.{j}",
    out_bias="crit.out_layers_biases.{j}",
    flat_positions=True,
    attention_types=4,
    same_length=True,
    cold_start="masked",
)
HUGGING_FACE = Naming(
    table="transformer.word_emb.emb_layers.{j}.weight",
    projection="transformer.word_emb.emb_projs.{j}",
    body="transformer.",
    reversed_clusters=False,
    biases_in_layers=True,
)
TF1 = Naming(
    table="transformer/adaptive_embed/{cutoff}lookup_table",
    projection="transformer/adaptive_embed/{cutoff}proj_W",
    out_bias="transformer/adaptive_softmax/cutoff_{j}/b",
    out_projection="transformer/adaptive_softmax/cutoff_{j}/proj",
    cluster_kernel="transformer/adaptive_softmax/cutoff_0/cluster_W",
    cluster_bias="transformer/adaptive_softmax/cutoff_0/cluster_b",
    body="transformer/",
    layer="layer_{i}/",
    qkv="rel_attn/qkv/kernel",
    position="rel_attn/r/kernel",
    output="rel_attn/o/kernel",
    parts=("rel_attn/LayerNorm", "ff/LayerNorm", "ff/layer_1", "ff/layer_2"),
    is_torch=False,
    reversed_clusters=False,
    same_length=True,
)


def load_model(config, overrides, dtype, tensors, source, naming):
    """Returns the model of a file."""
    check_sizes(config, tensors, overrides, source)
    sizes, build = plan_model(config, overrides, naming, tensors, dtype)
    layout = transformer_xl_layout(sizes, naming)
    tensors = _without_frequencies(tensors, naming, config["d_model"], source)
    return read(build, layout, tensors, source)


def transformer_xl_layout(model, naming):
    """Returns the layout of a checkpoint for a model or its sizes."""
    backbone = model.backbone
    layout = [
        *_tables(model.softmax, naming),
        *_clusters(model.softmax, naming),
        *_positions(backbone, naming),
    ]
    for i in range(backbone.num_layers):
        layout += _block(backbone, naming, i)
    return layout


def frequencies(hidden_dim):
    """Returns the frequencies of the sinusoids, float32 `(D / 2,)`."""
    exponents = np.arange(0, hidden_dim, 2, np.float32) / hidden_dim
    return 1 / np.float32(10000) ** exponents


def _without_frequencies(tensors, naming, hidden_dim, source):
    """Checks the frequencies, which are no weight, and leaves them out."""
    name = f"{naming.body}pos_emb.inv_freq"
    if name in tensors:
        found, expected = tensors.shapes[name], frequencies(hidden_dim)
        is_expected = found == expected.shape
        if is_expected:
            found = tensors[name]
            # The file may hold them with fewer bits.
            tolerance = max(1e-5, 2 * float(ml_dtypes.finfo(found.dtype).eps))
            found = found.astype(np.float32)
            is_expected = np.allclose(found, expected, tolerance, 0)
        if not is_expected:
            raise ValueError(
                f"{source}: {name} must hold the {len(expected)} frequencies "
                "10000^(-2i / d_model) of the original, because no other "
                f"sinusoids are supported. Received: {shown([*found])}"
            )
    return tensors.renamed(lambda other: None if other == name else other)


def _tables(softmax, naming):
    """Yields tables, biases and projections; clusters may share them."""
    embedding, ties = softmax.embedding, softmax.tie_projections
    clusters = [(j,) for j in range(embedding.num_clusters)]
    is_one = embedding.div_val == 1
    groups = [sum(clusters, ())] if is_one else clusters

    def named(template, j):
        return template.format(j=j, cutoff="" if is_one else f"cutoff_{j}/")

    def table(templates, weight, group, *columns):
        names = [named(template, group[0]) for template in templates]
        rows = sum(embedding.cluster_size(i) for i in group)
        return Entry(names, [f"{weight}_{i}" for i in group], (rows, *columns))

    def projection(names, layer, j):
        shape = (embedding.dims[j], embedding.output_dim)
        return _linear(names, f"{layer}/projection_{j}", shape, naming)

    for group in groups:
        j, size = group[0], embedding.dims[group[0]]
        templates = [naming.table]
        if softmax.tie_embeddings and naming.is_torch:
            templates.append(naming.out_table)
        yield table(templates, "token_embedding/embeddings", group, size)
        if not softmax.tie_embeddings:
            yield table([naming.out_table], "softmax/kernel", group, size)
        if embedding.needs_projection(j):
            names = [named(naming.projection, j)]
            if naming.shared_projection:
                names.append(named(naming.shared_projection, j))
            if naming.is_torch:
                out = naming.out_projection
                names += [named(out, i) for i in group if ties[i]]
            yield projection(names, "token_embedding", j)
    for (j,) in clusters:
        if embedding.needs_projection(j) and not ties[j]:
            yield projection(named(naming.out_projection, j), "softmax", j)
    out_bias = naming.out_bias
    if not naming.is_torch and not embedding.cutoffs:
        out_bias = "transformer/adaptive_softmax/bias"
    for group in groups if naming.is_torch else clusters:
        yield table([out_bias], "softmax/bias", group)


def _linear(names, weights, shape, naming, **options):
    """Returns the entry of a linear layer; `shape` is that of our weights."""
    shape = shape[::-1] if naming.is_torch else shape
    return Entry(names, weights, shape, transposed=naming.is_torch, **options)


def _clusters(softmax, naming):
    """Yields the kernel and bias for the tails in the head."""
    tails = len(softmax.embedding.cutoffs)
    flipped = 0 if naming.reversed_clusters else None
    for name, part, shape in (
        (naming.cluster_kernel, "kernel", (tails, softmax.embedding.dims[0])),
        (naming.cluster_bias, "bias", (tails,)),
    ):
        if tails:
            yield Entry(name, f"softmax/cluster_{part}", shape, flipped=flipped)


def _positions(backbone, naming):
    """Yields the attention biases and the learned tensors of positions."""
    layers = range(backbone.num_layers)
    heads = (backbone.num_heads, backbone.head_dim)
    positions = backbone.max_positions

    def stacked(name, weight, *shape, **options):
        weights = [f"block_{i}/{weight}" for i in layers]
        shape = (backbone.num_layers, *shape)
        return Entry(naming.body + name, weights, shape, **options)

    if backbone.attention_type == "shaw":
        # Distance 0 is the last row; in our weights it is the first.
        for name, part, *sizes in (
            ("r_emb", "position_keys", *heads),
            ("r_bias", "position_biases", heads[0]),
        ):
            weight = f"attention/{part}"
            yield stacked(name, weight, positions, *sizes, flipped=1)
        yield stacked("r_w_bias", "attention/content_attention_bias", *heads)
    elif backbone.attention_type == "al_rfou":
        sizes = (backbone.hidden_dim,) if naming.flat_positions else heads
        yield stacked("r_emb", "position_embeddings", positions, *sizes)
    elif backbone.attention_type == "relative":
        for name, kind in (("r_w_bias", "content"), ("r_r_bias", "positional")):
            bias = f"{kind}_attention_bias"
            in_layers = [
                f"{naming.body}{naming.layer.format(i=i)}dec_attn.{name}"
                for i in layers
            ]
            if backbone.tie_attention_biases:
                names = in_layers if naming.biases_in_layers else []
                yield Entry([naming.body + name, *names], bias, heads)
            elif naming.is_torch:
                for i in layers:
                    weight = f"block_{i}/attention/{bias}"
                    yield Entry(in_layers[i], weight, heads)
            else:
                yield stacked(name, f"attention/{bias}", *heads)


def _block(backbone, naming, i):
    size = backbone.hidden_dim
    heads = backbone.num_heads * backbone.head_dim
    layer = naming.body + naming.layer.format(i=i)
    attention = f"block_{i}/attention"
    kernels = [(naming.qkv, ("query", "key", "value"))]
    if backbone.attention_type == "relative":
        kernels.append((naming.position, ("position",)))
    elif backbone.attention_type != "shaw":
        kernels = [
            ("dec_attn.q_net.weight", ("query",)),
            ("dec_attn.kv_net.weight", ("key", "value")),
        ]
    for name, parts in kernels:
        weights = [f"{attention}/{part}/kernel" for part in parts]
        shape = (size, len(parts) * heads)
        yield _linear(layer + name, weights, shape, naming, axis=1)
    output = f"{attention}/output/kernel"
    yield _linear(layer + naming.output, output, (heads, size), naming)
    names = [layer + name for name in naming.parts]
    yield from feed_forward_and_norms(names, i, backbone, naming.is_torch)
