"""Models small enough to run in a moment, random enough to show a mix-up."""

import numpy as np

from txl_keras.models import TransformerXLBackbone
from txl_keras.models import TransformerXLCausalLM

V, D, L = 11, 8, 3


def small_backbone(dtype=None, **config):
    return TransformerXLBackbone(
        dtype=dtype,
        **{
            "vocabulary_size": V,
            "num_layers": L,
            "num_heads": 2,
            "hidden_dim": D,
            "head_dim": 5,
            "intermediate_dim": 12,
            "memory_length": 6,
            "initializer_stddev": 0.3,
            **config,
        },
    )


def small_model(dtype=None, **config):
    model = TransformerXLCausalLM(small_backbone(dtype, **config))
    rng = np.random.default_rng(4)
    model.softmax.biases[0].assign(rng.normal(size=(V,)))
    return model


def random_ids(*shape, seed=0):
    return np.random.default_rng(seed).integers(V, size=shape, dtype="int32")
