"""Import of checkpoints of the original TensorFlow 1 code.

Names and shapes are those of its `model.py`, scope `transformer`.
"""

import pathlib
import re

import numpy as np
import tensorflow as tf

from txl_keras.checkpoints.configuration import Plan
from txl_keras.checkpoints.configuration import read_config
from txl_keras.checkpoints.configuration import tied_projections
from txl_keras.checkpoints.layout import Entry
from txl_keras.checkpoints.layout import projection_shapes
from txl_keras.checkpoints.layout import read
from txl_keras.checks import check_no_pattern
from txl_keras.checks import shown
from txl_keras.json_files import MAX_BYTES
from txl_keras.json_files import open_checked
from txl_keras.tensor_files import Tensors
from txl_keras.weights import weights_by_name

# Variables of a training checkpoint besides the weights.
_NOT_WEIGHTS = re.compile(r"(.*/)?(Adam(_1)?|beta[12]_power(_1)?|global_step)$")
_DEFAULTS = {
    "tie_projs": None,
    "proj_share_all_but_first": False,
    "proj_same_dim": True,
    "untie_r": False,
}


def load_tf1(prefix, config, dtype=None, **overrides):
    """Loads a checkpoint of the original TensorFlow code.

    The published models (enwik8, text8, wt103, lm1b) have this format. As in
    the original, memory starts as zeros that are attended to.

    Args:
        prefix: String or path: the prefix of the checkpoint, such as
            `"model.ckpt-0"`, or a folder with one checkpoint.
        config: Dictionary with the keys of the original, or the path of a JSON
            file with one: `n_token`, `n_layer`, `n_head`, `d_model`, `d_head`,
            `d_inner`, `mem_len`, and, if they differ from the original's
            defaults, `d_embed`, `cutoffs`, `div_val`, `tie_projs` (or
            `proj_share_all_but_first`), `proj_same_dim`, `untie_r`,
            `same_length`, `clamp_len`.
        dtype: Optional dtype policy, such as `"mixed_bfloat16"`.
        **overrides: `memory_length`, `clamp_length`, `same_length`, `dropout`,
            `attention_dropout` or `cold_start`, to replace the value of the
            configuration.

    Returns:
        `TransformerXLCausalLM`.

    Raises:
        ValueError: If there is no checkpoint, it is damaged, keys are missing
            in the configuration, or it does not fit the checkpoint; the
            message lists all problems.

    Example, with files that are not part of the package:

    ```
    model = load_tf1("lm1b/model.ckpt-1191000", "lm1b.json", memory_length=128)
    ```
    """
    return _load(prefix, config, dtype, overrides)


def load_tf1_mean_square(prefix, config):
    """Loads Adam's mean squares of gradients from a TensorFlow 1 checkpoint.

    They are statistics for dynamic evaluation with the weights of the same
    checkpoint. The published script of Krause et al., 2019, uses these, and not
    those that it collects.

    Args:
        prefix, config: See `load_tf1`.

    Returns:
        Dictionary of float32 arrays by the names of weights, for
        `DynamicEvaluator(mean_square=...)`.

    Raises:
        ValueError: As `load_tf1`, or if the checkpoint does not hold the state
            of Adam, as checkpoints that were made for evaluation do not.

    Example, with files that are not part of the package:

    ```
    model = load_tf1("model.ckpt-0", "config.json")
    mean_square = load_tf1_mean_square("model.ckpt-0", "config.json")
    evaluator = DynamicEvaluator(  # the published settings for enwik8
        model, 1.2e-5, mean_square, decay=24, epsilon=1e-4, clip_decay=False,
        segment_length=128,
    )
    ```

    Reference:
        [Krause et al., 2019](https://arxiv.org/abs/1904.08378).
    """
    model = _load(prefix, config, None, {}, slot="/Adam_1")
    return {
        name: np.asarray(weight, np.float32)
        for name, weight in weights_by_name(model).items()
    }


def _load(prefix, config, dtype, overrides, slot=""):
    """Builds a model of the weights, or of what Adam keeps of each."""
    config = read_config(config, overrides, _DEFAULTS)
    if not config["cutoffs"]:
        config["tie_projs"] = [True]  # the original has no option for this
    prefix = _find_prefix(prefix)
    try:
        tensors = _tensors(prefix, slot)
        plan = Plan(
            config,
            overrides,
            dtype,
            tensors,
            prefix,
            tie_embeddings=True,
            tie_projections=tied_projections(config),
            project_same_dim=bool(config["proj_same_dim"]),
            same_length=bool(config["same_length"]),
            tie_attention_biases=not config["untie_r"],
            layer_norm_epsilon=1e-12,
            cold_start="zeros",
        )
        return read(plan.build, tf1_layout(plan), tensors, prefix)
    except (tf.errors.OpError, IndexError) as error:
        raise ValueError(f"{prefix} cannot be read: {error}") from error


def _find_prefix(path):
    """Returns the prefix for a prefix, one of its files, or its folder."""
    path = str(path)
    check_no_pattern("prefix", path)
    if not tf.io.gfile.isdir(path):
        path = re.sub(r"\.(index|meta|data-\d+-of-\d+)$", "", path)
        if tf.io.gfile.exists(f"{path}.index"):
            return path
        folder = str(pathlib.Path(path).parent)
    else:
        folder = path
        latest = _latest(folder)
        if latest is not None:
            return latest
    found = [
        name.removesuffix(".index")
        for name in sorted(tf.io.gfile.glob(f"{folder}/*.index"))
    ]
    if folder == path and len(found) == 1:
        return found[0]
    raise ValueError(
        "`prefix` must be the part before `.index` in the name of a "
        f"checkpoint's file, or a folder with one. Received: prefix={path}. "
        f"Checkpoints there: {found or 'none'}"
    )


def _latest(folder):
    """Returns the prefix that the folder's `checkpoint` file names, if any."""
    path = f"{folder}/checkpoint"
    if not tf.io.gfile.exists(path):
        return None
    open_checked(path, MAX_BYTES).close()
    try:
        state = tf.train.get_checkpoint_state(folder)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    name = pathlib.Path(state.model_checkpoint_path if state else "").name
    # Only the name is used: the path may be of another machine, or malicious.
    prefix = f"{folder}/{name}"
    return prefix if tf.io.gfile.exists(f"{prefix}.index") else None


def _tensors(prefix, slot):
    open_checked(f"{prefix}.index", MAX_BYTES).close()
    reader = tf.train.load_checkpoint(prefix)
    dtypes = {
        name: dtype
        for name, dtype in reader.get_variable_to_dtype_map().items()
        if (name.endswith(slot) if slot else not _NOT_WEIGHTS.match(name))
    }
    if slot and not dtypes:
        raise ValueError(
            f"{prefix} must hold the state of Adam, variables that end with "
            f"{slot}, as checkpoints of a training do. Received: none"
        )
    not_floats = [name for name in dtypes if not dtypes[name].is_floating]
    if not_floats:
        raise ValueError(
            f"{prefix} must hold variables of floats. Received: other dtypes "
            f"of {shown(not_floats)}"
        )
    shapes = reader.get_variable_to_shape_map()
    files = tf.io.gfile.glob(f"{prefix}.data-*")
    tensors = Tensors(
        {name: shapes[name] for name in dtypes},
        reader.get_tensor,
        sum(tf.io.gfile.stat(file).length for file in files),
    )
    return tensors.renamed(lambda name: name.removesuffix(slot))


def tf1_layout(model):
    """Returns the layout of a TensorFlow 1 checkpoint for a model or `Plan`."""
    backbone = model.backbone
    layout = [
        *_attention_biases(backbone),
        *_embedding(model.softmax),
        *_softmax(model.softmax),
    ]
    for i in range(backbone.num_layers):
        layout += _block(backbone, i)
    return layout


def _entry(name, weights, shape, axis=0):
    weights = (weights,) if isinstance(weights, str) else tuple(weights)
    return Entry((f"transformer/{name}",), weights, tuple(shape), axis=axis)


def _attention_biases(backbone):
    shape = (backbone.num_heads, backbone.head_dim)
    for name, bias in (
        ("r_w_bias", "content_attention_bias"),
        ("r_r_bias", "positional_attention_bias"),
    ):
        if backbone.tie_attention_biases:
            yield _entry(name, bias, shape)
        else:
            layers = range(backbone.num_layers)
            yield _entry(
                name,
                [f"block_{i}/attention/{bias}" for i in layers],
                (backbone.num_layers, *shape),
            )


def _embedding(softmax):
    embedding = softmax.embedding
    clusters = range(embedding.num_clusters)
    tables = [f"token_embedding/embeddings_{j}" for j in clusters]
    if embedding.div_val == 1:
        yield _entry(
            "adaptive_embed/lookup_table",
            tables,
            (embedding.input_dim, embedding.dims[0]),
        )
    else:
        for j in clusters:
            yield _entry(
                f"adaptive_embed/cutoff_{j}/lookup_table",
                tables[j],
                (embedding.cluster_size(j), embedding.dims[j]),
            )
    for j, shape in enumerate(projection_shapes(softmax)[0]):
        if shape is not None:
            scope = "" if embedding.div_val == 1 else f"cutoff_{j}/"
            yield _entry(
                f"adaptive_embed/{scope}proj_W",
                f"token_embedding/projection_{j}",
                shape,
            )


def _softmax(softmax):
    embedding = softmax.embedding
    if not embedding.cutoffs:
        yield _entry(
            "adaptive_softmax/bias", "softmax/bias_0", (embedding.input_dim,)
        )
        return
    for j, shape in enumerate(projection_shapes(softmax)[1]):
        scope = f"adaptive_softmax/cutoff_{j}"
        size = embedding.cluster_size(j)
        yield _entry(f"{scope}/b", f"softmax/bias_{j}", (size,))
        if shape is not None:
            yield _entry(f"{scope}/proj", f"softmax/projection_{j}", shape)
    num_tails = len(embedding.cutoffs)
    scope = "adaptive_softmax/cutoff_0"
    yield _entry(
        f"{scope}/cluster_W",
        "softmax/cluster_kernel",
        (num_tails, embedding.dims[0]),
    )
    yield _entry(f"{scope}/cluster_b", "softmax/cluster_bias", (num_tails,))


def _block(backbone, i):
    size = backbone.hidden_dim
    inner = backbone.intermediate_dim
    heads = backbone.num_heads * backbone.head_dim
    layer, block = f"layer_{i}", f"block_{i}"
    attention = f"{block}/attention"
    yield _entry(
        f"{layer}/rel_attn/qkv/kernel",
        [f"{attention}/{part}/kernel" for part in ("query", "key", "value")],
        (size, 3 * heads),
        axis=1,
    )
    for name, part, shape in (
        ("rel_attn/r/kernel", "attention/position/kernel", (size, heads)),
        ("rel_attn/o/kernel", "attention/output/kernel", (heads, size)),
        ("rel_attn/LayerNorm/gamma", "attention_norm/gamma", (size,)),
        ("rel_attn/LayerNorm/beta", "attention_norm/beta", (size,)),
        (
            "ff/layer_1/kernel",
            "feed_forward_intermediate/kernel",
            (size, inner),
        ),
        ("ff/layer_1/bias", "feed_forward_intermediate/bias", (inner,)),
        ("ff/layer_2/kernel", "feed_forward_output/kernel", (inner, size)),
        ("ff/layer_2/bias", "feed_forward_output/bias", (size,)),
        ("ff/LayerNorm/gamma", "feed_forward_norm/gamma", (size,)),
        ("ff/LayerNorm/beta", "feed_forward_norm/beta", (size,)),
    ):
        yield _entry(f"{layer}/{name}", f"{block}/{part}", shape)
