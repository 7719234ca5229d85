"""Tokenizers as TensorFlow graphs, for SavedModels that take raw text.

`graph_tokenizer` converts a Python tokenizer into one that returns the same ids
and bytes. Byte, character and word tokenizers use only operations of
TensorFlow. Subword tokenizers use operations of TensorFlow Text, which must be
imported before such a SavedModel is loaded.

Letters: `B` batch, `P` and `T` tokens of the longest row, `V` vocabulary, `n`
values of all rows together.
"""

import functools

import numpy as np
import tensorflow as tf

from txl_keras.checks import checked
from txl_keras.data import tokenizers
from txl_keras.data.vocabulary import NUM_CODE_POINTS

# TensorFlow has strings only on the CPU. An accelerator would only add copies.
_CPU = "CPU:0"
_NEWLINE = ord("\n")
_SIGMA = ord("Σ")
# How a character affects a sigma next to it: see `_lower_case`.
_OTHER, _CASED, _IGNORED = range(3)


def graph_tokenizer(tokenizer):
    """Converts a tokenizer of `txl_keras.data` into a `GraphTokenizer`."""
    # Subclasses are rejected, because they may override any method.
    if type(tokenizer) not in _GRAPH_TOKENIZERS:
        names = sorted(kind.__name__ for kind in _GRAPH_TOKENIZERS)
        raise ValueError(
            f"`tokenizer` must be one of {names}, and not a subclass. "
            f"Received: {type(tokenizer).__name__}"
        )
    with tf.device(_CPU):
        return _GRAPH_TOKENIZERS[type(tokenizer)](tokenizer)


class GraphTokenizer(tf.Module):
    """Encodes and decodes text in a graph, and can be saved in a SavedModel."""

    def __init__(self, tokenizer):
        super().__init__()
        self._tokenizer = tokenizer
        # The bytes of every id; a text is their concatenation.
        ids = range(tokenizer.vocabulary_size)
        self._texts = _constant([tokenizer.decode_bytes(i) for i in ids])

    # Without AutoGraph, which would try to convert the import of TensorFlow
    # Text.
    @tf.function(
        input_signature=[tf.TensorSpec((None,), tf.string, "text")],
        autograph=False,
    )
    def encode(self, text):
        """Converts texts `(B,)`, each the start of a line, into token ids."""
        # Returns ids, int32 `(B, P)` padded with 0, and lengths, int32 `(B,)`.
        with tf.device(_CPU):
            ids = self._ids(text)
            lengths = tf.cast(ids.row_lengths(), tf.int32)
            return ids.to_tensor(0), lengths

    @tf.function(
        input_signature=[tf.TensorSpec((None, None), tf.int32, "ids")],
        autograph=False,
    )
    def decode(self, ids):
        """Converts ids `(B, T)` into bytes, maybe ending within a character."""
        with tf.device(_CPU):
            return tf.strings.reduce_join(tf.gather(self._texts, ids), axis=1)

    def _ids(self, text):
        """Encodes strings `(B,)` as ragged int32 `(B, None)`."""
        raise NotImplementedError


class _GraphSymbolTokenizer(GraphTokenizer):
    """Encodes each byte or each character on its own."""

    def _ids(self, text):
        has_vocabulary = hasattr(self._tokenizer, "vocabulary")
        if not has_vocabulary or self._tokenizer.encoding == "latin-1":
            ids = symbols = _split_bytes(text)
        else:
            symbols = tf.strings.unicode_decode(_valid_text(text), "UTF-8")
        is_newline = symbols.values == _NEWLINE
        if has_vocabulary:
            code_points = list(map(ord, self._tokenizer.vocabulary.symbols))
            ids, is_known = _find(code_points, symbols.values)
            if self._tokenizer.drop_newlines:
                is_known |= is_newline
            ids = _check_known(ids, is_known, symbols, _symbol_names)
        if not self._tokenizer.drop_newlines:
            return ids
        return tf.ragged.boolean_mask(ids, symbols.with_values(~is_newline))


class _GraphWordTokenizer(GraphTokenizer):
    def __init__(self, tokenizer):
        super().__init__(tokenizer)
        unknown_id = tokenizer.unknown_id
        symbols = [word.encode() for word in tokenizer.vocabulary.symbols]
        self._table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                _constant(symbols), tf.range(len(symbols), dtype=tf.int32)
            ),
            default_value=-1 if unknown_id is None else unknown_id,
        )

    def _ids(self, text):
        words = self._words(_valid_text(text))
        ids = self._table.lookup(words.values)
        return _check_known(ids, ids >= 0, words, tf.identity)

    def _words(self, text):
        """Splits strings `(B,)` into ragged words and marks of lines."""
        line_start = self._tokenizer.line_start or ""
        line_end = self._tokenizer.line_end or ""
        if self._tokenizer.lower_case:
            text = _lower_case(text)
        # No line starts after a newline at the end of a text.
        body = tf.strings.regex_replace(text, r"\n\z", "")
        end = tf.where(body == text, "", f" {line_end}")
        start = tf.where(text == "", "", f"{line_start} ")
        line_break = f" {line_end} {line_start} "
        # `tf.strings.split` splits only at ASCII spaces.
        body = tf.strings.regex_replace(body, _space_pattern(), " ")
        body = tf.strings.regex_replace(
            body, "\n", line_break.replace("\\", "\\\\")
        )
        words = tf.strings.split(start + body + end, sep=" ")
        return tf.ragged.boolean_mask(
            words, words.with_values(words.values != "")
        )


class _GraphSubwordTokenizer(GraphTokenizer):
    """Tokenizes each line separately, as the Python tokenizers do."""

    def _ids(self, text):
        line_end_id = None
        if self._tokenizer.line_end is not None:
            line_end_id = self._tokenizer.newline_id
        # An empty text has one line, too.
        lines = tf.strings.split(_valid_text(text), sep="\n")
        limits = tf.gather(lines.row_limits(), lines.value_rowids())
        is_ended = tf.range(1, tf.size(limits, tf.int64) + 1) != limits
        strings = lines.values
        # Lines keep their newlines if SentencePiece has pieces of them.
        is_sentence_piece = isinstance(
            self._tokenizer, tokenizers.SentencePieceTokenizer
        )
        if is_sentence_piece and line_end_id is None:
            strings += tf.where(is_ended, "\n", "")
        # The model is loaded inside the graph, because
        # `keras.utils.set_random_seed` destroys resources created outside.
        tokens = self._tokenizer.as_tf_text().tokenize(strings)
        if line_end_id is not None:
            ends = tf.cast(is_ended, tf.int64)
            values = tf.fill([tf.reduce_sum(ends)], line_end_id)
            ends = tf.RaggedTensor.from_row_lengths(values, ends)
            tokens = tf.concat([tokens, ends], axis=1)
        return lines.with_values(tokens).merge_dims(1, 2)


_GRAPH_TOKENIZERS = {
    tokenizers.ByteTokenizer: _GraphSymbolTokenizer,
    tokenizers.CharacterTokenizer: _GraphSymbolTokenizer,
    tokenizers.WordTokenizer: _GraphWordTokenizer,
    tokenizers.SentencePieceTokenizer: _GraphSubwordTokenizer,
    tokenizers.WordPieceTokenizer: _GraphSubwordTokenizer,
}


def _lower_case(text):
    """Converts strings `(B,)` of valid UTF-8 exactly as `str.lower` does.

    `tf.strings.lower` drops what follows a null character, uses another version
    of Unicode, and in a Turkish locale converts "I" into a dotless i.

    Every character is converted on its own, except for a capital sigma. It
    becomes a final sigma if a cased character precedes it and none follows.
    Ignored characters, such as accents, are skipped.
    """
    upper, lower, starts, kinds = _case_tables()
    code_points = tf.strings.unicode_decode(text, "UTF-8")
    rows = code_points.value_rowids()
    code_points = code_points.values
    indices, is_upper = _find(upper, code_points)
    texts = tf.strings.unicode_split(text, "UTF-8").values
    texts = tf.where(is_upper, tf.gather(_constant(lower), indices), texts)
    indices = tf.searchsorted(starts, code_points, side="right") - 1
    is_final = _is_final_sigma(code_points, tf.gather(kinds, indices), rows)
    texts = tf.where(is_final, "ς", texts)
    return tf.strings.unsorted_segment_join(texts, rows, tf.size(text))


def _is_final_sigma(code_points, kinds, rows):
    kept = tf.where(kinds != _IGNORED)
    is_cased = tf.gather_nd(kinds, kept) == _CASED
    rows = tf.gather_nd(rows, kept)
    is_same_row = rows[1:] == rows[:-1]
    no = tf.constant([False])
    follows = tf.concat([no, is_cased[:-1] & is_same_row], 0)
    precedes = tf.concat([is_cased[1:] & is_same_row, no], 0)
    is_sigma = tf.gather_nd(code_points, kept) == _SIGMA
    # Without any character, both have one value too many.
    size = tf.size(is_sigma)
    is_final = is_sigma & follows[:size] & ~precedes[:size]
    return tf.scatter_nd(kept, is_final, tf.shape(kinds, tf.int64))


def _find(keys, values):
    """Finds int32 values `(n,)` in a list of distinct integers.

    Returns their indices, and which were found.
    """
    # Binary search needs only constants: no table to be initialized at loading,
    # and no array over all of Unicode.
    order = np.argsort(keys).astype(np.int32)
    keys = tf.constant(np.array(keys)[order], tf.int32)
    i = tf.minimum(tf.searchsorted(keys, values), len(order) - 1)
    return tf.gather(order, i), tf.gather(keys, i) == values


@functools.cache
def _case_tables():
    """Returns the tables of `_lower_case` for the Unicode version of Python."""
    # These are lists of the code points that change and of their lower case,
    # and arrays of the starts of ranges of equal kind and of their kinds.
    characters = [chr(i) for i in range(NUM_CODE_POINTS)]
    upper = [c for c in characters if c.lower() != c]
    kinds = np.array([_kind(c) for c in characters], np.int32)
    starts = np.append(0, 1 + np.flatnonzero(np.diff(kinds))).astype(np.int32)
    lower = [c.lower().encode() for c in upper]
    return [ord(c) for c in upper], lower, starts, kinds[starts]


def _kind(character):
    """Derives the kind of a character from `str.lower`, the only way."""
    if not f"A{character}Σ".lower().endswith("ς"):
        return _OTHER
    is_cased = f"1{character}Σ".lower().endswith("ς")
    return _CASED if is_cased else _IGNORED


@functools.cache
def _space_pattern():
    """Returns a regex for all spaces of `str.split` except the newline."""
    characters = map(chr, range(NUM_CODE_POINTS))
    spaces = [c for c in characters if c.isspace() and c != "\n"]
    return f"[{''.join(spaces)}]"


def _constant(texts):
    """Creates a constant of strings `(n,)` from a list of `bytes`."""
    # As objects, because NumPy strips trailing zero bytes from its strings.
    return tf.constant(np.array(texts, object))


def _split_bytes(text):
    """Splits strings `(B,)` into bytes, ragged int32 `(B, None)`."""
    values = tf.io.decode_raw(tf.strings.reduce_join(text), tf.uint8)
    lengths = tf.cast(tf.strings.length(text), tf.int64)
    return tf.RaggedTensor.from_row_lengths(tf.cast(values, tf.int32), lengths)


def _valid_text(text):
    """Returns strings `(B,)`, with a check that they are valid UTF-8."""
    # Invalid bytes are replaced by U+FFFD.
    repaired = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", "replace")
    is_valid = repaired == text
    row = tf.strings.as_string(tf.where(~is_valid)[:1, 0])
    message = ["`text` of row ", row, " is not valid UTF-8."]
    return _checked(text, is_valid, message)


def _check_known(ids, is_known, symbols, name):
    """Returns ids `(n,)` of symbols `(B, None)` as ragged; checks that all are.

    `name` makes strings of unknown symbols.
    """
    # The first unknown value, or none.
    i = tf.where(~is_known)[:1, 0]
    row = tf.gather(symbols.value_rowids(), i)
    position = i - tf.gather(symbols.row_starts(), row)
    message = [
        "The symbol ",
        name(tf.gather(symbols.values, i)),
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


def _symbol_names(code_points):
    """Names symbols with their code points, because some are invisible."""
    texts = tf.strings.unicode_encode(code_points[:, None], "UTF-8")
    numbers = tf.strings.as_string(code_points)
    return tf.strings.join([texts, " (code point ", numbers, ")"])
