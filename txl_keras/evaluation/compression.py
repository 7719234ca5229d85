"""What general-purpose compressors need for a text, to hold a bpc against."""

import gzip
import lzma


def compressed_bits_per_character(text, num_characters):
    """Bits per character of `gzip -9` and `xz -9`.

    They see the text alone, where a model was trained on more of its kind.

    Args:
        text: Bytes.
        num_characters: Integer, the characters or bytes to divide by.

    Returns:
        Dictionary from the command to bits per character.
    """
    sizes = {
        "gzip -9": len(gzip.compress(text, compresslevel=9)),
        "xz -9": len(lzma.compress(text, preset=9)),
    }
    return {name: 8 * size / num_characters for name, size in sizes.items()}
