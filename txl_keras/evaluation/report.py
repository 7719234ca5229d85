"""Reports of scores, in the units that are usual for each kind of token."""

import gzip
import lzma

import numpy as np

from txl_keras.checks import check_shape
from txl_keras.data.layouts import document_lengths
from txl_keras.metrics import bits_per_token
from txl_keras.metrics import perplexity

COMPRESSED_BYTES = 1 << 25  # xz takes about a minute for 32 MiB
# Two evaluations of a split are the same if all of these are equal.
SETTINGS = (
    "checkpoint", "step", "corpus", "fingerprint", "split", "max_eval_tokens",
    "reset_documents", "batch_size", "segment_length", "stride", "warmup",
    "memory_length", "same_length", "clamp_length", "compressed_length",
    "dynamic",
)  # fmt: skip
_BLOCK = 1 << 20  # tokens processed at once


def bytes_per_token(tokenizer, tokens):
    """Returns the mean of all tokens but the first, `None` if text is lost."""
    # An `<unk>` stands for an unknown number of bytes.
    if not tokenizer.is_lossless:
        return None
    first, all_tokens = (
        len(tokenizer.decode_bytes(part)) for part in (tokens[:1], tokens)
    )
    return (all_tokens - first) / (len(tokens) - 1)


def measure_text(tokenizer, tokens):
    """Returns the facts for `add_bits_per_byte`, `None` if text is lost."""
    mean = bytes_per_token(tokenizer, tokens)
    if mean is None:
        return None
    text = tokenizer.decode_bytes(tokens)
    compressors = {}
    if len(text) <= COMPRESSED_BYTES:
        for name, packed in (
            ("gzip -9", gzip.compress(text, compresslevel=9)),
            ("xz -9", lzma.compress(text, preset=9)),
        ):
            compressors[name] = 8 * len(packed) / len(text)
    return {
        "num_tokens": len(tokens) - 1,
        "bytes_per_token": mean,
        "compressors": compressors,
    }


def add_bits_per_byte(scores, text):
    """Adds `bits_per_byte` and `compressors` to scores of whole texts."""
    if text is None or scores["num_tokens"] != text["num_tokens"]:
        return scores
    return {
        **scores,
        "bits_per_byte": scores["bits_per_token"] / text["bytes_per_token"],
        "compressors": text["compressors"],
    }


def left_out(tokens, all_tokens):
    """Returns the number of all that can be scored, if only some were."""
    if len(tokens) == len(all_tokens):
        return {}
    return {"of_tokens": len(all_tokens) - 1}


def score(nll, tokenizer, text=None, over=""):
    """Formats a loss in nats per token in its usual unit: `"1.061 bpc"`."""
    # With `text`, a result of `measure_text`, also in bits per byte, beside
    # those of compressors. `over` follows the first score.
    name, convert = measure(tokenizer.unit)
    digits = 2 if convert is perplexity else 3
    line = f"{convert(nll):.{digits}f} {name}{over}"
    if text is None:
        return line
    if tokenizer.unit != "byte":
        bits_per_byte = bits_per_token(nll) / text["bytes_per_token"]
        line += f", {bits_per_byte:.3f} bits per byte"
    others = [
        f"{k} {bits:.3f}" for k, bits in text.get("compressors", {}).items()
    ]
    return f"{line} ({', '.join(others)})" if others else line


def measure(unit):
    """Returns bits, or perplexity for words and subwords, and its function."""
    names = {
        "byte": "bits per byte",
        "character": "bpc",
        "token": "bits per token",
    }
    if unit in names:
        return names[unit], bits_per_token
    return "ppl", perplexity


def describe(scores, tokenizer):
    """Formats scores, with `bits_per_byte` if they have it, as one line."""
    # If `max_eval_tokens` left tokens out, `of_tokens` is the number of all.
    tokens = f"{scores['num_tokens']:,}"
    if scores.get("of_tokens"):
        tokens = f"the first {tokens} of {scores['of_tokens']:,}"
    text = None
    if "bits_per_byte" in scores:
        size = scores["bits_per_token"] / scores["bits_per_byte"]
        text = {**scores, "bytes_per_token": size}
    return score(scores["nll"], tokenizer, text, f" over {tokens} tokens")


def learning_curve(metrics):
    """Returns the losses of a run by step, for training and validation.

    Args:
        metrics: List of dictionaries, `Workdir.read_metrics()`.

    Returns:
        Dictionary of `"train"` and `"valid"` to a dictionary of `steps` and
        `nll`, lists of equal length; nll is in nats per token.

    Example:

    >>> learning_curve([{"step": 20, "loss": 5.4}])["train"]
    {'steps': [20], 'nll': [5.4]}
    """
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


def position_curve(nll, documents=(0,)):
    """Computes the mean loss by the position of a token in its document.

    The first tokens of a document have little context and later ones more. The
    curve falls while more context helps, and is flat beyond.

    Args:
        nll: Float array of shape `(P + 1,)`, the loss of every token in nats,
            NaN for tokens without a score, such as `Evaluator.token_nll`
            returns. It may be a `np.memmap`.
        documents: Integer array of shape `(D,)`, the positions at which
            documents begin; the first must be 0. By default the text is one
            document.

    Returns:
        List of dictionaries, one per bucket of positions: 0, 1, 2-3, 4-7, 8-15
        and so on. The first token of a document is at position 0. Buckets
        without a score are left out. Each dictionary has `start` and `stop`
        (exclusive), `num_tokens`, and the means `nll` and `bits_per_token`.

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
    documents = np.asarray(documents)
    longest = int(document_lengths(documents, len(nll)).max())
    powers = 2 ** np.arange((longest - 1).bit_length() + 1, dtype=np.int64)
    bounds = np.concatenate([[0], powers])

    def blocks():
        for start in range(0, len(nll), _BLOCK):
            found = np.asarray(nll[start : start + _BLOCK])
            tokens = np.arange(start, start + len(found))
            document = np.searchsorted(documents, tokens, "right") - 1
            positions = tokens - documents[document]
            yield np.searchsorted(bounds, positions, "right") - 1, found

    counts, means, _ = _moments(blocks(), len(powers))
    return [
        {
            "start": int(bounds[i]),
            "stop": int(bounds[i + 1]),
            "num_tokens": int(counts[i]),
            "nll": means[i],
            "bits_per_token": bits_per_token(means[i]),
        }
        for i in np.flatnonzero(counts).tolist()
    ]


def _moments(blocks, size):
    """Returns counts, means and standard errors of losses in `size` bins."""
    # `blocks` are pairs of bins and losses, NaN for tokens without a score. In
    # float64, as in `Evaluator.evaluate`.
    sums = np.zeros((3, size))
    for bins, nll in blocks:
        is_scored = ~np.isnan(nll)
        bins, nll = bins[is_scored], nll[is_scored].astype(float)
        sums += [np.bincount(bins, x, size) for x in (nll**0, nll, nll**2)]
    counts = sums[0]
    with np.errstate(invalid="ignore"):  # of empty bins
        means, squares = sums[1:] / counts
        errors = np.sqrt(np.maximum(squares - means**2, 0) / counts)
    return counts, means, errors


def segment_position_losses(nll, segments):
    """Computes the mean loss by the position of a token in its segment.

    A model without memory has no context before its segment, so the first
    tokens of a segment have a high loss. This is the context fragmentation of
    section 3.1 of Dai et al., 2019, which memory removes.

    Args:
        nll: Float array of shape `(P + 1,)`, the loss of every token in nats,
            as `Evaluator.token_nll` returns.
        segments: The `Segments` that were scored.

    Returns:
        Dictionary of three lists with one number per position of a segment:
        `nll`, the mean loss in nats; `standard_error`, the standard error of
        this mean; and `num_tokens`, the number of scored tokens. Positions
        without a scored token are left out.

    Example: The first token is not a target, and the last segment is shorter.

    >>> from txl_keras.data import Segments
    >>> segments = Segments(np.arange(8), 1, 3, drop_remainder=False)
    >>> nll = np.array([np.nan, 9, 2, 1, 7, 4, 3, 5])
    >>> losses = segment_position_losses(nll, segments)
    >>> losses["nll"], losses["num_tokens"]
    ([7.0, 3.0, 2.0], [3, 2, 2])
    """
    length = segments.segment_length

    def blocks():
        for step in range(len(segments)):
            positions = segments.target_positions(step)  # [B, T]
            _, places = np.nonzero(positions >= 0)
            yield places, nll[positions[positions >= 0]]

    moments = np.array(_moments(blocks(), length))
    counts, means, errors = moments[:, moments[0] > 0]
    return {
        "nll": means.tolist(),
        "standard_error": errors.tolist(),
        "num_tokens": counts.astype(int).tolist(),
    }


def merge_positions(losses, per_doubling=4):
    """Returns positions, means, and these -/+ two standard errors, in bins."""
    # Single positions are too noisy to plot.
    nll, errors, counts = (
        np.array(losses[name], float)
        for name in ("nll", "standard_error", "num_tokens")
    )
    positions = np.arange(1, len(nll) + 1)
    bins = np.ceil(per_doubling * np.log2(positions) - 1e-9)
    starts = np.flatnonzero(np.diff(bins, prepend=-1))
    totals, sums, squares, places, sizes = np.add.reduceat(
        [counts, counts * nll, (counts * errors) ** 2, positions, nll**0],
        starts,
        axis=1,
    )
    means, errors = sums / totals, np.sqrt(squares) / totals
    curve = places / sizes, means, means - 2 * errors, means + 2 * errors
    return tuple(row.tolist() for row in curve)


def with_result(results, result):
    """Appends a result, merged into an earlier one with equal `SETTINGS`."""
    # Other results lose `token_nll` if `result` has overwritten that file.
    overwritten = result.get("token_nll")
    others = []
    for other in results:
        if all(other.get(name) == result.get(name) for name in SETTINGS):
            result = {**other, **result}
            continue
        if overwritten and other.get("token_nll") == overwritten:
            other = {k: v for k, v in other.items() if k != "token_nll"}
        others.append(other)
    return [*others, result]
