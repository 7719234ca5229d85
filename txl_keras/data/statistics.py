"""Statistics of prepared text."""

import numpy as np

from txl_keras.data.layouts import document_lengths

_BLOCK = 1 << 22  # ids to read at once


def token_counts(tokens, vocabulary_size):
    """Counts how often each id occurs: int64, `(V,)`."""
    counts = np.zeros(vocabulary_size, np.int64)
    for start in range(0, len(tokens), _BLOCK):
        block = tokens[start : start + _BLOCK]
        counts += np.bincount(block, minlength=vocabulary_size)
    return counts


def unigram_scores(train_counts, counts):
    """Scores a baseline that predicts by the `token_counts` of train."""
    # One is added to each count, so that no token has probability 0.
    probabilities = (train_counts + 1) / (train_counts + 1).sum()
    share = counts / counts.sum()
    return {
        "nll": float(-(share * np.log(probabilities)).sum()),
        "accuracy": float(share[train_counts.argmax()]),
    }


def mean_bytes(split):
    """Returns the mean bytes per token of a `PreparedSplit`."""
    return split.metadata["num_bytes"] / split.metadata["num_tokens"]


def describe_split(split):
    """Returns a dict of the sizes, rates and document lengths of a split."""
    metadata = split.metadata
    names = ("num_bytes", "num_tokens", "num_documents")
    lengths = document_lengths(split.documents, metadata["num_tokens"])
    return {
        **{name: metadata[name] for name in names},
        "bytes_per_token": mean_bytes(split),
        "unknown_rate": metadata["num_unknown"] / metadata["num_tokens"],
        "document_length": {
            "min": int(lengths.min()),
            "median": float(np.median(lengths)),
            "mean": float(lengths.mean()),
            "max": int(lengths.max()),
        },
    }
