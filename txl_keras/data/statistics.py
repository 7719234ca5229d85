"""What a prepared text is like, in numbers and in a picture."""

import matplotlib
import numpy as np

matplotlib.use("Agg")  # Machines that prepare text have no screen.

from matplotlib import pyplot as plt  # noqa: E402

BLOCK = 1 << 22  # tokens read at once


def token_counts(tokens, vocabulary_size):
    """How often each id occurs.

    Args:
        tokens: Ids, `(n,)`, as `PreparedSplit` has them.
        vocabulary_size: Integer `V`.

    Returns:
        Array of shape `(V,)`, int64.
    """
    counts = np.zeros(vocabulary_size, np.int64)
    for start in range(0, len(tokens), BLOCK):
        block = tokens[start : start + BLOCK]
        counts += np.bincount(block, minlength=vocabulary_size)
    return counts


def describe_split(split):
    """Sizes of a split.

    Args:
        split: `PreparedSplit`.

    Returns:
        Dict of `num_bytes`, `num_tokens`, `num_documents`, `bytes_per_token`,
        `unknown_rate` (of the tokens), and `document_length`: the `min`,
        `median`, `mean` and `max` tokens of a document.
    """
    metadata = split.metadata
    lengths = document_lengths(split)
    return {
        "num_bytes": metadata["num_bytes"],
        "num_tokens": metadata["num_tokens"],
        "num_documents": metadata["num_documents"],
        "bytes_per_token": metadata["num_bytes"] / metadata["num_tokens"],
        "unknown_rate": metadata["num_unknown"] / metadata["num_tokens"],
        "document_length": {
            "min": int(lengths.min()),
            "median": float(np.median(lengths)),
            "mean": float(lengths.mean()),
            "max": int(lengths.max()),
        },
    }


def document_lengths(split):
    """Tokens of each document of a `PreparedSplit`: `(D,)`, int64."""
    return np.diff(split.documents, append=split.metadata["num_tokens"])


def plot_statistics(splits, counts, cutoffs, file):
    """Draws how frequent the tokens are and how long the documents.

    Args:
        splits: Dict of split to `PreparedSplit`.
        counts: Array of shape `(V,)`, of `token_counts`.
        cutoffs: List of integers, drawn as lines.
        file: Path, or file opened for bytes, of the PNG.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    ranked = np.sort(counts[counts > 0])[::-1]
    left.loglog(np.arange(1, len(ranked) + 1), ranked)
    for cutoff in cutoffs:
        left.axvline(cutoff, linestyle=":", color="gray")
    left.set(
        title=f"Tokens of train ({len(ranked):,} kinds)",
        xlabel="rank" + ("; dotted: cutoffs" if cutoffs else ""),
        ylabel="occurrences",
    )
    longest = max(document_lengths(split).max() for split in splits.values())
    bins = np.geomspace(1, longest + 1, 50)
    for name, split in splits.items():
        right.hist(document_lengths(split), bins, histtype="step", label=name)
    right.set(
        title="Documents", xlabel="tokens", ylabel="documents",
        xscale="log", yscale="log",
    )  # fmt: skip
    right.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=120, format="png")
    plt.close(figure)
