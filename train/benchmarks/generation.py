"""Times the generation of one token.

Also measures how long this machine takes to read all weights and caches once,
which is a lower bound for the time per token.
"""

import concurrent.futures
import functools
import os

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
    """Times greedy generation, as the package describes."""
    batch_size, num_tokens = settings.batch_size, settings.calls_per_turn
    contenders = {
        "txl_keras": _projected(model, batch_size, num_tokens),
        **{
            f"openvino {weights}": _projected(
                model, batch_size, num_tokens, "openvino", weights
            )
            for weights in settings.openvino_weights
        },
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
    num_bytes = _bytes_per_token(model, batch_size)
    results = report(times, "per token", batch_size)
    bound = num_bytes / bandwidth
    print(
        f"Each token reads {num_bytes / 1e6:,.0f} MB in {model.compute_dtype}, "
        f"which takes at least {1e3 * bound:.1f} ms at {bandwidth / 1e9:.1f} "
        "GB/s. Times as long:"
    )
    for name, time_per_token in seconds.items():
        print(f"{name:24} {time_per_token / bound:.2f}")
    return {**results, "bytes": num_bytes, "bytes_per_s": bandwidth}


def prompts(model, batch_size):
    """Returns one token per row, `(B, 1)`."""
    ids = np.arange(batch_size) % model.backbone.vocabulary_size
    return ids[:, None]


def _projected(model, batch_size, num_tokens, *engine):
    write = Generator(model, Sampler(temperature=0), None, *engine)
    start = prompts(model, batch_size)
    return lambda: time_items(write(start, num_tokens))


def _unprojected(model, batch_size, num_tokens):
    """Returns a contender whose memory is hidden states, as in training."""

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
    """Times five readings of `_BANDWIDTH_BYTES` with all cores."""
    parts = np.array_split(_large_array(), os.cpu_count())
    with concurrent.futures.ThreadPoolExecutor(len(parts)) as pool:
        return time_items(list(pool.map(np.max, parts)) for _ in range(6))


@functools.cache
def _large_array():
    return np.ones(_BANDWIDTH_BYTES // 4, np.float32)


def _bytes_per_token(model, batch_size):
    """Returns the size of all weights and caches, each read once per token."""
    backbone = model.backbone
    entries = backbone.memory_length * backbone.num_heads * backbone.head_dim
    itemsize = tf.as_dtype(backbone.compute_dtype).size
    caches = 2 * backbone.num_layers * batch_size * entries
    positions = sum(
        int(tf.size(tensor))
        for block in backbone.project_positions(backbone.memory_length + 1)
        for tensor in block
    )
    # Generation reads the projected positions, not their kernels.
    weights = model.count_params() - sum(
        weight.shape.num_elements()
        for weight in backbone.weights
        if "/position/" in weight.path
    )
    return 4 * weights + itemsize * (caches + positions)
