"""Computes layers and draws tokens on the backend of Keras; a helper.

The weights and inputs are the same on every backend.
"""

import keras
import numpy as np
import pytest
from keras import ops

from txl_keras import layers
from txl_keras import samplers
from txl_keras.callbacks import ResetMemory
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
    yield "no memory", relative(**HEADS), x, {"query_mask": mask}
    yield "clamped", relative(**HEADS, clamp_length=4, look_ahead=2), x, past
    yield "same length", relative(**HEADS, same_length=True), x, past
    yield "dropout", relative(**HEADS, dropout=0.4), x, past | dropped
    shaw = layers.ShawMultiHeadAttention(**HEADS, max_positions=6)
    yield "shaw", shaw, x, past
    yield "causal", layers.CausalMultiHeadAttention(**HEADS), x, past
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
    stack = layers.MemoryStack(2, B, M, D)
    yield "stack", stack, x, {"layer": 1, "mask": mask}


def gradients(layer, x, arguments):
    """The output, and the gradients of its sum with fixed weights."""
    names = [weight.path for weight in layer.trainable_variables]

    def loss(output):
        output = output[0] if isinstance(output, tuple) else output
        weights = ops.cos(ops.arange(np.prod(output.shape), dtype="float32"))
        return ops.sum(output * ops.reshape(weights, output.shape))

    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            output = layer(x, **arguments)
            total = loss(output)
        weights = [w.value for w in layer.trainable_variables]
        found = [tf.convert_to_tensor(g) for g in tape.gradient(total, weights)]
    elif backend == "jax":
        import jax

        fixed = [w.value for w in layer.non_trainable_variables]

        @jax.jit
        def call(weights):
            output, _ = layer.stateless_call(weights, fixed, x, **arguments)
            return loss(output), output

        weights = [w.value for w in layer.trainable_variables]
        found, output = jax.grad(call, has_aux=True)(weights)
    else:
        layer.zero_grad()
        output = layer(x, **arguments)
        if names:
            loss(output).backward()
        found = [w.value.grad for w in layer.trainable_variables]
    arrays = map(ops.convert_to_numpy, found)
    outputs = map(ops.convert_to_numpy, keras.tree.flatten(output))
    return [*outputs], dict(zip(names, arrays, strict=True))


def fitted():
    """Losses of a model with memory, and what it remembers after them."""
    stack = layers.MemoryStack(2, B, M, D)
    segment = attended = keras.Input((T, D), batch_size=B)
    for layer in range(2):
        memory, memory_mask = stack(attended, layer=layer)
        attended = layers.DecoderBlock(**BLOCK)(
            attended, memory=memory, memory_mask=memory_mask
        )
    model = keras.Model(segment, attended)
    randomize(model, 3, 0.25)
    rng = np.random.default_rng(8)
    x, y = rng.normal(size=(2, 4 * B, T, D)).astype("float32")
    model.compile(keras.optimizers.Adam(0.01), "mse")
    calls = {"batch_size": B, "verbose": 0, "callbacks": [ResetMemory()]}
    history = model.fit(x, y, shuffle=False, epochs=2, **calls)
    losses = [*history.history["loss"], model.evaluate(x, y, **calls)]
    return np.array(losses), ops.convert_to_numpy(stack.read().states[0])


def compiled(function):
    """The function as a graph, which PyTorch does without."""
    backend = keras.backend.backend()
    if backend == "torch":
        return function
    if backend == "jax":
        import jax

        return jax.jit(function)
    import tensorflow as tf

    return tf.function(function)


def drawn():
    """Gumbel noise, and ids by parameters, numbers and tensors."""
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
    yield "noise", gumbel(seeds, ops.arange(30))
    draw_by_tensors = compiled(draw)
    for numbers in SAMPLERS:
        tensors = {
            n: ops.array(numbers.get(n, x)) for n, x in NO_EFFECT.items()
        }
        both = *draw(numbers), *draw_by_tensors(tensors)
        yield from ((f"drawn {i} {numbers}", ids) for i, ids in enumerate(both))


def read_cached():
    """Outputs of a block that reads a ring, and what is in it at last."""
    block = layers.DecoderBlock(**BLOCK, normalize_first=True)
    block.build((None, None, D))
    randomize(block, 6)
    rng = np.random.default_rng(7)
    cached = rng.normal(size=(2, B, 2, M, 4)).astype("float32")
    counts = np.array([[0, 6, 3], [0, 7, 2]], "int32")
    memory = layers.ProjectedMemory(*[(x,) for x in cached], *counts)
    memory = keras.tree.map_structure(ops.convert_to_tensor, memory)

    @compiled
    def read(x, memory, lengths):
        positions = block.project_positions(M + x.shape[1])
        (past,) = memory.pasts()
        output, key, value = block.attend_projected(x, past, positions)
        return output, memory.append((key,), (value,), lengths)

    for length, lengths in ((5, None), (5, [5, 2, 0]), (9, [9, 3, 8])):
        x = rng.normal(size=(B, length, D)).astype("float32")
        real = lengths and ops.array(lengths)
        output, memory = read(ops.array(x), memory, real)
        yield f"cached: {length}, {lengths}", output
    memory = memory.reset_rows(
        ops.array([False, True, False]),
        keras.tree.map_structure(ops.zeros_like, memory),
    )
    parts = keras.tree.flatten([memory, memory.in_order()[:2]])
    yield from ((f"cached: {i}", part) for i, part in enumerate(parts))


def randomize(layer, seed, scale=0.5):
    """Sets weights to the same numbers on every backend."""
    rng = np.random.default_rng(seed)
    for weight in layer.trainable_weights:
        weight.assign(rng.normal(size=weight.shape) * scale)


def results():
    """Outputs and gradients of some layers by name."""
    found = {}
    for name, layer, x, arguments in cases():
        layer(keras.KerasTensor(x.shape, x.dtype), **arguments)  # builds it
        randomize(layer, 1)
        outputs, of_weights = gradients(layer, x, arguments)
        found |= {f"{name}: output {i}": x for i, x in enumerate(outputs)}
        for path, gradient in of_weights.items():
            found[f"{name}: {path.split('/', 1)[1]}"] = gradient
    memory = layers.Memory(
        (ops.zeros((B, M, D)), ops.ones((B, M, D))), ops.array([0, 3, 7])
    )
    rng = np.random.default_rng(2)
    states = [rng.normal(size=(B, T, D)).astype("float32") for _ in range(2)]
    memory = memory.extend(states, ops.array([5, 0, 2]))
    memory = memory.reset_rows(ops.array([False, False, True]))
    for i, state in enumerate(memory.states):
        found[f"memory: {i}"] = ops.convert_to_numpy(state)
    found["memory: mask"] = ops.convert_to_numpy(memory.mask())
    found["fit: losses"], found["fit: memory"] = fitted()
    for name, x in (*drawn(), *read_cached()):
        found[name] = ops.convert_to_numpy(x)
    return found
