"""Numbers of the original TensorFlow code: see `testdata/golden`.

Tiny random models, whose weights and outputs were stored by the original
implementation: `nll [segment, T, B]`, memory after the last segment, and the
norm of the gradient of every segment's mean nll.
"""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from txl_keras.models import TransformerXLBackbone
from txl_keras.models import TransformerXLCausalLM

_GOLDEN = pathlib.Path(__file__).parent.parent / "testdata" / "golden"

# Name in the original, below `layer_i`: name here, below `block_i`.
_BLOCK_WEIGHTS = {
    "rel_attn/r/kernel": "attention/position/kernel",
    "rel_attn/o/kernel": "attention/output/kernel",
    "rel_attn/LayerNorm/gamma": "attention_norm/gamma",
    "rel_attn/LayerNorm/beta": "attention_norm/beta",
    "ff/LayerNorm/gamma": "feed_forward_norm/gamma",
    "ff/LayerNorm/beta": "feed_forward_norm/beta",
    "ff/layer_1/kernel": "feed_forward_intermediate/kernel",
    "ff/layer_1/bias": "feed_forward_intermediate/bias",
    "ff/layer_2/kernel": "feed_forward_output/kernel",
    "ff/layer_2/bias": "feed_forward_output/bias",
}


def load(name):
    """The model, its configuration in the original's words, and outputs."""
    folder = _GOLDEN / name
    config = json.loads((folder / "config.json").read_text())
    model = TransformerXLCausalLM(
        TransformerXLBackbone(
            vocabulary_size=config["n_token"],
            num_layers=config["n_layer"],
            num_heads=config["n_head"],
            hidden_dim=config["d_model"],
            head_dim=config["d_head"],
            intermediate_dim=config["d_inner"],
            memory_length=config["mem_len"],
            clamp_length=config["clamp_len"]
            if config["clamp_len"] > 0
            else None,
            same_length=config["same_length"],
            layer_norm_epsilon=1e-12,
            cold_start="zeros",
        )
    )
    reader = tf.train.load_checkpoint(str(folder / "model.ckpt"))
    values = {
        "softmax/bias_0": "adaptive_softmax/bias",
        "token_embedding/embeddings_0": "adaptive_embed/lookup_table",
        "content_attention_bias": "r_w_bias",
        "positional_attention_bias": "r_r_bias",
    }
    values = {
        ours: reader.get_tensor(f"transformer/{theirs}")
        for ours, theirs in values.items()
    }
    for i in range(config["n_layer"]):
        layer = f"transformer/layer_{i}/"
        for theirs, ours in _BLOCK_WEIGHTS.items():
            values[f"block_{i}/{ours}"] = reader.get_tensor(layer + theirs)
        queries_keys_values = np.split(
            reader.get_tensor(layer + "rel_attn/qkv/kernel"), 3, axis=1
        )
        for ours, value in zip(
            ("query", "key", "value"), queries_keys_values, strict=True
        ):
            values[f"block_{i}/attention/{ours}/kernel"] = value
    for weight in model.weights:
        value = values.pop(weight.path.split("/", 1)[1])
        weight.assign(value.reshape(weight.shape))
    assert not values
    return model, config, np.load(folder / "golden.npz")


@pytest.mark.parametrize("name", ["enwik8_like", "enwik8_like_eval"])
def test_equals_the_original_code(name):
    model, config, golden = load(name)
    length = config["tgt_len"]
    tokens = golden["tokens"].T
    memory = model.initial_memory(tokens.shape[0])
    for segment in range(config["num_segments"]):
        start = segment * length
        with tf.GradientTape() as tape:
            nll, memory = model.score(
                tokens[:, start : start + length],
                tokens[:, start + 1 : start + length + 1],
                memory,
            )
            loss = tf.reduce_mean(nll)
        weights = [w.value for w in model.trainable_weights]
        norm = tf.linalg.global_norm(tape.gradient(loss, weights))
        np.testing.assert_allclose(nll, golden["nll"][segment].T, atol=1e-5)
        np.testing.assert_allclose(
            norm, golden["grad_norm"][segment], rtol=1e-4
        )
    for state, expected in zip(
        memory.states, golden["final_memory"], strict=True
    ):
        np.testing.assert_allclose(
            state, expected.transpose(1, 0, 2), atol=1e-5
        )
