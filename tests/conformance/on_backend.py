"""Computes, trains and draws on any backend of Keras; a helper of the tests.

The weights and inputs are the same on every backend.
"""

import json
import pathlib
import re

import keras
import numpy as np
import pytest
from backends import BACKEND
from backends import compiled
from backends import gradients
from factories import random_ids
from factories import small_model
from keras import ops

from txl_keras import callbacks  # noqa: F401
from txl_keras import data
from txl_keras import layers
from txl_keras import metrics  # noqa: F401
from txl_keras import samplers
from txl_keras.samplers.sampler import NO_EFFECT
from txl_keras.samplers.sampler import gumbel

B, T, M, D = 3, 5, 7, 8
HEADS = {"num_heads": 2, "key_dim": 4}
BLOCK = {"num_heads": 2, "head_dim": 4, "intermediate_dim": 12}
SEEDS = np.array([3, 1, 4], "uint32")
X, Y = np.split(random_ids(2 * 4 * B, 7), 2)
WEIGHTS = np.linspace(0, 2, X.size).reshape(X.shape)
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


def remembered():
    """Memory and its mask, as a model of Keras reads them batch by batch."""
    x, mask = keras.Input((T, D)), keras.Input((T,), dtype="bool")
    stack = layers.MemoryStack(1, None, M, D)
    model = keras.Model([x, mask], stack(x, mask=mask))
    states = np.random.default_rng(6).normal(size=(3 * B, T, D))
    is_text = np.arange(T) < np.tile([[5], [2], [4]], (3, 1))
    return model.predict([states, is_text], batch_size=B, verbose=0)


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
    found |= {f"memory {i}": x for i, x in enumerate(remembered())}
    return {name: ops.convert_to_numpy(x) for name, x in found.items()}


def fit(model):
    """Losses of two epochs, from cold memory."""
    model.reset_memory()
    options = {"batch_size": B, "epochs": 2, "verbose": 0}
    history = model.fit(X, Y, sample_weight=WEIGHTS, **options)
    return history.history["loss"]


def scores(model):
    """Nats of two segments, the second with the memory of the first."""
    first, memory = model.score(X, Y)
    second, _ = model.score(Y, X, memory)
    return np.stack([ops.convert_to_numpy(nll) for nll in (first, second)])


def continued(model):
    """Tokens drawn after one token, and after more than memory holds."""
    sampler = samplers.Sampler(temperature=0.7, repetition_penalty=1.3)
    prompts = [X[0, :1], X[:3].ravel()]
    return np.concatenate(
        model.generate(prompts, max_new_tokens=8, seed=5, sampler=sampler)
    )


def save_model(folder):
    """Trains and saves a model, its scores and text, and further losses."""
    model = small_model(num_layers=1, cutoffs=(4,))
    model.compile(
        keras.optimizers.AdamW(0.01, weight_decay=0.1, clipnorm=0.5),
        weighted_metrics=["perplexity"],
    )
    fit(model)
    model.save(folder / "model.keras")
    model.save_to_preset(folder / "preset")
    config = json.dumps(model.get_compile_config())
    (folder / "compiled.json").write_text(config)
    iterations = int(model.optimizer.iterations)
    np.savez(
        folder / "model.npz",
        scores=scores(model),
        text=continued(model),
        iterations=iterations,
        losses=fit(model),
    )


def read_text(folder):
    """Reads text without TensorFlow, up to what needs it."""
    (folder / "mine.txt").write_text("to be or not to be\n" * 100)
    assert all(getattr(data, name) for name in data.__all__)
    corpus = data.load_corpus(str(folder / "mine.txt"))
    tokenizer = data.prepare_tokenizer("words", corpus, str(folder))
    ids = data.prepare(corpus, tokenizer, str(folder))["train"].tokens
    segments = data.Segments(ids, 1, 6, drop_remainder=True)
    read = tokenizer.decode(segments.batch(0)["inputs"][0])
    assert read == "to be or not to be"
    message = (
        r"tensorflow is needed for `tf.nest`, but cannot be imported \(import "
        r"of tensorflow halted; .*\)\. Run `pip install tensorflow`\.$"
    )
    with pytest.raises(ImportError, match=message):
        segments.dataset()


def take_steps_of_the_guide():
    """Runs the training step of docs/backends.md, which is for JAX."""
    guide = pathlib.Path(__file__).parents[2] / "docs" / "backends.md"
    blocks = re.findall(r"```python\n(.*?)```", guide.read_text("utf-8"), re.S)
    (program,) = (x for x in blocks if x.startswith("import jax\n"))
    names = {}
    exec(compile(program, guide, "exec"), names)
    assert names["loss"] < 3  # of log(256) = 5.5


def save(folder):
    """Saves what the tests compare, where there is no TensorFlow."""
    folder = pathlib.Path(folder)
    read_text(folder)
    np.savez(folder / "results.npz", **results())
    save_model(folder)
    if BACKEND == "jax":
        take_steps_of_the_guide()
