"""Statistics of prepared text."""

import numpy as np

_BLOCK = 1 << 22  # ids that are read at once


def token_counts(tokens, vocabulary_size):
    """Counts how often each id occurs: int64, `(V,)`."""
    counts = np.zeros(vocabulary_size, np.int64)
    for start in range(0, len(tokens), _BLOCK):
        block = tokens[start : start + _BLOCK]
        counts += np.bincount(block, minlength=vocabulary_size)
    return counts


def unigram_scores(train_counts, counts):
    """Scores a prediction by frequency alone, as a baseline for a model.

    Uses the `token_counts`, `(V,)`, of the training text, plus one each so that
    no token has probability 0. `nll` is in nats per token; `accuracy` is the
    share of the token that is most frequent in training.

    >>> scores = unigram_scores(np.array([9, 4, 0, 0]), np.array([1, 0, 0, 1]))
    >>> round(scores["nll"], 3), scores["accuracy"]  # p = 10/17 and 1/17
    (1.682, 0.5)
    """
    probabilities = (train_counts + 1) / (train_counts + 1).sum()
    share = counts / counts.sum()
    return {
        "nll": float(-(share * np.log(probabilities)).sum()),
        "accuracy": float(share[train_counts.argmax()]),
    }


def mean_bytes(split):
    """Returns the mean bytes per token of a `PreparedSplit`."""
    return split.metadata["num_bytes"] / split.metadata["num_tokens"]
