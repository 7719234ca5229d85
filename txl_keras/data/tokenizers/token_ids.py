"""What ids may be, for every tokenizer."""

import numpy as np


def check_ids(ids, vocabulary_size):
    """Returns ids as an array of shape `(n,)`, or raises ValueError."""
    ids = np.atleast_1d(np.asarray(ids))
    if ids.size == 0:
        return ids.reshape(-1).astype(np.int32)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ValueError(
            "`ids` must be integers of shape (n,). "
            f"Received: shape {ids.shape}, dtype {ids.dtype}"
        )
    wrong = ids[(ids < 0) | (ids >= vocabulary_size)]
    if wrong.size:
        raise ValueError(
            f"`ids` must be in [0, {vocabulary_size}). Received: {wrong[0]}"
        )
    return ids
