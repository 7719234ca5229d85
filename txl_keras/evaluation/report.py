"""Scores in the units of the field, and of the text itself."""

import gzip
import lzma

import numpy as np

from txl_keras.data.layouts import document_lengths
from txl_keras.metrics import bits_per_token
from txl_keras.metrics import perplexity

COMPRESSED_BYTES = 1 << 25  # xz takes a minute for these
# What makes one evaluation of a split another than the next.
SETTINGS = (
    "checkpoint", "step", "corpus", "fingerprint", "split", "max_eval_tokens",
    "reset_documents", "batch_size", "segment_length", "stride", "warmup",
    "memory_length", "same_length", "clamp_length",
)  # fmt: skip
_BLOCK = 1 << 20  # tokens looked at at once


def add_bits_per_byte(scores, tokenizer, tokens):
    """Adds what can be held against other tokenizers and against compressors.

    Nothing is added for tokenizers that lose text: a word that became `<unk>`
    costs few bits, but would have many bytes. Nor where tokens were not scored,
    as the first ones of documents where memory is reset.

    Args:
        scores: Dictionary of `Evaluator.evaluate`, over all of the tokens.
        tokenizer: The tokenizer.
        tokens: Ids, `(n,)`.

    Returns:
        Dictionary, with `bits_per_byte` and, by `compressed_bits_per_byte`,
        `compressors`. The bytes are those of the tokens that were scored: the
        first one was not, and compressors write it, too. Where
        `drop_newlines` leaves newlines out, they are out of these bytes, too.
    """
    all_scored = scores["num_tokens"] == len(tokens) - 1
    if not (tokenizer.is_lossless and all_scored):
        return scores
    text = tokenizer.decode_bytes(tokens)
    num_bytes = len(text) - len(tokenizer.decode_bytes(tokens[:1]))
    bits = scores["bits_per_token"] * scores["num_tokens"]
    compressors = {}
    if len(text) <= COMPRESSED_BYTES:
        compressors = compressed_bits_per_byte(text)
    return {
        **scores,
        "bits_per_byte": bits / num_bytes,
        "compressors": compressors,
    }


def compressed_bits_per_byte(text):
    """What `gzip -9` and `xz -9` need for each byte, to hold a model against.

    They see the text alone, where a model was trained on more of its kind.

    Args:
        text: Bytes.

    Returns:
        Dictionary from the command to bits per byte.
    """
    sizes = {
        "gzip -9": len(gzip.compress(text, compresslevel=9)),
        "xz -9": len(lzma.compress(text, preset=9)),
    }
    return {name: 8 * size / len(text) for name, size in sizes.items()}


def score(nll, tokenizer):
    """What the field gives: bits of bytes and characters, perplexity of words.

    Args:
        nll: Float, nats a token.
        tokenizer: The tokenizer.

    Returns:
        String, such as `"1.0612 bpc"`.
    """
    name, of_nats = measure(tokenizer.unit)
    digits = 2 if of_nats is perplexity else 4
    return f"{of_nats(nll):.{digits}f} {name}"


def measure(unit):
    """By what the field measures a loss.

    Args:
        unit: String, what a token is.

    Returns:
        The pair of its name and a function of nats a token.
    """
    names = {"byte": "bits per byte", "character": "bpc"}
    if unit in names:
        return names[unit], bits_per_token
    return "ppl", perplexity


def describe(scores, tokenizer):
    """One line of scores.

    Args:
        scores: Dictionary of `Evaluator.evaluate` or `add_bits_per_byte`.
        tokenizer: The tokenizer.

    Returns:
        String.
    """
    line = f"{score(scores['nll'], tokenizer)} over {scores['num_tokens']:,} "
    line += "tokens"
    if "bits_per_byte" not in scores:
        return line
    if tokenizer.unit != "byte":
        line += f", {scores['bits_per_byte']:.4f} bits per byte"
    others = ", ".join(
        f"{name} {value:.3f}" for name, value in scores["compressors"].items()
    )
    return f"{line} ({others})" if others else line


def position_curve(nll, documents=(0,)):
    """How scores depend on the place of a token in its document.

    A document's first tokens have little to go by, later ones more, as far as
    memory reaches: the curve falls where context helps, and is flat beyond.

    Args:
        nll: Float array of shape `(P + 1,)`, nats of every token, NaN where
            there is none: of `Evaluator.token_nll`. It may be a `np.memmap`.
        documents: Integer array of shape `(D,)`, where documents begin, the
            first one at 0. By default the text is one document.

    Returns:
        List of dictionaries, one for the positions from `start` up to `stop`
        (and without it): 0, 1, 2-3, 4-7, 8-15 and so on; the first token of
        a document is at 0. Those without a score are left out. Each has
        `start`, `stop`, `num_tokens`, and of these the means `nll` and
        `bits_per_token`.

    Raises:
        ValueError: If `nll` is not `(P + 1,)`, or the documents are not
            ascending positions in it from 0 on.

    Example:

    >>> nll = np.array([np.nan, 4, 2, 2, 6, 3, 1, 2, 1])
    >>> for bucket in position_curve(nll, documents=[0, 4]):
    ...     print(bucket["start"], bucket["num_tokens"], bucket["nll"])
    0 1 6.0
    1 2 3.5
    2 4 1.75
    4 1 1.0
    """
    if np.ndim(nll) != 1:
        raise ValueError(
            "`nll` must have shape (P + 1,), one number a token. "
            f"Received: shape {np.shape(nll)}"
        )
    documents = np.asarray(documents)
    longest = int(document_lengths(documents, len(nll)).max())
    powers = 2 ** np.arange((longest - 1).bit_length() + 1, dtype=np.int64)
    bounds = np.concatenate([[0], powers])
    sums, counts = np.zeros(len(powers)), np.zeros(len(powers), np.int64)
    for start in range(0, len(nll), _BLOCK):
        bucket, found = _scores_by_bucket(nll, documents, bounds, start)
        # float64, as in `Evaluator.evaluate`.
        sums += np.bincount(bucket, found, len(powers))
        counts += np.bincount(bucket, minlength=len(powers))
    return [
        {
            "start": int(bounds[i]),
            "stop": int(bounds[i + 1]),
            "num_tokens": int(counts[i]),
            "nll": sums[i] / counts[i],
            "bits_per_token": bits_per_token(sums[i] / counts[i]),
        }
        for i in np.flatnonzero(counts).tolist()
    ]


def _scores_by_bucket(nll, documents, bounds, start):
    """Of a block of tokens: in which bucket the scored ones are, the scores."""
    found = np.asarray(nll[start : start + _BLOCK], np.float64)
    tokens = np.arange(start, start + len(found))
    document = np.searchsorted(documents, tokens, "right") - 1
    bucket = np.searchsorted(bounds, tokens - documents[document], "right") - 1
    is_scored = ~np.isnan(found)
    return bucket[is_scored], found[is_scored]


def segment_position_losses(nll, segments):
    """How scores depend on the place of a token in its segment.

    A model without memory knows of nothing before its segment, so the first
    tokens of one score badly: the context fragmentation of section 3.1 of Dai
    et al., 2019. Memory removes it.

    Args:
        nll: Float array of shape `(P + 1,)`, nats of every token: of
            `Evaluator.token_nll`.
        segments: The `Segments` of the text that it was read in.

    Returns:
        Dictionary of three lists of T numbers, of fewer where no segment of
        the text is so long: `nll`, the mean nats at each place;
        `standard_error`, that of this mean; and `num_tokens`, how many were
        scored there.

    Example: the first token is no target, and the last segment is shorter.

    >>> from txl_keras.data import Segments
    >>> segments = Segments(np.arange(8), 1, 3, drop_remainder=False)
    >>> nll = np.array([np.nan, 9, 2, 1, 7, 4, 3, 5])
    >>> losses = segment_position_losses(nll, segments)
    >>> losses["nll"], losses["num_tokens"]
    ([7.0, 3.0, 2.0], [3, 2, 2])
    """
    length = segments.segment_length
    sums, squares, counts = np.zeros((3, length))
    for step in range(len(segments)):
        positions = segments.target_positions(step)  # [B, T]
        is_scored = positions >= 0
        found = np.where(is_scored, nll[positions], 0).astype(float)
        sums += found.sum(axis=0)
        squares += (found**2).sum(axis=0)
        counts += is_scored.sum(axis=0)
    means, variances = _moments(sums, squares, counts)
    return {
        "nll": means.tolist(),
        "standard_error": np.sqrt(variances / counts[counts > 0]).tolist(),
        "num_tokens": counts[counts > 0].astype(int).tolist(),
    }


def _moments(sums, squares, counts):
    """Means and variances where anything was counted."""
    sums, squares, counts = (x[counts > 0] for x in (sums, squares, counts))
    means = sums / counts
    return means, np.maximum(squares / counts - means**2, 0)


def merge_positions(losses, per_doubling=4):
    """Averages neighbouring positions: lists of places, nats and their errors.

    One position alone is too noisy to be told from the next. Of
    `segment_position_losses` the first ones stay as they are; further on, so
    many are merged that each doubling has `per_doubling` points.
    """
    nll, errors, counts = (
        np.array(losses[name], float)
        for name in ("nll", "standard_error", "num_tokens")
    )
    positions = np.arange(1, len(nll) + 1)
    bins = np.ceil(per_doubling * np.log2(positions) - 1e-9)
    starts = np.flatnonzero(np.diff(bins, prepend=-1))
    totals = np.add.reduceat(counts, starts)
    errors = np.sqrt(np.add.reduceat((counts * errors) ** 2, starts)) / totals
    means = np.add.reduceat(counts * nll, starts) / totals
    sizes = np.diff(starts, append=len(nll))
    centres = np.add.reduceat(positions, starts) / sizes
    return centres.tolist(), means.tolist(), errors.tolist()


def with_result(results, result):
    """Adds a result to those of other settings.

    Args:
        results: List of dictionaries, or the one that older versions wrote.
        result: Dictionary. One of the same `SETTINGS` is brought up to date,
            and keeps what is not measured again; it comes last.

    Returns:
        List of dictionaries. Of the others, none names a file of scores
        (`token_nll`) any more that now holds those of `result`.

    Example:

    >>> results = with_result([], {"batch_size": 1, "nll": 2.0})
    >>> results = with_result(results, {"batch_size": 16, "nll": 2.2})
    >>> with_result(results, {"batch_size": 1, "nll": 2.1})
    [{'batch_size': 16, 'nll': 2.2}, {'batch_size': 1, 'nll': 2.1}]
    """
    if isinstance(results, dict):
        results = [results]
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
