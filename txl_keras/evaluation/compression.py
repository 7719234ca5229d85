"""Bits for each byte of a text: a unit that all tokenizers share."""

import gzip
import lzma

from txl_keras.metrics import bits_per_token


def bits_per_byte(scores, text):
    """Bits that a model needs for each byte of a text.

    Args:
        scores: Dictionary of `Evaluator.evaluate`, over all of the text.
        text: Bytes.

    Returns:
        Float.
    """
    return bits_per_token(scores["nll"]) * scores["num_tokens"] / len(text)


def compressed_bits_per_byte(text):
    """What `gzip -9` and `xz -9` need for each byte, to hold a model against.

    They see the text alone, where a model was trained on more of its kind.

    Args:
        text: Bytes.

    Returns:
        Dictionary from the command to bits a byte.
    """
    sizes = {
        "gzip -9": len(gzip.compress(text, compresslevel=9)),
        "xz -9": len(lzma.compress(text, preset=9)),
    }
    return {name: 8 * size / len(text) for name, size in sizes.items()}
