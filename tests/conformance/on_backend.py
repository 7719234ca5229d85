"""Drops units, draws tokens, and differentiates on any backend; a helper.

The weights and inputs are the same on every backend.
"""

import keras
import numpy as np
import pytest
from backends import compiled
from backends import gradients
from keras import ops

from txl_keras import layers
from txl_keras import samplers
from txl_keras.samplers.sampler import NO_EFFECT
from txl_keras.samplers.sampler import gumbel

B, T, M, D = 3, 5, 7, 8
HEADS = {"num_heads": 2, "key_dim": 4}
BLOCK = {"num_heads": 2, "head_dim": 4, "intermediate_dim": 12}
SEEDS = np.array([3, 1, 4], "uint32")
SAMPLERS = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"top_k": 3},
    {"top_p": 0.8},
    {"repetition_penalty": 1.9},
    {"temperature": 1.3, "top_k": 9, "top_p": 0.9, "repetition_penalty": 1.2},
]


def cases():
    """Layers by name, with their inputs."""
    rng = np.random.default_rng(0)
    x, memory = (rng.normal(size=(B, n, D)).astype("float32") for n in (T, M))
    memory_mask = np.arange(M) >= np.array([[0], [3], [7]])
    mask = np.arange(T) < np.array([[5], [2], [4]])
    past = {"memory": memory, "memory_mask": memory_mask}
    dropped = {"training": True, "dropout_seed": SEEDS}
    relative = layers.RelativeMultiHeadAttention
    yield "relative", relative(**HEADS), x, past
    yield "dropout", relative(**HEADS, dropout=0.4), x, past | dropped
    shaw = layers.ShawMultiHeadAttention(**HEADS, max_positions=6)
    yield "shaw", shaw, x, past
    for first in (False, True):
        block = layers.DecoderBlock(**BLOCK, normalize_first=first, dropout=0.3)
        inputs = {**past, **dropped, "inputs_mask": mask}
        yield f"block, pre-norm {first}", block, x, inputs
    streams = layers.TwoStreamBlock(**BLOCK)
    order = rng.random((B, T, T)) < 0.5
    given = {
        "query": x[:, ::-1].copy(),
        "permutation_mask": order,
        "token_type_ids": rng.integers(0, 2, (B, T)),
    }
    yield "two streams", streams, x, past | given
    ids = rng.integers(0, 30, (B, T))
    embedding = layers.AdaptiveEmbedding(30, D, cutoffs=(8, 20), div_val=2)
    yield "embedding", embedding, ids, {}
    softmax = layers.AdaptiveSoftmax(embedding)
    yield "softmax", softmax, x, {"targets": ids}


def call_and_gradients(layer, x, arguments):
    """The outputs, and the gradients of a sum with fixed weights."""

    def loss():
        outputs = keras.tree.flatten(layer(x, **arguments))
        size = np.prod(outputs[0].shape)
        weights = ops.reshape(
            ops.cos(ops.arange(size, dtype="float32")), outputs[0].shape
        )
        return ops.sum(outputs[0] * weights), outputs

    (_, outputs), found = gradients(loss, layer.trainable_variables)
    names = [weight.path for weight in layer.trainable_variables]
    return outputs, dict(zip(names, found, strict=True))


def drawn():
    """Gumbel noise, and ids by parameters, numbers and tensors."""
    found = {}
    rng = np.random.default_rng(4)
    softmax = layers.AdaptiveSoftmax(
        layers.AdaptiveEmbedding(30, D, cutoffs=(4, 12), div_val=2)
    )
    softmax.build()
    randomize(softmax, 5)
    logits = rng.normal(size=(40, 30)).astype("float32")
    seeds = rng.integers(2**32, size=40, dtype="uint32")
    seen = rng.random(logits.shape) < 0.3
    hidden = rng.normal(size=(40, D)).astype("float32")

    def draw(parameters):
        sampler = samplers.Sampler(**parameters)
        ids = sampler(ops.log_softmax(logits), seeds, seen)
        return ids, softmax.sample(hidden, sampler, seeds, seen)

    with pytest.raises(Exception, match="`top_p` must be above 0"):
        samplers.Sampler(top_p=ops.array(0.0))
    found["noise"] = gumbel(seeds, ops.arange(30))
    draw_by_tensors = compiled(draw)
    for numbers in SAMPLERS:
        tensors = {
            n: ops.array(numbers.get(n, x)) for n, x in NO_EFFECT.items()
        }
        both = *draw(numbers), *draw_by_tensors(tensors)
        found |= {f"drawn {i} {numbers}": ids for i, ids in enumerate(both)}
    return found


def randomize(layer, seed, scale=0.5):
    """Sets weights to the same numbers on every backend."""
    rng = np.random.default_rng(seed)
    for weight in layer.trainable_weights:
        weight.assign(rng.normal(size=weight.shape) * scale)


def results():
    """Outputs, gradients and draws by name."""
    found = {}
    for name, layer, x, arguments in cases():
        layer(keras.KerasTensor(x.shape, x.dtype), **arguments)  # builds it
        randomize(layer, 1)
        outputs, of_weights = call_and_gradients(layer, x, arguments)
        found |= {f"{name}: output {i}": x for i, x in enumerate(outputs)}
        for path, gradient in of_weights.items():
            found[f"{name}: {path.split('/', 1)[1]}"] = gradient
    found |= drawn()
    return {name: ops.convert_to_numpy(x) for name, x in found.items()}
