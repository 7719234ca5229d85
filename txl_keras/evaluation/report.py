"""Reports of scores, in the usual unit for each kind of token."""

import gzip
import importlib.util
import lzma

import numpy as np

from txl_keras.checks import check_shape
from txl_keras.data.layouts import document_lengths
from txl_keras.data.segments import Segments
from txl_keras.data.vocabulary import token_counts
from txl_keras.metrics import bits_per_token
from txl_keras.metrics import perplexity

COMPRESSED_BYTES = 1 << 25  # xz takes about a minute for 32 MiB


def bytes_per_token(tokenizer, tokens):
    """Returns the mean of all tokens but the first, `None` if text is lost."""
    # An `<unk>` stands for an unknown number of bytes.
    if not tokenizer.is_lossless:
        return None
    counts = token_counts(tokens, tokenizer.vocabulary_size)
    counts[tokens[:1]] -= 1
    ids = np.flatnonzero(counts)
    sizes = [len(tokenizer.decode_bytes([token_id])) for token_id in ids]
    return counts[ids] @ sizes / (len(tokens) - 1)


def complete(scores, tokenizer, tokens, all_tokens):
    """Adds values that depend on the text, of which `tokens` were scored."""
    # `bits_per_byte` and `compressors` if every byte was scored; `of_tokens`,
    # those of the split after the first, if only some were scored.
    left_out = {}
    if len(tokens) != len(all_tokens):
        left_out = {"of_tokens": len(all_tokens) - 1}
    mean = bytes_per_token(tokenizer, tokens)
    if mean is None or scores["num_tokens"] != len(tokens) - 1:
        return {**scores, **left_out}
    compressors = {}
    if mean * len(tokens) <= COMPRESSED_BYTES:  # decoding takes more memory
        compressors = _compressors(tokenizer.decode_bytes(tokens[:]))
    return {
        **scores,
        "bits_per_byte": scores["bits_per_token"] / mean,
        "compressors": compressors,
        **left_out,
    }


def _compressors(text):
    """Returns the bits per byte of general compressors."""
    sizes = {
        "gzip -9": len(gzip.compress(text, compresslevel=9)),
        "xz -9": len(lzma.compress(text, preset=9)),
    }
    if importlib.util.find_spec("pyppmd"):  # optional
        ppmd = importlib.import_module("pyppmd")
        packed = ppmd.compress(text, max_order=8, mem_size=1 << 28)
        sizes["PPMd order 8"] = len(packed)
    return {name: 8 * size / len(text) for name, size in sizes.items()}


def measure(unit):
    """Returns the unit, bits or perplexity, and its function of the loss."""
    names = {
        "byte": "bits per byte",
        "character": "bpc",
        "token": "bits per token",
    }
    if unit in names:
        return names[unit], bits_per_token
    return "ppl", perplexity


def describe(scores, tokenizer):
    """Formats scores in their usual units: `"1.061 bpc over 99 tokens"`."""
    name, convert = measure(tokenizer.unit)
    digits = 2 if convert is perplexity else 3
    line = f"{convert(scores['nll']):.{digits}f} {name}"
    if "num_tokens" in scores:
        tokens = f"{scores['num_tokens']:,}"
        if "of_tokens" in scores:
            tokens = f"the first {tokens} of {scores['of_tokens']:,}"
        line += f" over {tokens} tokens"
    if "bits_per_byte" in scores and tokenizer.unit != "byte":
        line += f", {scores['bits_per_byte']:.3f} bits per byte"
    others = [
        f"{k} {bits:.3f}" for k, bits in scores.get("compressors", {}).items()
    ]
    return f"{line} ({', '.join(others)})" if others else line


def learning_curve(metrics):
    """Returns lists `steps` and `nll` for "train" and "valid" of a run."""
    points = {
        # The loss is None where loss scaling skipped all steps.
        "train": [
            (m["step"], m["loss"]) for m in metrics if m.get("loss") is not None
        ],
        "valid": [
            (m["step"], m["valid"]["nll"]) for m in metrics if "valid" in m
        ],
    }
    return {
        name: {"steps": [s for s, _ in pairs], "nll": [n for _, n in pairs]}
        for name, pairs in points.items()
    }


def position_curve(
    nll: np.ndarray,
    documents: np.ndarray = (0,),
    segments: Segments | None = None,
    bins_per_doubling: int = 1,
) -> list[dict]:
    """Computes the mean loss by the position of a token in its document.

    The first tokens of a document have little context, later tokens have more.
    The curve falls while more context helps, and is flat beyond. With
    `segments`, positions are positions in the segment: a model without memory
    has a high loss at its first tokens. This is the context fragmentation of
    section 3.1 of Dai et al., 2019, which memory removes.

    Args:
        nll: Float array of shape `(P + 1,)`, the loss of every token in nats,
            NaN for tokens without a score, as `Evaluator.evaluate` writes it to
            `token_nll`.
        documents: Integer array of shape `(D,)`, the positions at which
            documents begin; the first must be 0. By default the text is one
            document.
        segments: Optional scored `Segments`, instead of `documents`.
        bins_per_doubling: Integer, number of buckets from n to 2 n.

    Returns:
        List of dictionaries, one per bucket of positions: 0, 1, 2-3, 4-7, 8-15
        and so on. The first token of a document is at position 0, the first
        target of a segment at position 1. Buckets without a score are left out.
        Each dictionary has `start` and `stop` (exclusive), `num_tokens`, the
        means `nll` and `bits_per_token`, and `standard_error` of `nll`.

    Example:

    >>> nll = np.array([np.nan, 4, 2, 2, 6, 3, 1, 2, 1])
    >>> for bucket in position_curve(nll, documents=[0, 4]):
    ...     print(bucket["start"], bucket["num_tokens"], bucket["nll"])
    0 1 6.0
    1 2 3.5
    2 4 1.75
    4 1 1.0
    """
    check_shape("nll", nll, (None,))
    positions = np.arange(len(nll))
    if segments is None:
        documents = np.asarray(documents)
        document_lengths(documents, len(nll))  # checks them
        which = np.searchsorted(documents, positions, "right") - 1
        positions -= documents[which]
    else:
        for step in range(len(segments)):
            targets = segments.target_positions(step)  # [B, T]
            is_scored = targets >= 0
            positions[targets[is_scored]] = 1 + np.nonzero(is_scored)[1]
    is_scored = ~np.isnan(nll)
    # In float64, as in `Evaluator.evaluate`.
    positions, found = positions[is_scored], nll[is_scored].astype(float)
    largest = int(positions.max(initial=0))
    steps = np.arange(bins_per_doubling * largest.bit_length() + 1)
    bounds = np.ceil(2 ** (steps / bins_per_doubling) - 1e-9).astype(np.int64)
    bounds = np.unique([0, *bounds])
    bins = np.searchsorted(bounds, positions, "right") - 1
    counts, sums, squares = (np.bincount(bins, found**i) for i in range(3))
    curve = []
    for i in np.flatnonzero(counts).tolist():
        mean = float(sums[i] / counts[i])
        variance = max(0.0, squares[i] / counts[i] - mean**2)
        curve.append(
            {
                "start": int(bounds[i]),
                "stop": int(bounds[i + 1]),
                "num_tokens": int(counts[i]),
                "nll": mean,
                "bits_per_token": bits_per_token(mean),
                "standard_error": float(np.sqrt(variance / counts[i])),
            }
        )
    return curve
