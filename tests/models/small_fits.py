"""Models and data of the tests of `fit`, small enough to compile in a moment.

Rows of a batch follow those of the batch before: batch k of B rows holds
`x[k * B : (k + 1) * B]`.
"""

import keras
import numpy as np
from factories import random_ids
from factories import rows_of
from factories import small_model as model_of

from txl_keras.data import Segments

B, T = 3, 7
SEGMENTS = Segments(random_ids(1, 64, seed=3)[0], B, T, drop_remainder=True)
X, Y = SEGMENTS.arrays()
ARRAYS = {"x": X, "y": Y, "batch_size": B, "verbose": 0}


def small_model(dtype=None, **config):
    """With one block: Keras takes seconds to trace `fit` through more."""
    return model_of(dtype, **{"num_layers": 1, **config})


def nll_of(model, x=X, y=Y, batch_size=B):
    """Losses of batches, of which the last may have fewer rows."""
    memory, losses = model.initial_memory(batch_size), []
    for start in range(0, len(x), batch_size):
        rows = slice(start, start + batch_size)
        memory = rows_of(memory, slice(len(x[rows])))
        nll, memory = model.score(x[rows], y[rows], memory)
        losses.append(np.array(nll))
    return np.concatenate(losses)


def compiled(model=None, optimizer=None, **config):
    model = model or small_model()
    model.compile(optimizer or keras.optimizers.Adam(0.01), **config)
    return model
