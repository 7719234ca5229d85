"""Import of checkpoints of the original TensorFlow 1 code."""

import re

import keras

from txl_keras.backend import tf
from txl_keras.checkpoints.configuration import read_config
from txl_keras.checkpoints.transformer_xl import TF1
from txl_keras.checkpoints.transformer_xl import load_model
from txl_keras.checks import check_no_pattern
from txl_keras.json_files import MAX_BYTES
from txl_keras.json_files import open_checked
from txl_keras.tensor_files import Tensors
from txl_keras.types import DType
from txl_keras.types import PathLike

# Variables of a training checkpoint besides the weights.
_NOT_WEIGHTS = re.compile(r"(.*/)?(Adam(_1)?|beta[12]_power(_1)?|global_step)$")


def load_tf1(
    prefix: PathLike, config: dict, dtype: DType | None = None, **overrides
) -> keras.Model:
    """Loads a checkpoint of the original TensorFlow code.

    The published models (enwik8, text8, wt103, lm1b) have this format. As in
    the original, memory starts as zeros that are attended to.

    Args:
        prefix: String or path: the prefix of the checkpoint, such as
            `"model.ckpt-0"`, or a folder with one checkpoint.
        config: Dictionary with the keys of the original, or the path of a JSON
            file with such a dictionary: `n_token`, `n_layer`, `n_head`,
            `d_model`, `d_head`, `d_inner`, `mem_len`, and, if they differ from
            the original's defaults, `d_embed`, `cutoffs`, `div_val`,
            `tie_projs` (or `proj_share_all_but_first`), `proj_same_dim`,
            `untie_r`, `same_length`, `clamp_len`.
        dtype: Optional dtype policy, such as `"mixed_bfloat16"`.
        **overrides: `memory_length`, `clamp_length`, `same_length`, `dropout`,
            `attention_dropout` or `cold_start`, to replace the value of the
            configuration.

    Returns:
        `TransformerXLCausalLM`.

    Example, with files that are not part of the package:

    ```
    model = load_tf1("lm1b/model.ckpt-1191000", "lm1b.json", memory_length=128)
    ```
    """
    return load_slot(prefix, config, dtype, overrides)


def load_slot(prefix, config, dtype, overrides, slot=""):
    """Builds a model of the weights, or of Adam's values for each weight."""
    config = read_config(config, overrides)
    if not config["cutoffs"]:
        config["tie_projs"] = [True]  # the original has no option for this
    config["layer_norm_epsilon"] = 1e-12
    prefix = _find_prefix(prefix)
    try:
        tensors = _tensors(prefix, slot)
        return load_model(config, overrides, dtype, tensors, prefix, TF1)
    except (tf.errors.OpError, IndexError) as error:
        raise ValueError(f"{prefix} cannot be read: {error}") from error


def _find_prefix(path):
    """Returns the prefix for a prefix, one of its files, or its folder."""
    path = re.sub(r"\.(index|meta|data-\d+-of-\d+)$", "", str(path))
    check_no_pattern("prefix", path)
    if tf.io.gfile.exists(f"{path}.index"):
        return path
    found = tf.io.gfile.glob(f"{path}/*.index")
    if len(found) == 1:
        return found[0].removesuffix(".index")
    raise ValueError(
        "`prefix` must be the part before `.index` in the name of a "
        f"checkpoint's file, or a folder with one. Received: prefix={path}. "
        f"Checkpoints there: {sorted(found) or 'none'}"
    )


def _tensors(prefix, slot):
    open_checked(f"{prefix}.index", MAX_BYTES).close()
    reader = tf.train.load_checkpoint(prefix)
    shapes = {
        name: shape
        for name, shape in reader.get_variable_to_shape_map().items()
        if (name.endswith(slot) if slot else not _NOT_WEIGHTS.match(name))
    }
    if slot and not shapes:
        raise ValueError(
            f"{prefix} must hold the state of Adam, variables that end with "
            f"{slot}, as training checkpoints do. Received: none"
        )
    files = tf.io.gfile.glob(f"{prefix}.data-*")
    tensors = Tensors(
        shapes,
        reader.get_tensor,
        sum(tf.io.gfile.stat(file).length for file in files),
    )
    return tensors.renamed(lambda name: name.removesuffix(slot))
