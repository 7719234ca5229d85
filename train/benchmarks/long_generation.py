"""Measures time and memory per token along one long generated text."""

import time

import numpy as np

from benchmarks.generation import prompts
from txl_keras.serving import Generator
from txl_keras.serving import Sampler
from txl_keras.training.utilization import device_memory


def run(model, settings, peer=None):
    """Times every token of one text, as the package describes."""
    num_tokens = settings.calls_per_turn
    if num_tokens < 1000:
        raise ValueError(
            "`calls_per_turn` must be at least 1000 for "
            "--experiment=long_generation, which writes one token per call. "
            f"Received: calls_per_turn={num_tokens}"
        )
    write = Generator(model, Sampler(temperature=0))
    times, peaks, start = [], [], None
    for _ in write(prompts(model, settings.batch_size), num_tokens):
        now = time.perf_counter()
        if start is not None:
            times.append(now - start)
        start = now
        peaks.append(device_memory()["peak"] / 2**20)
    step = max(1, num_tokens // 10)
    by_position = {}
    for first in range(100, num_tokens - 1, step):
        last = min(first + step, len(times))
        by_position[first] = float(np.median(times[first:last]))
        print(
            f"tokens {first:6} to {last:6}: {1e3 * by_position[first]:8.3f} ms "
            f"per token, peak {peaks[last]:,.0f} MiB"
        )
    return {
        "seconds_by_position": by_position,
        "peak_mebibytes": {first: peaks[first] for first in by_position},
    }
