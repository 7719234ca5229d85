"""Scores in the units of the field, and of the text itself."""

import gzip
import lzma

from txl_keras.metrics import bits_per_token
from txl_keras.metrics import perplexity

COMPRESSED_BYTES = 1 << 25  # xz takes a minute for these


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
        `compressors`. Where `drop_newlines` leaves newlines out, they are out
        of these bytes, too.
    """
    all_scored = scores["num_tokens"] == len(tokens) - 1
    if not (tokenizer.is_lossless and all_scored):
        return scores
    text = tokenizer.decode_bytes(tokens)
    bits = scores["bits_per_token"] * scores["num_tokens"]
    compressors = {}
    if len(text) <= COMPRESSED_BYTES:
        compressors = compressed_bits_per_byte(text)
    return {
        **scores,
        "bits_per_byte": bits / len(text),
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
    units = {"byte": "bits per byte", "character": "bpc"}
    if tokenizer.unit in units:
        return f"{bits_per_token(nll):.4f} {units[tokenizer.unit]}"
    return f"{perplexity(nll):.2f} ppl"


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
