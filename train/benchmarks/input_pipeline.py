"""Times the input pipeline without a model.

Writes synthetic token ids to a file in the format of a run, reads them through
the input pipeline of a run, and takes one batch after the other in a compiled
loop.

Letters: `B` batch, `T` segment.
"""

import functools
import os
import tempfile

import numpy as np
import tensorflow as tf

from benchmarks.made_up_text import made_up_ids
from benchmarks.report import report
from benchmarks.turns import take_turns
from benchmarks.turns import timed
from txl_keras.data import Segments
from txl_keras.data.token_files import open_token_file

_WRITTEN = 1 << 20  # ids that are repeated to fill the file
_BATCHES = 100  # batches per host call, like --steps_per_execution of a run


def run(model, settings, peer=None):
    """Times batches, as the package describes."""
    batch_size, length = settings.batch_size, settings.segment_length
    with tempfile.TemporaryDirectory() as folder:
        tokens = _write_text(
            os.path.join(folder, "tokens"),
            model.backbone.vocabulary_size,
            settings.corpus_tokens,
        )
        segments = Segments(tokens, batch_size, length, drop_remainder=True)
        steps = iter(segments.distribute(tf.distribute.get_strategy()))
        take = functools.partial(_take, steps)
        times = take_turns(
            {"txl_keras": timed(take, settings.calls_per_turn)}, settings.turns
        )
    times.seconds["txl_keras"] /= _BATCHES
    times.spread["txl_keras"] = [
        seconds / _BATCHES for seconds in times.spread["txl_keras"]
    ]
    return {
        "segment_length": length,
        "corpus_tokens": settings.corpus_tokens,
        **report(times, "per batch", batch_size * length),
    }


def _write_text(path, vocabulary_size, num_tokens):
    """Writes ids in the smallest dtype; returns the opened token file."""
    dtype = np.min_scalar_type(vocabulary_size - 1)
    ids = made_up_ids(vocabulary_size, min(num_tokens, _WRITTEN)).astype(dtype)
    with open(path, "wb") as file:
        for first in range(0, num_tokens, _WRITTEN):
            file.write(ids[: num_tokens - first])
    return open_token_file(path, dtype)


def _take(steps):
    _take_batches(steps).numpy()


@tf.function
def _take_batches(steps):
    total = 0
    for _ in tf.range(_BATCHES):
        total += next(steps)["inputs"][0, 0]
    return total
