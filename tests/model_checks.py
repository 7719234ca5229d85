"""Every way to compute a language model, for the tests of changed layers."""

import numpy as np
from factories import read_in_parts
from keras import ops

from txl_keras.backend import ON_TENSORFLOW
from txl_keras.layers.compute import target
from txl_keras.models import SegmentReader


def segment_nll(model, ids, lengths):
    """Losses `(B, n)` of all ids but the first, read in segments."""
    text = {"inputs": ids[:, :-1], "targets": ids[:, 1:]}
    return read_in_parts(model.score, lengths, **text)[0]


def scored(model, ids):
    """Nll of two segments with memory, one after the other."""
    length = ids.shape[1] // 2
    return segment_nll(model, ids, [length, ids.shape[1] - 1 - length])


def check_every_way(model, ids, atol):
    """Compares `log_probs`, targets and the reader with `score`.

    The reader reads half token by token.
    """
    length = ids.shape[1] // 2
    nll = scored(model, ids)
    log_probs, _ = model.log_probs(ids[:, :length])
    picked = np.take_along_axis(
        np.array(log_probs), ids[:, 1 : length + 1, None], -1
    )
    np.testing.assert_allclose(-picked[..., 0], nll[:, :length], atol=1e-5)
    reader = SegmentReader(model.backbone, len(ids), length)
    reader.begin()
    _, entries = reader.read(ops.array(ids[:, :length]))
    reader.remember(entries)
    step = reader.compile(reader.read)
    for t in range(length, 2 * length):
        hidden, entries = step(ops.array(ids[:, t : t + 1]))
        reader.remember(entries)
        log_probs = np.array(model.softmax.log_probs(hidden))[:, 0]
        picked = np.take_along_axis(log_probs, ids[:, t + 1, None], -1)[:, 0]
        np.testing.assert_allclose(-picked, nll[:, t], atol=atol)
    _, memory = model.score(ids[:, :length], ids[:, :length])
    second = ops.array(ids[:, length:-1]), ops.array(ids[:, length + 1 :])
    for device in ("cpu", "gpu") if ON_TENSORFLOW else ():
        score = target.compile_for(target.Target(device), model.score)
        found, _ = score(*second, memory)
        np.testing.assert_allclose(found, nll[:, length:], atol=atol)
