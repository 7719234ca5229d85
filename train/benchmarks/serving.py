"""Times tokens of clients that a SavedModel serves at the same time.

Every client is a thread with a slot of its own, as a server would call the
signature `step`. Compared with one call for the rows of all clients, as a
server that batches its requests would make it.
"""

import concurrent.futures
import os
import tempfile
import time

import numpy as np
import tensorflow as tf

from benchmarks.turns import time_items
from txl_keras.serving import export


def run(model, settings, peer=None):
    """Times clients that come together, as the package describes."""
    counts = settings.clients
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "1")
        export(model, path, max_segment_length=1, num_slots=max(counts))
        step = tf.saved_model.load(path).signatures["step"]
    milliseconds, tokens_per_s = {}, {}
    print(f"{'ms per token':32}  median     p99  tokens/s")
    for count in counts:
        slots = np.arange(count, dtype="int32")
        groups_of = {f"{count} clients, a call each": np.split(slots, count)}
        if count > 1:
            groups_of[f"{count} clients in one call"] = [slots]
        for name, groups in groups_of.items():
            _serve(step, groups, 2)  # compiles
            start = time.perf_counter()
            times = 1e3 * _serve(step, groups, settings.calls_per_turn)
            seconds = time.perf_counter() - start
            median, p99 = np.percentile(times, [50, 99])
            rate = count * settings.calls_per_turn / seconds
            milliseconds[name] = {"median": median, "p99": p99}
            tokens_per_s[name] = rate
            print(f"{name:32} {median:7.1f} {p99:7.1f} {rate:9,.1f}")
    return {"milliseconds": milliseconds, "tokens_per_s": tokens_per_s}


def _serve(step, groups, num_tokens):
    """Returns the seconds of calls; a thread calls for each group of slots."""
    with concurrent.futures.ThreadPoolExecutor(len(groups)) as pool:
        times = pool.map(
            lambda slots: time_items(_write(step, slots, num_tokens)), groups
        )
        return np.concatenate(list(times))


def _write(step, slots, num_tokens):
    """Yields the tokens of some slots, one call after another."""
    token = tf.zeros((len(slots), 1), tf.int32)
    for _ in range(num_tokens):
        answer = step(ids=token, slots=tf.constant(slots))
        token = tf.argmax(answer["log_probs"], -1, tf.int32)[:, None]
        yield token.numpy()
