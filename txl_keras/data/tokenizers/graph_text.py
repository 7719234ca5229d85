"""Text operations of TensorFlow that agree with Python's.

Letters: `B` batch, `n` values of all rows together.
"""

import functools
import re

import numpy as np
import tensorflow as tf

from txl_keras.checks import checked
from txl_keras.data.vocabulary import NUM_CODE_POINTS


def constant(texts):
    """Creates a constant of strings `(n,)` from a list of `bytes`."""
    # As objects, because NumPy strips trailing zero bytes from its strings.
    return tf.constant(np.array(texts, object))


def valid_text(text):
    """Returns strings `(B,)`, with a check that they are valid UTF-8."""
    # Invalid bytes are replaced by U+FFFD.
    repaired = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", "replace")
    is_valid = repaired == text
    row = tf.strings.as_string(tf.where(~is_valid)[:1, 0])
    message = ["`text` of row ", row, " is not valid UTF-8."]
    return _checked(text, is_valid, message)


def split_bytes(text):
    """Splits strings `(B,)` into bytes, ragged int32 `(B, None)`."""
    values = tf.io.decode_raw(tf.strings.reduce_join(text), tf.uint8)
    lengths = tf.cast(tf.strings.length(text), tf.int64)
    return tf.RaggedTensor.from_row_lengths(tf.cast(values, tf.int32), lengths)


def split_characters(text):
    """Splits strings `(B,)` into code points, ragged int32 `(B, None)`."""
    return tf.strings.unicode_decode(valid_text(text), "UTF-8")


def split_words(text):
    """Splits strings `(B,)` at the spaces of `str.split`, ragged."""
    # `tf.strings.split` splits only at ASCII spaces.
    *_, spaces = _characters()
    text = tf.strings.regex_replace(text, f"[{spaces}]", " ")
    words = tf.strings.split(text, sep=" ")
    return tf.ragged.boolean_mask(words, words.with_values(words.values != ""))


def find(keys, values):
    """Finds integers `(n,)` in a list of distinct integers.

    Returns their indices, and which were found.
    """
    # Binary search needs only constants: no table to be initialized at loading,
    # and no array over all of Unicode.
    order = np.argsort(keys).astype(np.int32)
    keys = tf.constant(np.array(keys)[order], values.dtype)
    i = tf.minimum(tf.searchsorted(keys, values), len(order) - 1)
    return tf.gather(order, i), tf.gather(keys, i) == values


def find_words(words, values):
    """Finds strings `(n,)` in a list of distinct strings, as `find` does."""
    words = [word.encode() for word in words]
    with tf.init_scope():
        keys = _hash(constant(words)).numpy()
    indices, is_found = find(keys, _hash(values))
    return indices, is_found & (tf.gather(constant(words), indices) == values)


def _hash(strings):
    return tf.strings.to_hash_bucket_fast(strings, 2**63 - 1)


def check_known(ids, is_known, symbols):
    """Returns ids `(n,)` of symbols `(B, None)` as ragged; checks that all are.

    Symbols are words, or code points.
    """
    # The first unknown value, or none.
    i = tf.where(~is_known)[:1, 0]
    row = tf.gather(symbols.value_rowids(), i)
    position = i - tf.gather(symbols.row_starts(), row)
    name = tf.gather(symbols.values, i)
    if name.dtype != tf.string:  # some characters are invisible
        number = tf.strings.as_string(name)
        name = tf.strings.unicode_encode(name[:, None], "UTF-8")
        name = tf.strings.join([name, " (code point ", number, ")"])
    message = [
        "The symbol ",
        name,
        " at position ",
        tf.strings.as_string(position),
        " of row ",
        tf.strings.as_string(row),
        " is not in the vocabulary.",
    ]
    return symbols.with_values(_checked(ids, is_known, message))


def _checked(values, is_valid, message):
    message = tf.strings.reduce_join(tf.strings.join(message))
    return checked(values, tf.reduce_all(is_valid), message)


def lower_case(text):
    """Converts strings `(B,)` of valid UTF-8 exactly as `str.lower` does."""
    # `tf.strings.lower` drops what follows a null character, uses another
    # version of Unicode, and in a Turkish locale converts "I" into a dotless i.
    # All characters are converted one by one, except for a capital sigma. It
    # becomes a final sigma if a cased character precedes it and none follows.
    # Ignored characters, such as accents, are skipped.
    upper, cased, ignored, _ = _characters()
    is_followed = f"Σ([{ignored}]*[{cased}])"
    for _ in range(2):  # a match may end with the next sigma
        text = tf.strings.regex_replace(text, is_followed, r"σ\1")
    is_final = f"([{cased}][{ignored}]*)Σ"
    text = tf.strings.regex_replace(text, is_final, r"\1ς")
    texts = tf.strings.unicode_split(text, "UTF-8")
    indices, is_upper = find(
        list(map(ord, upper)),
        tf.strings.unicode_decode(text, "UTF-8").values,
    )
    lower = constant([c.lower().encode() for c in upper])
    converted = tf.where(is_upper, tf.gather(lower, indices), texts.values)
    return tf.strings.reduce_join(texts.with_values(converted), axis=1)


@functools.cache
def _characters():
    """Returns the upper, cased, ignored and space characters of Python."""
    # As lists, or as strings for regular expressions. `str.lower` is the only
    # way to derive the second and the third.
    characters = list(map(chr, range(NUM_CODE_POINTS)))
    upper = [c for c in characters if c.lower() != c]
    cased = {c for c in characters if f"1{c}Σ".lower().endswith("ς")}
    skipped = [c for c in characters if f"A{c}Σ".lower().endswith("ς")]
    ignored = [c for c in skipped if c not in cased]
    spaces = [c for c in characters if c.isspace()]
    return upper, *(
        "".join(map(re.escape, group)) for group in (cased, ignored, spaces)
    )
