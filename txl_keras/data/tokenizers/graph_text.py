"""Text operations in TensorFlow that give the same results as Python's.

Letters: `B` batch, `n` values of all rows together.
"""

import functools
import re

import numpy as np

from txl_keras.backend import tf
from txl_keras.checks import checked
from txl_keras.data.vocabulary import NUM_CODE_POINTS


def constant(texts):
    """Creates a constant of strings `(n,)` from a list of `bytes`."""
    # Passed as objects, because NumPy strips trailing zero bytes from strings.
    return tf.constant(np.array(texts, object))


def valid_text(text):
    """Returns strings `(B,)`; checks that they are valid UTF-8."""
    # Invalid bytes are replaced by U+FFFD.
    repaired = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", "replace")
    is_valid = repaired == text
    row = tf.strings.as_string(tf.where(~is_valid)[:1, 0])
    return _checked(
        text, is_valid, ["`text` of row ", row, " is not valid UTF-8."]
    )


def split_bytes(text):
    """Splits strings `(B,)` into bytes, ragged int32 `(B, None)`."""
    values = tf.io.decode_raw(tf.strings.reduce_join(text), tf.uint8)
    lengths = tf.cast(tf.strings.length(text), tf.int64)
    return tf.RaggedTensor.from_row_lengths(tf.cast(values, tf.int32), lengths)


def split_words(text):
    """Splits strings `(B,)` at whitespace like `str.split`, ragged."""
    # `tf.strings.split` splits only at ASCII spaces.
    text = tf.strings.regex_replace(text, f"[{_spaces()}]", " ")
    words = tf.strings.split(text, sep=" ")
    return tf.ragged.boolean_mask(words, words.with_values(words.values != ""))


@functools.cache
def _spaces():
    characters = map(chr, range(NUM_CODE_POINTS))
    return re.escape("".join(filter(str.isspace, characters)))


def find(keys, values):
    """Finds integers `(n,)` in a list of distinct integers.

    Returns their indices, and a mask of the integers that were found.
    """
    # Binary search needs only constants: no table to initialize when loading,
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
    """Returns ids `(n,)` of symbols `(B, None)` as ragged; checks them.

    Symbols are words, or code points.
    """
    i = tf.where(~is_known)[:1, 0]  # the first unknown value, or none
    name = tf.gather(symbols.values, i)
    if name.dtype != tf.string:
        name = tf.strings.unicode_encode(name[:, None], "UTF-8")
    row = tf.strings.as_string(tf.gather(symbols.value_rowids(), i))
    message = ["The symbol ", name, " of row ", row, " is not in the "]
    ids = _checked(ids, is_known, [*message, "vocabulary."])
    return symbols.with_values(ids)


def _checked(values, is_valid, message):
    message = tf.strings.reduce_join(tf.strings.join(message))
    return checked(values, tf.reduce_all(is_valid), message)
