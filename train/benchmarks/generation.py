"""How long a token takes to write.

Beside the time stands what it takes to read all weights and caches once: a
token cannot be faster on this machine.
"""

import concurrent.futures
import functools
import os
import time

import numpy as np
import tensorflow as tf

from benchmarks.report import report
from benchmarks.turns import take_turns
from benchmarks.turns import time_items
from benchmarks.turns import timed
from txl_keras.serving import Generator
from txl_keras.serving import Sampler

_BANDWIDTH_BYTES = 1 << 29


def run(model, settings, peer=None):
    """Times greedy tokens: see the package."""
    batch_size, num_tokens = settings.batch_size, settings.calls_per_turn
    contenders = {
        "txl_keras": _projected(model, batch_size, num_tokens),
        "training path": _unprojected(model, batch_size, num_tokens),
        "bandwidth": _read_memory,
    }
    if peer:
        contenders["hugging_face"] = lambda: peer(
            "generate", num_tokens=num_tokens
        )
    times = take_turns(contenders, settings.turns)
    seconds = times.seconds
    bandwidth = _BANDWIDTH_BYTES / seconds.pop("bandwidth")
    times.compile_seconds.pop("bandwidth")
    num_bytes = _bytes_of_a_token(model, batch_size)
    results = report(times, "a token", batch_size)
    bound = num_bytes / bandwidth
    print(
        f"A token reads {num_bytes / 1e6:,.0f} MB, at {bandwidth / 1e9:.1f} "
        f"GB/s {1e3 * bound:.1f} ms: "
        f"{seconds['txl_keras'] / bound:.2f} times that"
    )
    return {**results, "bytes": num_bytes, "bytes_per_s": bandwidth}


def prompts(model, batch_size):
    """A token each row, `(B, 1)`."""
    ids = np.arange(batch_size) % model.backbone.vocabulary_size
    return ids[:, None]


def _projected(model, batch_size, num_tokens):
    write = Generator(model, Sampler(temperature=0))
    start = prompts(model, batch_size)
    return lambda: time_items(write(start, num_tokens))


def _unprojected(model, batch_size, num_tokens):
    """The same model, its memory hidden states."""

    @tf.function(jit_compile=True)
    def step(token, memory):
        log_probs, memory = model.log_probs(token[:, None], memory)
        return tf.argmax(log_probs[:, -1], -1, tf.int32), memory

    state = [tf.zeros(batch_size, tf.int32), model.initial_memory(batch_size)]

    def write():
        state[:] = step(*state)
        state[0].numpy()

    return timed(write, num_tokens)


def _read_memory():
    """Seconds to read `_BANDWIDTH_BYTES` with all cores."""
    parts = np.array_split(_big(), os.cpu_count())
    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(len(parts)) as pool:
        list(pool.map(np.max, parts))
    return [time.perf_counter() - start]


@functools.cache
def _big():
    return np.ones(_BANDWIDTH_BYTES // 4, np.float32)


def _bytes_of_a_token(model, batch_size):
    """Of all weights and caches, read once."""
    backbone = model.backbone
    entries = backbone.memory_length * backbone.num_heads * backbone.head_dim
    itemsize = tf.as_dtype(backbone.compute_dtype).size
    caches = 2 * backbone.num_layers * batch_size * entries
    positions = sum(
        int(tf.size(tensor))
        for block in backbone.project_positions(backbone.memory_length + 1)
        for tensor in block
    )
    # Of the positions what they were projected to is read.
    weights = model.count_params() - sum(
        weight.shape.num_elements()
        for weight in backbone.weights
        if "/position/" in weight.path
    )
    return 4 * weights + itemsize * (caches + positions)
