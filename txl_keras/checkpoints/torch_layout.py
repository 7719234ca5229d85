"""The layout of Transformer-XL checkpoints of PyTorch.

The original code, NVIDIA's and Hugging Face's give most tensors the same
names; `Naming` holds the differences. Linear layers are `(out, in)`.

Letters: `D` hidden size, `N` heads, `H` head size, `P` positions, `V`
vocabulary, `L` layers.
"""

import dataclasses

import ml_dtypes
import numpy as np

from txl_keras.checkpoints.layout import Entry
from txl_keras.checkpoints.layout import projection_shapes
from txl_keras.checks import shown


@dataclasses.dataclass(frozen=True)
class Naming:
    """Holds the differences between the three implementations."""

    # Prefix of all tensors but those of the softmax.
    body: str = ""
    # Tables and biases of the softmax, with `{}` for the cluster.
    out_weight: str = "crit.out_layers.{}.weight"
    out_bias: str = "crit.out_layers.{}.bias"
    # Second name of the embedding's projections.
    shared_projection: str | None = None
    # True if the head's entries for the tails are in reverse order.
    reversed_clusters: bool = True
    # True if layers repeat the attention biases that all of them share.
    biases_in_layers: bool = False
    # True if learned positions are `(L, P, D)` rather than `(L, P, N, H)`.
    flat_positions: bool = False


ORIGINAL = Naming()
NVIDIA = Naming(
    out_weight="crit.out_layers_weights.{}",
    out_bias="crit.out_layers_biases.{}",
    shared_projection="crit.shared_out_projs.{}",
    flat_positions=True,
)
HUGGING_FACE = Naming(
    body="transformer.", reversed_clusters=False, biases_in_layers=True
)


def torch_layout(model, naming):
    """Returns the layout of a PyTorch checkpoint for a model or `Plan`."""
    backbone = model.backbone
    layout = [
        *_tables(model.softmax, naming),
        *_projections(model.softmax, naming),
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


def without_frequencies(tensors, naming, hidden_dim, source):
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


def _entry(names, weights, shape, **options):
    names = (names,) if isinstance(names, str) else tuple(names)
    weights = (weights,) if isinstance(weights, str) else tuple(weights)
    return Entry(names, weights, tuple(shape), **options)


def _tables(softmax, naming):
    """Yields tables and biases; with `div_val=1` clusters share a tensor."""
    embedding = softmax.embedding
    clusters = range(embedding.num_clusters)
    groups = [[j] for j in clusters]
    if embedding.div_val == 1:
        groups = [[*clusters]]
    for j, group in enumerate(groups):
        words = sum(embedding.cluster_size(i) for i in group)
        shape = (words, embedding.dims[j])
        embedded = f"{naming.body}word_emb.emb_layers.{j}.weight"
        weight = naming.out_weight.format(j)
        tied = softmax.tie_embeddings
        yield _entry(
            [embedded, weight] if tied else embedded,
            [f"token_embedding/embeddings_{i}" for i in group],
            shape,
        )
        if not tied:
            yield _entry(weight, [f"softmax/kernel_{i}" for i in group], shape)
        yield _entry(
            naming.out_bias.format(j),
            [f"softmax/bias_{i}" for i in group],
            (words,),
        )


def _projections(softmax, naming):
    embedding = softmax.embedding
    tied = [j for j, is_tied in enumerate(softmax.tie_projections) if is_tied]
    of_embedding, of_softmax = projection_shapes(softmax)
    for j, shape in enumerate(of_embedding):
        if shape is None:
            continue
        names = [f"{naming.body}word_emb.emb_projs.{j}"]
        if naming.shared_projection:
            names.append(naming.shared_projection.format(j))
        shares = tied if embedding.div_val == 1 else {j} & {*tied}
        names += [f"crit.out_projs.{i}" for i in shares]
        yield _transposed(names, f"token_embedding/projection_{j}", shape)
    for j, shape in enumerate(of_softmax):
        if shape is not None:
            yield _transposed(
                f"crit.out_projs.{j}", f"softmax/projection_{j}", shape
            )


def _transposed(names, weights, shape, axis=0):
    """Returns the entry of a linear layer; `shape` is that of our weights."""
    return _entry(names, weights, shape[::-1], transposed=True, axis=axis)


def _clusters(softmax, naming):
    """Yields the kernel and bias for the tails in the head."""
    embedding = softmax.embedding
    num_tails = len(embedding.cutoffs)
    flipped = 0 if naming.reversed_clusters else None
    if num_tails:
        yield _entry(
            "crit.cluster_weight",
            "softmax/cluster_kernel",
            (num_tails, embedding.dims[0]),
            flipped=flipped,
        )
        yield _entry(
            "crit.cluster_bias",
            "softmax/cluster_bias",
            (num_tails,),
            flipped=flipped,
        )


def _positions(backbone, naming):
    """Yields the attention biases and the learned tensors of positions."""
    layers = range(backbone.num_layers)
    heads = (backbone.num_heads, backbone.head_dim)
    rows = (backbone.num_layers, backbone.max_positions)

    def stacked(name, weight, *shape, **options):
        weights = [f"block_{i}/{weight}" for i in layers]
        return _entry(name, weights, shape, **options)

    if backbone.attention_type == "relative":
        yield from _attention_biases(backbone, naming)
    elif backbone.attention_type == "shaw":
        # Distance 0 is the last row; in our weights it is the first.
        yield stacked(
            "r_emb", "attention/position_keys", *rows, *heads, flipped=1
        )
        yield stacked(
            "r_bias", "attention/position_biases", *rows, heads[0], flipped=1
        )
        yield stacked(
            "r_w_bias",
            "attention/content_attention_bias",
            backbone.num_layers,
            *heads,
        )
    elif backbone.attention_type == "al_rfou":
        sizes = (backbone.hidden_dim,) if naming.flat_positions else heads
        yield stacked("r_emb", "position_embeddings", *rows, *sizes)


def _attention_biases(backbone, naming):
    shape = (backbone.num_heads, backbone.head_dim)
    for name, bias in (
        ("r_w_bias", "content_attention_bias"),
        ("r_r_bias", "positional_attention_bias"),
    ):
        in_layers = [
            f"{naming.body}layers.{i}.dec_attn.{name}"
            for i in range(backbone.num_layers)
        ]
        if backbone.tie_attention_biases:
            names = [f"{naming.body}{name}"]
            names += in_layers if naming.biases_in_layers else []
            yield _entry(names, bias, shape)
        else:
            for i, in_layer in enumerate(in_layers):
                yield _entry(in_layer, f"block_{i}/attention/{bias}", shape)


def _block(backbone, naming, i):
    size = backbone.hidden_dim
    inner = backbone.intermediate_dim
    heads = backbone.num_heads * backbone.head_dim
    layer, block = f"{naming.body}layers.{i}", f"block_{i}"
    relative = backbone.attention_type in ("relative", "shaw")
    linear = (
        [("dec_attn.qkv_net", ["query", "key", "value"], heads)]
        if relative
        else [
            ("dec_attn.q_net", ["query"], heads),
            ("dec_attn.kv_net", ["key", "value"], heads),
        ]
    )
    if backbone.attention_type == "relative":
        linear.append(("dec_attn.r_net", ["position"], heads))
    for name, parts, columns in linear:
        yield _transposed(
            f"{layer}.{name}.weight",
            [f"{block}/attention/{part}/kernel" for part in parts],
            (size, len(parts) * columns),
            axis=1,
        )
    for name, part, shape in (
        ("dec_attn.o_net", "attention/output", (heads, size)),
        ("pos_ff.CoreNet.0", "feed_forward_intermediate", (size, inner)),
        ("pos_ff.CoreNet.3", "feed_forward_output", (inner, size)),
    ):
        yield _transposed(
            f"{layer}.{name}.weight", f"{block}/{part}/kernel", shape
        )
    for name, part, length in (
        ("pos_ff.CoreNet.0.bias", "feed_forward_intermediate/bias", inner),
        ("pos_ff.CoreNet.3.bias", "feed_forward_output/bias", size),
        ("dec_attn.layer_norm.weight", "attention_norm/gamma", size),
        ("dec_attn.layer_norm.bias", "attention_norm/beta", size),
        ("pos_ff.layer_norm.weight", "feed_forward_norm/gamma", size),
        ("pos_ff.layer_norm.bias", "feed_forward_norm/beta", size),
    ):
        yield _entry(f"{layer}.{name}", f"{block}/{part}", (length,))
