"""`SentencePieceTokenizer`: one id per piece of a SentencePiece model."""

import base64
import collections
import io
import math
import re
import threading
from collections.abc import Iterable
from typing import Self

import numpy as np
from google.protobuf import descriptor_pb2
from google.protobuf import descriptor_pool
from google.protobuf import message
from google.protobuf import message_factory
from google.protobuf import text_format

from txl_keras.backend import tf
from txl_keras.checks import check_integer
from txl_keras.data.tokenizers.graph_text import valid_text
from txl_keras.data.tokenizers.tokenizer import Tokenizer
from txl_keras.data.tokenizers.tokenizer import as_string
from txl_keras.data.vocabulary import smallest_dtype
from txl_keras.json_files import MAX_VOCABULARY_BYTES
from txl_keras.json_files import open_checked
from txl_keras.lazy import import_extra
from txl_keras.types import PathLike

_SPACE = "\u2581"  # in pieces
# Values of `type`.
_UNKNOWN, _CONTROL, _BYTE = 2, 3, 6

# The fields of a SentencePiece model that are read or changed here; others are
# kept unchanged. They are declared here, because the module in sentencepiece
# needs the newest protobuf, which other packages do not accept, and because
# models are read without sentencepiece.
# A piece is bytes here, because not every file contains valid UTF-8.
_FILE = """
name: "txl_keras_sentence_piece.proto"
package: "txl_keras"
message_type {
  name: "Piece"
  field { name: "piece" number: 1 type: TYPE_BYTES }
  field { name: "type" number: 3 type: TYPE_INT32 default_value: "1" }
}
message_type {
  name: "Normalizer"
  field { name: "precompiled_charsmap" number: 2 type: TYPE_BYTES }
  field { name: "add_dummy_prefix" number: 3 type: TYPE_BOOL
          default_value: "true" }
  field { name: "remove_extra_whitespaces" number: 4 type: TYPE_BOOL
          default_value: "true" }
  field { name: "escape_whitespaces" number: 5 type: TYPE_BOOL
          default_value: "true" }
}
message_type {
  name: "Model"
  field { name: "pieces" number: 1 label: LABEL_REPEATED type_name: "Piece" }
  field { name: "normalizer_spec" number: 3 type_name: "Normalizer" }
  field { name: "denormalizer_spec" number: 5 type_name: "Normalizer" }
}
"""

_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(text_format.Parse(_FILE, descriptor_pb2.FileDescriptorProto()))
_Model = message_factory.GetMessageClass(
    _POOL.FindMessageTypeByName("txl_keras.Model")
)
_MAX_PIECES = 1 << 20  # the largest models have 262,144
_LOADING = threading.Lock()
# Appended to a serialized model, this overrides its `add_dummy_prefix`.
_NO_DUMMY_PREFIX = _Model(
    normalizer_spec={"add_dummy_prefix": False}
).SerializeToString()
# So does this the character map, with an empty one: native code prints a line
# each time it loads a model without a character map.
_NO_CHANGES = _Model(
    normalizer_spec={
        "precompiled_charsmap": (1024).to_bytes(4, "little") + bytes(1025)
    }
).SerializeToString()
# sentencepiece skips sentences that contain one of these characters.
_CHARACTER = "[^\n\0\u2047\u2585]"
# It also skips long sentences, and aborts at words of 65536 characters. So
# sentences are cut, before a space if possible.
_SENTENCE = re.compile(rf"{_CHARACTER}{{1,1000}}(?!\S)|{_CHARACTER}{{1,1000}}")
# The default number of pieces, per square root of the number of characters.
_PIECES_PER_ROOT = 1.2
_FEWEST_PIECES, _MOST_PIECES = 500, 8000
_COVERAGE = 0.9995  # share of the text whose characters have a piece
# Options of training.
_LOSSLESS = {
    "model_type": "bpe",
    "character_coverage": _COVERAGE,
    # Normalization would be lossy.
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "add_dummy_prefix": False,
    "byte_fallback": True,
    # Otherwise each space of an indentation would be a token.
    "allow_whitespace_only_pieces": True,
    "user_defined_symbols": ["\n"],
    # Unused special tokens would waste embedding rows.
    "bos_id": -1,
    "eos_id": -1,
    "pad_id": -1,
    # Fixed, because float sums depend on the number of threads.
    "num_threads": 16,
    "minloglevel": 2,
}


class SentencePieceTokenizer(Tokenizer):
    """Encodes text as pieces of a SentencePiece model.

    Models from `train` are lossless: `decode(encode(text)) == text` for every
    text in valid UTF-8, so that bits per byte can be computed. Characters
    without a piece are encoded as bytes.

    Published models may be lossy: many apply Unicode normalization, treat
    newlines as spaces, merge spaces, or replace unknown characters by one
    piece. Each line is encoded separately.

    Args:
        model: `bytes`, a serialized SentencePiece model.

    Example:

    >>> tokenizer = SentencePieceTokenizer.train(["a cat\\n" * 9], 262)
    >>> ids = tokenizer.encode("a  cat\\n\\tnaïve")
    >>> tokenizer.decode(ids)
    'a  cat\\n\\tnaïve'
    """

    unit = "subword"
    releases_gil = True

    def __init__(self, model: bytes):
        if not isinstance(model, bytes):
            raise ValueError(
                "`model` must be the bytes of a SentencePiece model: load a "
                "file with `SentencePieceTokenizer.from_file(path)`. "
                f"Received: {type(model).__name__}"
            )
        pieces, normalizer = _read_model(model)
        _, types = zip(*pieces, strict=True)
        self.model = model
        self.vocabulary_size = len(pieces)
        self.unknown_id = types.index(_UNKNOWN) if _UNKNOWN in types else None
        self._texts = [_piece_text(piece, kind) for piece, kind in pieces]
        self._has_prefix = normalizer.add_dummy_prefix
        self._trims = normalizer.remove_extra_whitespaces
        self.is_lossless = (
            not (self._has_prefix or self._trims)
            and not normalizer.precompiled_charsmap
            and types.count(_BYTE) == 256
        )
        _load(model)  # checks it

    @classmethod
    def from_file(cls, path: PathLike) -> Self:
        """Loads a model file, such as the `spiece.model` of XLNet.

        Args:
            path: String or `pathlib.Path`.
        """
        with open_checked(path, MAX_VOCABULARY_BYTES) as file:
            model = file.read()
        try:
            return cls(model)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    @classmethod
    def train(
        cls,
        texts: Iterable[str | bytes],
        vocabulary_size: int | None = None,
    ) -> Self:
        """Trains a lossless byte-pair encoding, deterministically.

        Its first 258 pieces are `<unk>`, the newline and the 256 bytes.
        Training takes about 15 bytes of memory per character.

        Args:
            texts: Iterable of `bytes` in UTF-8 or of `str`: blocks of text,
                preferably of whole lines.
            vocabulary_size: Optional integer. By default about 1.2 times the
                square root of the number of characters, from 500 to 8,000, and
                enough for one piece per character, except rare characters.
        """
        size = vocabulary_size
        if size is not None:
            check_integer("vocabulary_size", size, 1)
        sentencepiece = import_extra("sentencepiece")
        sentences = [part for text in texts for part in sentences_of(text)]
        if not sentences:
            raise ValueError(
                "`texts` must contain text besides newlines. Received: none"
            )
        if size is None:
            size = _default_size(sentences)
        written = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(sentences),
                model_writer=written,
                vocab_size=size,
                # A short text has fewer pieces than the default.
                hard_vocab_limit=vocabulary_size is not None,
                **_LOSSLESS,
            )
        except RuntimeError as error:
            raise ValueError(
                "`vocabulary_size` must suit the texts. Received: "
                f"vocabulary_size={vocabulary_size} ({error})"
            ) from error
        model = _Model.FromString(written.getvalue())
        # The trainer writes spaces as U+2581, which a text may contain, too.
        # Pieces with real spaces distinguish the two.
        model.normalizer_spec.escape_whitespaces = False
        for piece in model.pieces:
            piece.piece = piece.piece.replace(_SPACE.encode(), b" ")
        return cls(model.SerializeToString(deterministic=True))

    def encode(self, text, begins_line=True):
        return self.encode_texts([text], begins_line)[0]

    def encode_texts(self, texts, begins_line=True):
        # In one call, because one call per short text takes 50 times as long.
        # TensorFlow would silently write U+FFFD for invalid UTF-8.
        texts = tf.constant([as_string(text) for text in texts])
        ids = self._encode(texts, begins_line)
        dtype = smallest_dtype(self.vocabulary_size)
        return ids.values.numpy().astype(dtype), ids.row_lengths().numpy()

    def encode_in_graph(self, text):
        return self._encode(valid_text(text), True)

    def _encode(self, text, begins_line):
        # A long line would take longer. An empty text has one line, too.
        rows = tf.strings.split(text, sep="\n")
        limits = tf.gather(rows.row_limits(), rows.value_rowids())
        is_ended = tf.range(1, tf.size(limits, tf.int64) + 1) != limits
        lines = rows.values + tf.where(is_ended, "\n", "")
        tokens = _load(self.model).tokenize(lines)
        # A model that trims leading spaces adds one again as its prefix.
        if (
            not begins_line
            and self._has_prefix
            and not (self._trims and lines[0].numpy().startswith(b" "))
        ):
            first = _load(self.model + _NO_DUMMY_PREFIX).tokenize(lines[:1])
            tokens = tf.concat([first, tokens[1:]], axis=0)
        return rows.with_values(tokens).merge_dims(1, 2)

    def get_config(self):
        """Returns the configuration, with the model in base64 for JSON."""
        return {"model": base64.b64encode(self.model).decode("ascii")}

    @classmethod
    def from_config(cls, config):
        return cls(base64.b64decode(config["model"], validate=True))


def sentences_of(text):
    """Returns sentences to train on: lines; long lines are cut in parts."""
    return _SENTENCE.findall(as_string(text))


def _default_size(sentences):
    """Returns a number of pieces that suits the size of the texts."""
    counts = collections.Counter()
    for sentence in sentences:
        counts.update(sentence)
    total = counts.total()
    size = int(_PIECES_PER_ROOT * math.sqrt(total))
    size = min(max(size, _FEWEST_PIECES), _MOST_PIECES)
    # Each of these characters needs a piece: in Chinese there are thousands.
    covered = np.cumsum(sorted(counts.values(), reverse=True))
    return size + 1 + int(np.searchsorted(covered, _COVERAGE * total))


def _load(model):
    """Creates the TensorFlow Text tokenizer of a model, for each text."""
    # `keras.utils.set_random_seed` clears TensorFlow's resources, so that a
    # cached tokenizer would fail.
    text = import_extra("tensorflow_text")
    # Concurrent loading in two threads would release the model again.
    with _LOADING:
        try:
            normalizer = _Model.FromString(model).normalizer_spec
            if not normalizer.precompiled_charsmap:
                model += _NO_CHANGES
            return text.SentencepieceTokenizer(model=model)
        except tf.errors.OpError as error:
            raise _no_model_error(error.message) from error


def _read_model(model):
    """Returns a model's pairs of piece and type, and its normalizer."""
    try:
        read = _Model.FromString(model)
        if not 0 < len(read.pieces) <= _MAX_PIECES:
            raise ValueError(f"it must have 1 to {_MAX_PIECES:,} pieces")
        pieces = [(x.piece.decode("utf-8"), x.type) for x in read.pieces]
        for normalizer in (read.normalizer_spec, read.denormalizer_spec):
            _check_charsmap(normalizer.precompiled_charsmap)
    except (ValueError, message.DecodeError) as error:
        raise _no_model_error(repr(error)) from error
    return pieces, read.normalizer_spec


def _no_model_error(reason):
    return ValueError(
        f"`model` is not a SentencePiece model: {reason}. Take a published "
        "one, such as spiece.model or tokenizer.model, or train one with "
        "`SentencePieceTokenizer.train`."
    )


def _check_charsmap(data):
    """Checks a compiled character map before native code reads it."""
    # It has the trie's size, the trie (32-bit units of darts-clone) and the
    # strings that its leaves point to. Native code does not check that steps
    # and leaves point inside of these.
    if not data:
        return
    size = int.from_bytes(data[:4], "little")
    strings = data[4 + size :]
    if not size or size % 1024 or not strings.endswith(b"\0"):
        raise ValueError("its character map is damaged")
    units = np.frombuffer(data, "<u4", size // 4, 4).astype(np.int64)
    is_node = units >> 31 == 0
    offset = (units >> 10) << ((units & 1 << 9) >> 6)
    child = np.arange(len(units)) ^ offset
    leads_out = (child | 255) >= len(units)
    has_leaf = is_node & (units & 1 << 8 > 0) & ~leads_out
    leaves = units[child[has_leaf]] & (1 << 31) - 1
    if (is_node & leads_out).any() or (leaves >= len(strings)).any():
        raise ValueError("its character map is damaged")


def _piece_text(piece, kind):
    if kind == _CONTROL:
        return b""
    if kind == _BYTE:
        return bytes([int(piece.strip("<>"), 16)])
    return piece.replace(_SPACE, " ").encode("utf-8")
