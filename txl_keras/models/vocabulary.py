"""Extends the vocabularies of trained models."""

import keras
import numpy as np
from keras import ops

from txl_keras.checks import check_integer
from txl_keras.checks import check_vocabulary
from txl_keras.checks import shown
from txl_keras.data.tokenizers.tokenizer import Tokenizer
from txl_keras.models.recurrent_backbone import RecurrentBackbone
from txl_keras.weights import weights_by_name

# Noise, relative to the old rows' standard deviation, so that new rows differ.
_NOISE = 0.01


def extend_vocabulary(
    model: keras.Model,
    vocabulary_size: int,
    tokenizer: Tokenizer | None = None,
    seed: int = 0,
) -> keras.Model:
    """Copies a trained model and adds tokens to its vocabulary.

    New tokens get the ids after the old ones; with `cutoffs` they are in the
    last cluster. Their embeddings are the mean of the old embeddings (of the
    last cluster) plus small noise, and their biases are the mean of the old
    biases. All other weights are equal. So the probabilities of old tokens keep
    their ratios within a cluster.

    Args:
        model: A model or backbone with a token embedding. It is not changed.
        vocabulary_size: Integer, more than the model's.
        tokenizer: The tokenizer of the new vocabulary. Required if the model
            has a tokenizer.
        seed: Integer of at least 0, seed of the noise.

    Returns:
        A new model of the same class, not compiled.

    Example:

    ```python
    from txl_keras.models import TransformerXLCausalLM, extend_vocabulary

    model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
    size = model.backbone.vocabulary_size
    larger = extend_vocabulary(model, size + 2)
    ```
    """
    backbone = getattr(model, "backbone", model)
    old_size = getattr(backbone, "vocabulary_size", None)
    if not isinstance(backbone, RecurrentBackbone) or old_size is None:
        raise ValueError(
            "`model` must be a model or a backbone of `txl_keras.models` with "
            f"a token embedding. Received: model={shown(model)}"
        )
    check_integer("seed", seed, 0)
    check_integer("vocabulary_size", vocabulary_size, old_size + 1)
    if tokenizer is not None:
        check_vocabulary(tokenizer, vocabulary_size)
    elif getattr(model, "tokenizer", None) is not None:
        raise ValueError(
            "`tokenizer` must be given, because the model has a tokenizer of "
            f"{old_size} symbols. Received: tokenizer=None"
        )
    config = keras.saving.serialize_keras_object(model)["config"]
    sizes = config if backbone is model else config["backbone"]["config"]
    sizes["vocabulary_size"] = vocabulary_size
    config.pop("tokenizer", None)
    larger = type(model).from_config(config)
    if tokenizer is not None:
        larger.tokenizer = tokenizer
    old, new = weights_by_name(model), weights_by_name(larger)
    if old.keys() != new.keys():
        raise ValueError(
            "`model` must have no LoRA matrices: save and load it to merge "
            f"them. Received: {shown(sorted(old.keys() ^ new.keys()))}"
        )
    rng = np.random.default_rng(seed)
    for name, weight in new.items():
        value = old[name]
        if weight.shape != value.shape:
            rows = _new_rows(value.numpy(), weight.shape[0], rng)
            value = ops.concatenate(
                [value, ops.cast(rows, value.dtype)], axis=0
            )
        weight.assign(value)
    return larger


def _new_rows(table, num_rows, rng):
    """Returns rows to add to a table `(n, e)`, or to biases `(n,)`."""
    table = np.asarray(table, "float32")  # a long sum in bfloat16 is wrong
    shape = (num_rows - len(table), *table.shape[1:])
    rows = np.broadcast_to(table.mean(axis=0), shape)
    if table.ndim == 1:
        return rows
    return rows + _NOISE * table.std(axis=0) * rng.standard_normal(shape)
