"""A checkpoint of the published WikiText-103-large shapes, random weights."""

import numpy as np
import pytest
import tensorflow as tf

from txl_keras.checkpoints import load_tf1
from txl_keras.checkpoints.layout import write
from txl_keras.checkpoints.transformer_xl_layout import TF1
from txl_keras.checkpoints.transformer_xl_layout import transformer_xl_layout
from txl_keras.models import TransformerXLCausalLM
from txl_keras.serving import Generator
from txl_keras.serving import Sampler

CONFIG = {
    "n_token": 267_735,
    "n_layer": 18,
    "d_model": 1024,
    "d_embed": 1024,
    "n_head": 16,
    "d_head": 64,
    "d_inner": 4096,
    "cutoffs": [20_000, 40_000, 200_000],
    "div_val": 4,
    "tie_projs": [False, True, True, True],
    "proj_same_dim": True,
    "untie_r": True,
    "mem_len": 1600,
    "same_length": True,
    "clamp_len": 1000,
}


@pytest.mark.large
def test_wikitext103_large_loads_scores_and_generates(tmp_path):
    prefix = str(tmp_path / "model.ckpt-0")
    original = TransformerXLCausalLM.from_preset("wikitext103_large")
    tensors = write(original, transformer_xl_layout(original, TF1))
    assert tensors["transformer/layer_17/rel_attn/qkv/kernel"].shape == (
        1024,
        3072,
    )
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=list(tensors.values()),
    )
    model = load_tf1(prefix, CONFIG)
    assert model.count_params() == 285_205_322
    for ours, theirs in zip(model.weights, original.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    del original, tensors

    ids = np.random.default_rng(0).integers(267_735, size=(2, 9))
    nll, _ = model.score(ids[:, :-1], ids[:, 1:])
    log_probs, _ = model.log_probs(ids[:, :-1])
    np.testing.assert_allclose(
        nll,
        -np.take_along_axis(log_probs.numpy(), ids[:, 1:, None], -1)[..., 0],
        atol=1e-4,
    )
    write_tokens = Generator(model, Sampler(temperature=0), memory_length=16)
    written = [token[0] for token in write_tokens(ids[:1], max_tokens=3)]
    # As many zeros to attend to as the generator's memory begins with.
    log_probs, _ = model.log_probs(ids[:1], model.initial_memory(1, 16))
    assert written[0] == np.argmax(log_probs.numpy()[0, -1])
