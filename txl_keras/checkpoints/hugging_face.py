"""Import and export of Hugging Face's `TransfoXLLMHeadModel`."""

import json
import os
import pathlib

import keras
import numpy as np

from txl_keras.checkpoints.configuration import DEFAULTS
from txl_keras.checkpoints.configuration import SIZES
from txl_keras.checkpoints.configuration import raise_found
from txl_keras.checkpoints.configuration import read_config
from txl_keras.checkpoints.layout import write
from txl_keras.checkpoints.pytorch import load_torch
from txl_keras.checkpoints.pytorch import torch_tensors
from txl_keras.checkpoints.transformer_xl import HUGGING_FACE
from txl_keras.checkpoints.transformer_xl import load_model
from txl_keras.checkpoints.transformer_xl import make_layout
from txl_keras.checkpoints.vocabularies import load_vocabulary
from txl_keras.checks import check_path
from txl_keras.checks import shown
from txl_keras.data import WordTokenizer
from txl_keras.data.corpora.files import write_text
from txl_keras.json_files import read_json
from txl_keras.models.hub import VOCABULARIES
from txl_keras.models.transformer_xl_backbone import TransformerXLBackbone
from txl_keras.models.transformer_xl_causal_lm import TransformerXLCausalLM
from txl_keras.output_folders import check_new
from txl_keras.output_folders import replaced_when_complete
from txl_keras.tensor_files import read_safetensors
from txl_keras.tensor_files import write_safetensors
from txl_keras.types import DType
from txl_keras.types import PathLike

# Default values of the library for missing keys of a configuration.
_DEFAULTS = {
    "clamp_len": 1000,
    "cutoffs": (20000, 40000, 200000),
    "d_embed": 1024,
    "div_val": 4,
    "dropout": 0.1,
    "mem_len": 1600,
    "proj_share_all_but_first": True,
    "same_length": True,
    "tie_word_embeddings": True,
    "untie_r": True,
}


def load_hugging_face(
    folder: PathLike, dtype: DType | None = None, **overrides
) -> keras.Model:
    """Loads a `TransfoXLLMHeadModel` that `save_pretrained` wrote.

    The model may be the published `transfo-xl-wt103`. No pickled code is
    executed. As in Hugging Face's implementation, memory starts as zeros that
    are attended to.

    Args:
        folder: String or path of the folder, with `config.json` and either
            `model.safetensors` or `pytorch_model.bin`.
        dtype, **overrides: See `load_tf1`.

    Returns:
        `TransformerXLCausalLM`.

    Example:

    ```python
    import tempfile

    from txl_keras.checkpoints import load_hugging_face, save_hugging_face
    from txl_keras.models import TransformerXLCausalLM

    model = TransformerXLCausalLM.from_preset(
        "quickstart", num_layers=1, cold_start="zeros"
    )
    folder = tempfile.mkdtemp() + "/quickstart"
    save_hugging_face(model, folder)
    loaded = load_hugging_face(folder, memory_length=400)
    ```
    """
    folder = pathlib.Path(folder)
    known = {*SIZES, *DEFAULTS, *_DEFAULTS}
    config, path = folder_config(folder, "transfo-xl", known)
    config = read_config(config, overrides, path, _DEFAULTS)
    config["tie_weight"] = config["tie_word_embeddings"]
    tensors = folder_tensors(folder)
    return load_model(config, overrides, dtype, tensors, folder, HUGGING_FACE)


def load_with_tokenizer(folder, dtype, drop_head, **overrides):
    """Loads a model, and a function that reads its tokenizer."""
    del drop_head  # there is only one kind of head

    def load_tokenizer():
        names = (os.path.join(folder, name) for name in VOCABULARIES)
        for path in filter(os.path.isfile, names):
            symbols = load_vocabulary(path)
            line_end = "<eos>" if "<eos>" in symbols else None
            return WordTokenizer(symbols, line_end=line_end)

    return load_hugging_face(folder, dtype, **overrides), load_tokenizer


def save_hugging_face(model: keras.Model, folder: PathLike) -> None:
    """Writes a folder that Hugging Face's `from_pretrained` can load.

    A `TransfoXLLMHeadModel` (transformers up to 4.35) then computes the same
    outputs. If writing fails, the folder is not created.

    Args:
        model: `TransformerXLCausalLM`.
        folder: String or path of a new or empty folder.

    Example: see `load_hugging_face`.
    """
    _check_exportable(model)
    folder = check_path("folder", folder)
    check_new("folder", folder)
    size = model.backbone.hidden_dim
    exponents = np.arange(0, size, 2, np.float32) / size
    tensors = {
        **write(model, make_layout(HUGGING_FACE, model)),
        # The library expects the frequencies of the sinusoids.
        "transformer.pos_emb.inv_freq": 1 / np.float32(10000) ** exponents,
    }
    with replaced_when_complete(folder) as new:
        config = json.dumps(_config(model), indent=2) + "\n"
        write_text(config, os.path.join(new, "config.json"))
        path = os.path.join(new, "model.safetensors")
        write_safetensors(tensors, path, metadata={"format": "pt"})


def _check_exportable(model):
    """Checks for options that the library lacks; `write` checks weights."""
    backbone = model.backbone
    is_causal = isinstance(model, TransformerXLCausalLM)
    if not is_causal or type(backbone) is not TransformerXLBackbone:
        raise ValueError(
            "`model` must be a TransformerXLCausalLM of a "
            "TransformerXLBackbone to be exported as a TransfoXLLMHeadModel. "
            f"Received: {type(model).__name__} of a {type(backbone).__name__}"
        )
    embedding = backbone.token_embedding
    raise_found(
        "`model` must have only what Hugging Face's TransfoXLLMHeadModel "
        "supports. Received:",
        {
            f"attention_type={backbone.attention_type!r}: must be 'relative'": (
                backbone.attention_type != "relative"
            ),
            "normalize_output=True: must be False": backbone.normalize_output,
            f"cold_start={backbone.cold_start!r}: its memory starts as zeros; "
            "load the model with cold_start='zeros'": (
                backbone.cold_start != "zeros"
            ),
            "same_length=True: its tokens attend to one key fewer; load the "
            "model with same_length='pytorch'": backbone.same_length is True,
            "project_same_dim=False: it projects every table if div_val > 1": (
                embedding.div_val > 1
                and any(p is None for p in embedding.projections)
            ),
        },
    )


def _config(model):
    backbone = model.backbone
    embedding = backbone.token_embedding
    sizes = {key: getattr(backbone, name) for key, name in SIZES.items()}
    return {
        "adaptive": True,
        "architectures": ["TransfoXLLMHeadModel"],
        "attn_type": 0,
        "clamp_len": backbone.clamp_length or -1,
        "cutoffs": list(embedding.cutoffs),
        "d_embed": embedding.embedding_dim,
        "div_val": embedding.div_val,
        "dropatt": backbone.attention_dropout,
        "dropout": backbone.dropout,
        "init_std": backbone.initializer_stddev,
        "layer_norm_epsilon": backbone.layer_norm_epsilon,
        "model_type": "transfo-xl",
        "pre_lnorm": backbone.normalize_first,
        "proj_init_std": backbone.projection_initializer_stddev or 0.01,
        "same_length": bool(backbone.same_length),
        "sample_softmax": -1,
        "tie_projs": list(model.softmax.tie_projections),
        "tie_word_embeddings": model.softmax.tie_embeddings,
        "torch_dtype": "float32",
        "untie_r": not backbone.tie_attention_biases,
        "vocab_size": sizes.pop("n_token"),
        **sizes,
    }


# Files of a folder, also for XLNet.


def folder_config(folder, model_type, known):
    """Returns the known keys of a folder's configuration, and its path."""
    path = folder / "config.json"
    config = read_json(path)
    if config.get("model_type", model_type) != model_type:
        raise ValueError(
            f"{path} must be of model_type {model_type!r}. Received: "
            f"{shown(config['model_type'])}"
        )
    if "vocab_size" in config:
        config["n_token"] = config["vocab_size"]
    # Most other keys are options of generation.
    return {key: config[key] for key in {*known} & {*config}}, path


def folder_tensors(folder):
    """Returns the `Tensors` of a folder."""
    # In the order of preference, as in the transformers library.
    path = folder / "model.safetensors"
    if path.is_file():
        return read_safetensors(path)
    path = folder / "pytorch_model.bin"
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} must hold model.safetensors or pytorch_model.bin."
        )
    return torch_tensors(*load_torch(path), path)
