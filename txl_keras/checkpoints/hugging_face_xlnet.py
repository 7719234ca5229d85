"""Import of Hugging Face's XLNet models."""

import pathlib

import keras

from txl_keras.checkpoints import configuration
from txl_keras.checkpoints.hugging_face import folder_config
from txl_keras.checkpoints.hugging_face import folder_tensors
from txl_keras.checkpoints.layout import Entry
from txl_keras.checkpoints.layout import feed_forward_and_norms
from txl_keras.checkpoints.layout import read
from txl_keras.checks import check_head_dim
from txl_keras.checks import shown
from txl_keras.models.xlnet_backbone import XLNetBackbone
from txl_keras.models.xlnet_permutation_lm import XLNetPermutationLM
from txl_keras.types import DType
from txl_keras.types import PathLike

# Default values of the library for missing keys of a configuration.
_DEFAULTS = {
    "bi_data": False,
    "clamp_len": -1,
    "d_head": None,
    "d_inner": 4096,
    "d_model": 1024,
    "dropout": 0.1,
    "ff_activation": "gelu",
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "mem_len": 512,
    "n_head": 16,
    "n_layer": 24,
    "n_token": 32000,
    "reuse_len": None,
    "same_length": False,
    "tie_word_embeddings": True,
}
# Prefix of the body's tensors in a model with a head.
_BODY = "transformer."
# Names of the layer norms and linear layers of a layer.
_PARTS = ("rel_attn.layer_norm", "ff.layer_norm", "ff.layer_1", "ff.layer_2")


def load_hugging_face_xlnet(
    folder: PathLike,
    dtype: DType | None = None,
    drop_head: bool = False,
    **overrides,
) -> keras.Model:
    """Loads an XLNet model that Hugging Face's `save_pretrained` wrote.

    No pickled code is executed.

    Published configurations have a `mem_len` of null. Such a model has no
    memory, unless `memory_length` is passed.

    Args:
        folder: String or path of the folder, with `config.json` and either
            `model.safetensors` or `pytorch_model.bin`.
        dtype: Optional dtype policy, such as `"mixed_bfloat16"`.
        drop_head: Boolean. If true, loads the backbone without the head.
            Required for heads other than the one of `XLNetLMHeadModel`, because
            they cannot be loaded.
        **overrides: `memory_length`, `reuse_length`, `attention_type`,
            `clamp_length`, `dropout` or `attention_dropout`, to replace the
            value in the configuration.

    Returns:
        `XLNetPermutationLM` for an `XLNetLMHeadModel`, such as the published
        models, unless `drop_head=True`; otherwise `XLNetBackbone`.

    Example, with files that are not part of the package:

    ```
    model = load_hugging_face_xlnet("xlnet-base-cased")
    backbone = load_hugging_face_xlnet("xlnet-base-cased", drop_head=True)
    ```
    """
    folder = pathlib.Path(folder)
    config = _read_config(folder, overrides)
    tensors = folder_tensors(folder)
    configuration.check_sizes(config, tensors, folder)
    arguments = {
        **configuration.sized_arguments(config),
        "head_dim": check_head_dim(
            config["d_head"], config["d_model"], config["n_head"]
        ),
        "reuse_length": config["reuse_len"] or None,
        "attention_type": config["attn_type"],
        "attention_dropout": config["dropout"],
        "layer_norm_epsilon": config["layer_norm_eps"],
        "initializer_stddev": config["initializer_range"],
        **overrides,
    }
    has_head = "lm_loss.bias" in tensors and not drop_head
    is_tied = config["tie_word_embeddings"]

    def build(arguments):
        backbone = XLNetBackbone(dtype=dtype, **arguments)
        return XLNetPermutationLM(backbone, is_tied) if has_head else backbone

    def layout(_, num_layers):
        return [*_layout(num_layers, has_head, is_tied)]

    if has_head:
        tensors = tensors.renamed(lambda name: name.removeprefix(_BODY))
    else:
        tensors = _body(tensors, drop_head, folder)
    return read(build, arguments, layout, tensors, folder)


def _read_config(folder, overrides):
    known = {*_DEFAULTS, "attn_type"}
    config, path = folder_config(folder, "xlnet", known)
    kind = config.pop("attn_type", "bi")
    if config.get("mem_len", 0) is None:
        config["mem_len"] = 0
    config = configuration.read_config(config, overrides, path, _DEFAULTS)
    activation = config["ff_activation"]
    problems = {
        "bi_data=True: rows cannot be read backwards": config["bi_data"],
        "same_length=True: must be False with attn_type='uni'": (
            config["same_length"]
            and "uni" in (kind, overrides.get("attention_type"))
        ),
        f"attn_type={shown(kind)}: must be 'bi' or 'uni'": (
            kind not in ("bi", "uni")
        ),
        f"ff_activation={shown(activation)}: must be 'gelu'": (
            activation != "gelu"
        ),
    }
    configuration.raise_found(f"{path} has unsupported settings:", problems)
    return {**config, "attn_type": kind}


def _body(tensors, drop_head, folder):
    """Returns the body's tensors, with their names in an `XLNetModel`."""
    if not any(name.startswith(_BODY) for name in tensors):
        return tensors
    head = sorted(name for name in tensors if not name.startswith(_BODY))
    if head and not drop_head:
        raise ValueError(
            f"{folder} holds a model with the head {head}, which cannot be "
            "loaded. Pass `drop_head=True` to load the backbone without it. "
            "Received: drop_head=False"
        )
    return tensors.renamed(
        lambda name: None if name in head else name.removeprefix(_BODY)
    )


def _layout(num_layers, has_head, is_tied):
    """Yields the entries of an `XLNetModel`, or of an `XLNetLMHeadModel`."""
    tables = ["word_embedding.weight"]
    if has_head:
        yield Entry(["lm_loss.bias"], ["softmax/bias_0"])
        if is_tied:
            # The file may have the table under either name or under both.
            tables.append("lm_loss.weight")
        else:
            yield Entry(["lm_loss.weight"], ["softmax/kernel_0"])
    yield Entry(tables, ["token_embedding/embeddings_0"])
    yield Entry(["mask_emb"], ["mask_embedding"], lambda shape: (1, 1, *shape))
    for i in range(num_layers):
        for name, weight in (
            ("q", "query/kernel"),
            ("k", "key/kernel"),
            ("v", "value/kernel"),
            ("r", "position/kernel"),
            ("o", "output/kernel"),
            ("r_w_bias", "content_attention_bias"),
            ("r_r_bias", "positional_attention_bias"),
            ("r_s_bias", "segment_attention_bias"),
            ("seg_embed", "segment_embeddings"),
        ):
            name = f"layer.{i}.rel_attn.{name}"
            yield Entry([name], [f"block_{i}/attention/{weight}"])
        names = [f"layer.{i}.{part}" for part in _PARTS]
        yield from feed_forward_and_norms(names, i)
